package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/volume/nvmetcp"
)

const (
	// Scheme begins the address of a namespace that is reached over NVMe/TCP.
	Scheme = "nvme+tcp://"
	// discoveryPort is the port of discovery controllers that IANA has assigned.
	discoveryPort = "8009"
	// noTLS is what to do instead.
	noTLS = "TLS is not spoken here: have a tunnel (WireGuard, stunnel) carry the connection"
)

// Address says where a volume's device is. The text of the two kinds is:
//
//	/dev/nvme1n1 or /path/of/a/file
//	nvme+tcp://HOST[:PORT][,HOST[:PORT]...]/NQN[?KEY=VALUE[&KEY=VALUE...]]
//
// With port 8009 the portals are asked of a discovery controller. The keys are nsid, queues, depth,
// header_digest, data_digest, flow_control (on or off), keep_alive, timeout (as 5s) and host_nqn.
type Address struct {
	text string
	tcp  nvmetcp.Options // without portals: a file
}

// Access is what a target wants to know of this host, and what this host wants to know of the connection.
type Access struct {
	// Secret is this host's key for DH-HMAC-CHAP, as "DHHC-1:...:". "" means none.
	Secret string
	// HostID identifies this host. Zero means a random one each time.
	HostID [16]byte
	// Events are called when the connection changes.
	Events nvmetcp.Events
}

// Opened is a Device that its opener closes.
type Opened interface {
	Device
	io.Closer
}

// ParseAddress reads the text of an Address. An error says what is wrong with it, and how it should be. It repeats
// neither a password nor what stands behind the question mark, which may be a secret.
func ParseAddress(text string) (Address, error) {
	a := Address{text: text}
	shown, query, _ := strings.Cut(text, "?")
	scheme, rest, isURL := strings.Cut(shown, "://")
	hosts, nqn, ok := strings.Cut(rest, "/")
	switch {
	case isURL && strings.Contains(hosts, "@"):
		return a, fmt.Errorf("a volume's address has no user and no password in it: it is %sHOST:PORT/NQN; "+
			"a key that the target wants stands in a file (secret_file)", Scheme)
	case isURL && scheme+"://" == Scheme:
	case isURL:
		hint := ""
		if strings.Contains(text, "tls") {
			hint = "; " + noTLS
		}
		return a, fmt.Errorf("%q is no volume's address: a path, or %sHOST:PORT/NQN%s", shown, Scheme, hint)
	case !strings.HasPrefix(text, "/"):
		return a, fmt.Errorf("%q is no volume's address: a path from the root on, or %sHOST:PORT/NQN", text, Scheme)
	default:
		return a, nil
	}
	if !ok || hosts == "" || nqn == "" {
		return a, fmt.Errorf("%q names no target: %sHOST:PORT/NQN", shown, Scheme)
	}
	a.tcp.Portals, a.tcp.SubsystemNQN = strings.Split(hosts, ","), nqn
	keys, err := url.ParseQuery(query)
	if err != nil {
		return a, fmt.Errorf("%q: what stands behind the question mark: %w", shown, err)
	}
	for key, values := range keys {
		if err := a.set(key, values[len(values)-1]); err != nil {
			return a, fmt.Errorf("%q: %s: %w", shown, key, err)
		}
	}
	if err := a.tcp.Check(); err != nil {
		return a, fmt.Errorf("%q: %w", shown, err)
	}
	return a, nil
}

// set sets one key of an address.
func (a *Address) set(key, value string) (err error) {
	o := &a.tcp
	switch key {
	case "nsid":
		var n uint64
		n, err = strconv.ParseUint(value, 10, 32)
		if o.NSID = uint32(n); err == nil && n == 0 {
			err = errors.New("namespaces are numbered from 1")
		}
	case "queues":
		o.Queues, err = strconv.Atoi(value)
	case "depth":
		o.Depth, err = strconv.Atoi(value)
	case "header_digest":
		o.HeaderDigest, err = onOff(value)
	case "data_digest":
		o.DataDigest, err = onOff(value)
	case "flow_control":
		o.FlowControl, err = onOff(value)
	case "keep_alive":
		o.KeepAlive, err = time.ParseDuration(value)
	case "timeout":
		o.Timeout, err = time.ParseDuration(value)
	case "host_nqn":
		o.HostNQN = value
	case "secret":
		err = errors.New("a secret stands in a file of its own (secret_file), never in an address")
	default:
		if strings.Contains(strings.ToLower(key), "tls") {
			return errors.New(noTLS)
		}
		err = errors.New("there are nsid, queues, depth, header_digest, data_digest, flow_control, keep_alive, timeout and host_nqn")
	}
	return err
}

