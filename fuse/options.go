package fuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/fuse/point"
	"github.com/hearthfs/hearth/internal/waits"
	"github.com/hearthfs/hearth/namespace"
)

// Mode says how files of a mount are opened.
type Mode string

const (
	// Auto takes Passthrough where most bytes lie in large objects and the kernel
	// grants it, else None.
	Auto Mode = "auto"
	// None spares the OPEN and RELEASE requests: best for small files.
	None Mode = "none"
	// Passthrough lends whole local files to the kernel: best for large files.
	Passthrough Mode = "passthrough"
	// Plain answers each OPEN. A mount falls back to it.
	Plain Mode = "plain"
)

// Tree is what a mount shows; *namespace.Tree is one.
type Tree interface {
	Names
	News
}

var _ Tree = (*namespace.Tree)(nil)

// Names are the questions that a kernel asks.
type Names interface {
	// Lookup finds a name in a directory; *namespace.Absent says that there is none.
	Lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error)
	// Open is Node for an open(2) of the file: it may ask the origin whether the name still has
	// this version.
	Open(ctx context.Context, id uint64) (namespace.Node, error)
	// Node returns what an id stands for, without asking the origin; ErrStale if the id is unknown.
	Node(ctx context.Context, id uint64) (namespace.Node, error)
	// ReadDir streams the names of a directory that follow after, until each returns false.
	ReadDir(ctx context.Context, dir uint64, after string, each func(namespace.Node) bool) error
}

// News is what a mount and its tree tell each other.
type News interface {
	// Forget says that a read found a version gone.
	Forget(o *hearth.Object)
	// Hold keeps what superseded ids stood for while holds says that the kernel has them. end stops
	// it.
	Hold(holds func(id uint64) bool) (end func())
	// Subscribe calls back for each change, under no lock; the callback does not block.
	Subscribe(func(namespace.Change)) (cancel func())
}

// LocalFiler hands out whole objects as local files, as *disk.Store does.
type LocalFiler interface {
	// LocalFile opens the object's bytes as a file that is whole and verified; otherwise it returns
	// ErrMiss. The file is neither changed nor holed while it is open or mapped anywhere, even
	// after release and after the end of a Store. An object that is whole but not yet verified is a
	// miss; the call then starts a paced verification in the background. release is called once,
	// after the file and all kernel references to it are closed.
	LocalFile(o *hearth.Object) (file *os.File, release func(), err error)
	// Samples names one file of each place that local files may come from now. The kernel does not
	// lend from every place.
	Samples() []string
}

// Options say what is mounted, where and how.
type Options struct {
	// Dir is the mount point, a directory.
	Dir string
	// At is Dir, held by a process that may walk to it. nil means that this process may walk to it.
	At *point.Point
	// FSName is the source that mount(8) and df show, such as s3://bucket/prefix.
	FSName string
	// Tree is what the mount shows, from the directory Root on (0 means 1, the whole tree).
	Tree Tree
	Root uint64
	// Reads is the source of the bytes.
	Reads *cache.Tier
	// Local hands out whole objects as local files, for Passthrough. The mount uses that mode where
	// the kernel takes one of its samples. Local may be nil.
	Local LocalFiler
	// Reader says how large files are read ahead. Its Has reports whether this node holds a block,
	// so that hits pass the reads that wait for the origin. Without Has every read counts as a
	// miss.
	Reader cache.ReaderOptions
	// Held reports the bytes of an object in each tier, for user.hearth.bytes.TIER; may be nil.
	Held func(o *hearth.Object, each func(tier string, bytes int64))
	// Writing makes the mount writable, with Open Plain. nil means read-only.
	Writing *Writing
	// Open is the mode asked for; empty means Auto.
	Open Mode
	// Large tells Auto whether most bytes lie in large objects (MostlyLarge); nil means no.
	Large func(ctx context.Context) (bool, error)
	// Strict means that each open is checked with the origin. So the kernel keeps no listings and
	// sends every OPEN. It is refused together with None.
	Strict bool
	// UID and GID own everything. 0 means the process's own ids, unless it is root.
	UID, GID uint32
	// FileMode and DirMode are permission bits; 0 means 0444 and 0555, on a writable mount 0644 and 0755.
	FileMode, DirMode uint32
	// AllowOther lets other users than the mounting one in.
	AllowOther bool
	// NoExec forbids to execute files.
	NoExec bool
	// Without names abilities of the kernel that are not used (Abilities lists them).
	Without []string
	// MaxReadAhead is the kernel's read-ahead in bytes; 0 means 1 MiB.
	MaxReadAhead int
	// Keep is called once the mount is made, before anybody uses it, with what another process needs to serve it. nil
	// means that nobody is told. The Kept is not to be used once Keep has returned.
	Keep func(*Kept)
	// Teller is a socket of packets to a process that notifies the kernel (Tell). The mount closes it. nil means that this
	// process does, which cannot end while such a notification waits for it.
	Teller func() (*os.File, error)
	// Kept is a mount to be taken over instead of made, after its process has ended. nil means none. Dir, At, Root,
	// Without, NoExec and AllowOther are the mount's then.
	Kept *Kept
	// Events are told what happens.
	Events Events
}

