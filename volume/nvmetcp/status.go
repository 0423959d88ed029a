package nvmetcp

import (
	"errors"
	"fmt"
)

// The classes of errors. Each error of this package is one of them by errors.Is, but for wrong arguments
// (ErrRange), lost writes (ErrUnflushed) and ErrClosed.
var (
	// ErrPath means that the target cannot be reached, or not this way. The command was repeated until
	// Options.Patience was over. What it did is unknown.
	ErrPath = errors.New("no path to the namespace")
	// ErrNamespace means that the namespace is gone, has another shape than before, or cannot be written.
	ErrNamespace = errors.New("the namespace cannot do this")
	// ErrReplaced means that the namespace is not the one that was opened. Close this one and open it anew. It comes
	// with ErrNamespace.
	ErrReplaced = errors.New("another one has its place")
	// ErrData means that the target could not read or write these blocks. Others may be well.
	ErrData = errors.New("the target failed on these blocks")
	// ErrRefused means that the target did not accept us or a command: what was configured is wrong.
	ErrRefused = errors.New("the target refused")
)

// Status is the status field of a completion without its phase: bits 7:0 are the code (SC), 10:8 the type (SCT),
// 14 is Do Not Retry (Base, 3.3.3.2.1).
type Status uint16

const doNotRetry Status = 1 << 14

// Type is the status code type: 0 generic, 1 command specific, 2 media and data, 3 path.
func (s Status) Type() int { return int(s >> 8 & 7) }

// Code is what the type numbers: SC.
func (s Status) Code() int { return int(s & 0xff) }

// DNR reports whether the target says that a repeated command would fail again.
func (s Status) DNR() bool { return s&doNotRetry != 0 }

// known is what a status means to us.
type known struct {
	name  string
	class error
}

// lookup finds the name and the class of a status (Base, figures 93 to 96; Fabrics, figure 16). A status is of the
// path if another connection may do better: nothing is known about the namespace then.
func (s Status) lookup() known {
	switch s.Type()<<8 | s.Code() {
	case 0x001:
		return known{"Invalid Command Opcode", ErrRefused}
	case 0x002:
		return known{"Invalid Field in Command", ErrRefused}
	case 0x003:
		return known{"Command ID Conflict", ErrPath}
	case 0x004:
		return known{"Data Transfer Error", ErrData}
	case 0x005:
		return known{"Commands Aborted due to Power Loss Notification", ErrPath}
	case 0x006:
		return known{"Internal Error", ErrData} // nvmet says so of a bad medium and of blocks out of range
	case 0x007:
		return known{"Command Abort Requested", ErrPath}
	case 0x008:
		return known{"Command Aborted due to SQ Deletion", ErrPath}
	case 0x00b:
		return known{"Invalid Namespace or Format", ErrNamespace}
	case 0x00c:
		return known{"Command Sequence Error", ErrPath}
	case 0x00d:
		return known{"Invalid SGL Segment Descriptor", ErrRefused}
	case 0x00e:
		return known{"Invalid Number of SGL Descriptors", ErrRefused}
	case 0x00f:
		return known{"Data SGL Length Invalid", ErrRefused} // nvmet says so of more than 4 MiB
	case 0x011:
		return known{"SGL Descriptor Type Invalid", ErrRefused}
	case 0x016:
		return known{"SGL Offset Invalid", ErrRefused}
	case 0x018:
		return known{"Host Identifier Inconsistent Format", ErrRefused}
	case 0x019:
		return known{"Keep Alive Timer Expired", ErrPath}
	case 0x01a:
		return known{"Keep Alive Timeout Invalid", ErrRefused}
	case 0x01c:
		return known{"Sanitize Failed", ErrNamespace}
	case 0x01d:
		return known{"Sanitize In Progress", ErrNamespace}
	case 0x020:
		return known{"Namespace is Write Protected", ErrNamespace}
	case 0x022:
		return known{"Transient Transport Error", ErrPath}
	case 0x080:
		return known{"LBA Out of Range", ErrNamespace}
	case 0x081:
		return known{"Capacity Exceeded", ErrNamespace}
	case 0x082:
		return known{"Namespace Not Ready", ErrPath}
	case 0x083:
		return known{"Reservation Conflict", ErrNamespace}
	case 0x084:
		return known{"Format In Progress", ErrNamespace}
	}
	return s.lookupSpecific()
}

// lookupSpecific has the types that are not generic.
func (s Status) lookupSpecific() known {
	switch s.Type()<<8 | s.Code() {
	case 0x109:
		return known{"Invalid Log Page", ErrRefused}
	case 0x10d:
		return known{"Feature Identifier Not Saveable", ErrRefused}
	case 0x10e:
		return known{"Feature Not Changeable", ErrRefused}
	case 0x180:
		return known{"Connect Incompatible Format", ErrRefused}
	case 0x181:
		return known{"Connect Controller Busy", ErrPath}
	case 0x182:
		return known{"Connect Invalid Parameters", ErrRefused}
	case 0x183:
		return known{"Connect Restart Discovery", ErrRefused}
	case 0x184:
		return known{"Connect Invalid Host", ErrRefused}
	case 0x190:
		return known{"Discover Restart", ErrPath}
	case 0x191:
		return known{"Authentication Required", ErrRefused}
	case 0x280:
		return known{"Write Fault", ErrData}
	case 0x281:
		return known{"Unrecovered Read Error", ErrData}
	case 0x282:
		return known{"End-to-end Guard Check Error", ErrData}
	case 0x283:
		return known{"End-to-end Application Tag Check Error", ErrData}
	case 0x284:
		return known{"End-to-end Reference Tag Check Error", ErrData}
	case 0x285:
		return known{"Compare Failure", ErrData}
	case 0x286:
		return known{"Access Denied", ErrNamespace}
	case 0x287:
		return known{"Deallocated or Unwritten Logical Block", ErrData}
	case 0x300:
		return known{"Internal Path Error", ErrPath} // nvmet says so of a disabled namespace
	case 0x301:
		return known{"Asymmetric Access Persistent Loss", ErrPath}
	case 0x302:
		return known{"Asymmetric Access Inaccessible", ErrPath}
	case 0x303:
		return known{"Asymmetric Access Transition", ErrPath}
	case 0x360:
		return known{"Controller Pathing Error", ErrPath}
	case 0x370:
		return known{"Host Pathing Error", ErrPath}
	case 0x371:
		return known{"Command Aborted By Host", ErrPath}
	}
	return [8]known{0: {"generic status", ErrRefused}, 1: {"command specific status", ErrRefused},
		2: {"media status", ErrData}, 3: {"path status", ErrPath}, 4: {"reserved status", ErrRefused},
		5: {"reserved status", ErrRefused}, 6: {"reserved status", ErrRefused}, 7: {"vendor status", ErrRefused}}[s.Type()]
}

// String is the status' name and its numbers, as type/code: Internal Path Error (3/00h).
func (s Status) String() string {
	dnr := ""
	if s.DNR() {
		dnr = ", do not retry"
	}
	return fmt.Sprintf("%s (%d/%02Xh%s)", s.lookup().name, s.Type(), s.Code(), dnr)
}

// StatusError is a command that the target completed with a status other than success. By errors.Is it is the class
// of its status.
type StatusError struct {
	Command string // its name in the specification
	Status  Status
}

// Error names the command and its status.
func (e *StatusError) Error() string { return e.Command + ": " + e.Status.String() }

// Is reports whether target is the class of the status.
func (e *StatusError) Is(target error) bool { return target == e.Status.lookup().class }