func onOff(value string) (bool, error) {
	switch value {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither on nor off", value)
}

// String is the text that was parsed.
func (a Address) String() string { return a.text }

// Remote reports whether the device is a namespace over NVMe/TCP.
func (a Address) Remote() bool { return len(a.tcp.Portals) > 0 }

// Digests reports whether PDU headers and data have checksums (CRC32C) on their way to the target.
func (a Address) Digests() (header, data bool) { return a.tcp.HeaderDigest, a.tcp.DataDigest }

// ReadSecret reads a key for DH-HMAC-CHAP from a file that nobody but its owner and its group may read.
func ReadSecret(file string) (string, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", file)
	case info.Mode().Perm()&0o027 != 0:
		err = fmt.Errorf("%s has mode %04o, so that others may read or change it (chmod 600 %s)", file, info.Mode().Perm(), file)
	default:
		var text []byte
		if text, err = os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(text)), nil
		}
	}
	return "", fmt.Errorf("read the secret of a volume: %w", err)
}

// Open opens the device. ctx bounds the opening alone.
func (a Address) Open(ctx context.Context, with Access) (Opened, error) {
	if !a.Remote() {
		return openFile(ctx, a.text)
	}
	o := a.tcp
	o.Secret, o.HostID, o.Events = with.Secret, with.HostID, with.Events
	var err error
	if o.Portals, err = a.portals(ctx, o); err != nil {
		return nil, err
	}
	n, err := nvmetcp.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("reach volume %s: %w", a.text, err)
	}
	return Namespace{n}, nil
}

// openFile is OpenFile for who must not wait for a file system that does not answer.
func openFile(ctx context.Context, name string) (Opened, error) {
	type result struct {
		*File
		error
	}
	done := make(chan result, 1)
	go func() {
		f, err := OpenFile(name)
		done <- result{f, err}
	}()
	select {
	case r := <-done:
		if r.error != nil {
			return nil, r.error
		}
		return r.File, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.error == nil {
				_ = r.Close() // nothing was written to it
			}
		}()
		return nil, fmt.Errorf("open volume %s: %w", name, context.Cause(ctx))
	}
}

// portals asks discovery controllers for the portals of the subsystem. Others are as the address names them.
func (a Address) portals(ctx context.Context, o nvmetcp.Options) (all []string, err error) {
	for _, p := range o.Portals {
		if _, port, _ := net.SplitHostPort(p); port != discoveryPort {
			all = append(all, p)
			continue
		}
		one := o
		one.Portals = []string{p}
		found, asked := nvmetcp.Discover(ctx, one)
		if asked != nil {
			err = asked
			continue
		}
		err = fmt.Errorf("the discovery controller %s does not know the subsystem %s, or not for this host", p, o.SubsystemNQN)
		all = append(all, portalsOf(found, o.SubsystemNQN)...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("reach volume %s: %w", a.text, err)
	}
	return all, nil
}

// portalsOf are the portals of a subsystem, each once. A target behind a relay is reached at the host that was asked
// alone, and one that another controller knows of at the address in its record.
func portalsOf(found []nvmetcp.Subsystem, nqn string) (all []string) {
	var told []string
	for _, s := range found {
		if s.NQN != nqn {
			continue
		}
		if !slices.Contains(all, s.Portal) {
			all = append(all, s.Portal)
		}
		if at, err := netip.ParseAddrPort(s.Advertised); err == nil && !at.Addr().IsUnspecified() && !slices.Contains(told, s.Advertised) {
			told = append(told, s.Advertised)
		}
	}
	for _, portal := range told {
		if !slices.Contains(all, portal) {
			all = append(all, portal)
		}
	}
	return all
}

// Namespace is a Device over NVMe/TCP.
type Namespace struct{ *nvmetcp.Namespace }

// ReadOnly reports whether the target protects the namespace from writes.
func (n Namespace) ReadOnly() bool { return n.Stats().ReadOnly }

// WriteAt is nvmetcp's. The error is ErrReadOnly if the target protects the namespace.
func (n Namespace) WriteAt(p []byte, off int64) (int, error) {
	done, err := n.Namespace.WriteAt(p, off)
	if errors.Is(err, nvmetcp.ErrNamespace) && n.Stats().ReadOnly {
		err = fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return done, err
}