// Events are called by a mount; each may be nil, none may block.
type Events struct {
	// Complaint is a line of the FUSE library: a reply that the kernel refused, a panic.
	Complaint func(text string)
	// Waits counts what requests wait for; a wait for names counts under FSName. It is a ledger,
	// not a callback.
	Waits *waits.Ledger
	// Read reports a READ of n bytes of an object of one block before it is answered. held means a
	// hit on this node. Came reports that the bytes of a miss have come.
	Read func(o *hearth.Object, n int, held bool)
	Came func(o *hearth.Object)
}

// MostlyLarge is Auto's rule over the sizes of a sample of objects. It reports whether at least
// half of the bytes lie in objects of 64 MiB or more.
func MostlyLarge(sizes []int64) bool {
	const large = 64 << 20
	var all, big int64
	for _, n := range sizes {
		all += n
		if n >= large {
			big += n
		}
	}
	return all > 0 && 2*big >= all
}

func (o Options) complete() (Options, error) {
	switch {
	case o.Tree == nil || o.Reads == nil || o.Dir == "":
		return o, errors.New("mount: Tree, Reads and Dir are needed")
	case o.Writing != nil && o.Open != "" && o.Open != Auto && o.Open != Plain:
		return o, fmt.Errorf("mount %s: open=%s is for read-only mounts: a writable one opens files plainly; mount data sets once more, read-only", o.Dir, o.Open)
	case o.Open == None && o.Strict:
		return o, fmt.Errorf("mount %s: open=none cannot be strict: the kernel would open files without asking", o.Dir)
	}
	if o.Writing != nil {
		o.Open = Plain
	}
	switch o.Open {
	case "":
		o.Open = Auto
	case Auto, None, Passthrough, Plain:
	default:
		return o, fmt.Errorf("mount %s: open=%s is none of auto, none, passthrough, plain", o.Dir, o.Open)
	}
	if o.Root == 0 {
		o.Root = rootID
	}
	if uid := os.Geteuid(); uid != 0 && o.UID == 0 {
		o.UID = uint32(uid)
	}
	if gid := os.Getegid(); os.Geteuid() != 0 && o.GID == 0 {
		o.GID = uint32(gid)
	}
	may := uint32(0)
	if o.Writing != nil {
		may = 0o200 // the owner writes
	}
	o.FileMode, o.DirMode = cmp.Or(o.FileMode, 0o444|may), cmp.Or(o.DirMode, 0o555|may)
	if o.MaxReadAhead == 0 {
		o.MaxReadAhead = hearth.BlockSize
	}
	if o.FSName == "" {
		o.FSName = "hearth"
	}
	return o, nil
}

// Set applies a comma-separated list of options as mount(8) passes it after -o.
func (o *Options) Set(list string) error {
	for option := range strings.SplitSeq(list, ",") {
		if err := o.setOne(strings.TrimSpace(option)); err != nil {
			return fmt.Errorf("option %s: %w", option, err)
		}
	}
	return nil
}

func (o *Options) setOne(option string) error {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case "rw":
		if o.Writing == nil {
			return errors.New("a mount without Writing is read-only; use ro")
		}
		return nil
	case "ro":
		if o.Writing != nil {
			return errors.New("a mount with Writing is writable; use rw")
		}
		return nil
	case "dev", "suid", "atime", "relatime", "strictatime", "diratime", "sync", "remount", "bind":
		return errors.New("not possible here")
	case "", "defaults", "default_permissions", "noatime", "nodiratime", "nodev", "nosuid", "async", "exec",
		"auto", "noauto", "user", "nouser", "users", "group", "owner", "nofail", "_netdev", "comment", "norelatime":
		return nil // the default here, or meant for the caller
	case "noexec":
		o.NoExec = true
		return nil
	case "allow_other":
		o.AllowOther = true
		return nil
	case "open":
		o.Open = Mode(value)
		return nil
	case "fsname":
		o.FSName = value
		return nil
	case "uid", "gid", "umask", "fmask", "dmask":
		return o.setNumber(name, value)
	}
	if strings.HasPrefix(name, "x-") {
		return nil
	}
	return errors.New("unknown")
}

func (o *Options) setNumber(name, value string) error {
	base := 10
	if strings.HasSuffix(name, "mask") {
		base = 8
	}
	n, err := strconv.ParseUint(value, base, 32)
	switch {
	case err != nil:
		return errors.New("needs a number")
	case base == 8 && n > 0o777:
		return errors.New("is no mask of permissions")
	}
	v := uint32(n)
	switch name {
	case "uid":
		o.UID = v
	case "gid":
		o.GID = v
	case "umask":
		o.FileMode, o.DirMode = 0o777&^v, 0o777&^v
	case "fmask":
		o.FileMode = 0o777 &^ v
	case "dmask":
		o.DirMode = 0o777 &^ v
	}
	return nil
}
