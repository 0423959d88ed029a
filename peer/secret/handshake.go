package secret

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// These say what is wrong between two nodes. Both sides get the same one.
var (
	// ErrKey means that one node did not prove to the other that it has the key. It is
	// certain unless only the peer says so.
	ErrKey = errors.New("the cluster keys differ (compare the fingerprints of both nodes, and give both the same key)")
	// ErrNoKey means that one node has a key and the other has none.
	ErrNoKey = errors.New("one node has a cluster key and the other has none (give both the same key)")
	// ErrName means that the clusters' names differ. The keys may differ, too.
	ErrName = errors.New("the cluster names differ (give both nodes the same, or do not join them)")
	// ErrEncryption means that one node encrypts and the other does not.
	ErrEncryption = errors.New("encryption is on at one node and off at the other (set cluster.encryption alike)")
	// ErrVersion means that they speak different versions of the handshake.
	ErrVersion = errors.New("the nodes speak different versions of the handshake (run one version of Hearth)")
	// ErrNotHearth means that the peer does not speak as a node does.
	ErrNotHearth = errors.New("the peer is no Hearth node")
	// ErrOtherNode means that the peer is a node of the cluster, but not the one asked
	// for.
	ErrOtherNode = errors.New("another node answers at this address")
	// ErrSelf means that the peer has this node's id.
	ErrSelf = errors.New("the peer is this node itself, or has a copy of its cache directory")
	// ErrNotLoopback means that a node without a key was to talk over a network.
	ErrNotLoopback = errors.New("without a cluster key nodes talk over loopback only (give all nodes a key)")

	errSlow = fmt.Errorf("the handshake took more than 10 s: %w", os.ErrDeadlineExceeded)
)

// Refused reports whether an error of a handshake says what is wrong between two nodes.
// Other errors mean that the connection broke.
func Refused(err error) bool {
	for _, why := range []error{ErrKey, ErrNoKey, ErrName, ErrEncryption, ErrVersion, ErrNotHearth, ErrOtherNode, ErrSelf, ErrNotLoopback} {
		if errors.Is(err, why) {
			return true
		}
	}
	return false
}

// maxHandshake bounds the wait for a peer that says nothing, if the caller sets no bound.
// Three round trips and a millisecond of work come nowhere near it.
const maxHandshake = 10 * time.Second

// Client shakes hands with the node that has accepted conn, before anything else is sent.
// It returns the connection to use from then on, and the peer's node id. If want is not
// "", the peer must be that node. Client ends with ctx, or after Options.Within. On an
// error conn is closed; otherwise it has no deadline. The errors are those above, or say
// that the connection broke.
func (i *Identity) Client(ctx context.Context, conn net.Conn, want string) (net.Conn, string, error) {
	return i.within(ctx, conn, func() (net.Conn, string, error) {
		talk, id, err := i.call(conn)
		if err == nil && id != i.id && want != "" && id != want {
			err = fmt.Errorf("%w: it is node %s, and %s was asked for", ErrOtherNode, id, want)
		}
		return talk, id, err
	})
}

// Server is the other end of Client, for a connection that was accepted.
func (i *Identity) Server(ctx context.Context, conn net.Conn) (net.Conn, string, error) {
	return i.within(ctx, conn, func() (net.Conn, string, error) { return i.answer(conn) })
}

// within bounds a handshake, and closes the connection if that fails.
func (i *Identity) within(ctx context.Context, conn net.Conn, shake func() (net.Conn, string, error)) (net.Conn, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, i.patience, errSlow)
	defer cancel()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	talk, id, err := shake()
	err = i.explain(err)
	late := !stop()
	if late {
		<-ended
	}
	switch {
	case late && !isVerdict(err):
		err = fmt.Errorf("wait for the peer's answer: %w", context.Cause(ctx))
	case err == nil && id == i.id:
		err = ErrSelf
	case err == nil:
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, "", fmt.Errorf("authenticate the peer at %s: %w", conn.RemoteAddr(), err)
	}
	return talk, id, nil
}

// call is the client's part.
func (i *Identity) call(conn net.Conn) (net.Conn, string, error) {
	mine := i.greet()
	if err := send(conn, clientGreeting, mine); err != nil {
		return nil, "", err
	}
	m, err := receive(conn)
	if err != nil {
		return nil, "", err
	}
	peer, err := i.meet(m, serverGreeting)
	if err != nil {
		return nil, "", err
	}
	switch i.mode {
	case encrypted:
		under := i.under(conn)
		return i.encrypt(&sealed{tls.Client(under, i.client), under}, func(t net.Conn) error {
			_, err := receiveBody(t, welcome, 0)
			return err
		})
	case plain:
		if err := send(conn, proof, i.proof(clientGreeting, mine, m.body)); err != nil {
			return nil, "", err
		}
		return conn, peer.id, i.verify(conn, serverGreeting, mine, m.body)
	}
	return conn, peer.id, overLoopback(conn)
}

// answer is the server's part. It answers every greeting with its own, so that both sides
// know what differs.
func (i *Identity) answer(conn net.Conn) (net.Conn, string, error) {
	m, err := receive(conn)
	if err != nil {
		return nil, "", err
	}
	mine := i.greet()
	if err := send(conn, serverGreeting, mine); err != nil {
		return nil, "", err
	}
	peer, err := i.meet(m, clientGreeting)
	if err != nil {
		return nil, "", err
	}
	switch i.mode {
	case encrypted:
		under := i.under(conn)
		return i.encrypt(&sealed{tls.Server(under, i.server), under}, func(t net.Conn) error { return send(t, welcome, nil) })
	case plain:
		if err := i.verify(conn, clientGreeting, m.body, mine); err != nil {
			if errors.Is(err, ErrKey) {
				_ = send(conn, refusal, nil)
			}
			return nil, "", err
		}
		return conn, peer.id, send(conn, proof, i.proof(serverGreeting, m.body, mine))
	}
	return conn, peer.id, overLoopback(conn)
}

// overLoopback refuses a node without a key that is not on loopback. It is called after
// the greetings, so that a node with a key learns that the other lacks one.
func overLoopback(conn net.Conn) error {
	for _, a := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		if a.Network() == "unix" {
			continue
		}
		if at, err := netip.ParseAddrPort(a.String()); err != nil || !at.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("%w: %s is not loopback", ErrNotLoopback, a)
		}
	}
	return nil
}

func (i *Identity) greet() []byte {
	g := greeting{mode: i.mode, tag: i.tag, id: i.id}
	_, _ = rand.Read(g.nonce[:]) // does not fail
	return g.encode()
}

// meet compares the peer's greeting with this node.
func (i *Identity) meet(m message, due kind) (greeting, error) {
	if m.version != version {
		return greeting{}, fmt.Errorf("%w: %d there, %d here", ErrVersion, m.version, version)
	}
	if m.kind != due {
		return greeting{}, fmt.Errorf("%w: it sent message %d, and %d was due", ErrNotHearth, m.kind, due)
	}
	peer, err := parseGreeting(m.body)
	switch {
	case err != nil:
		return greeting{}, err
	case peer.tag != i.tag:
		return greeting{}, fmt.Errorf("%w: %q here", ErrName, i.name)
	case peer.mode == i.mode:
		return peer, nil
	case peer.mode == keyless:
		return greeting{}, fmt.Errorf("%w: none there", ErrNoKey)
	case i.mode == keyless:
		return greeting{}, fmt.Errorf("%w: none here", ErrNoKey)
	case peer.mode == plain:
		return greeting{}, fmt.Errorf("%w: off there, on here", ErrEncryption)
	}
	return greeting{}, fmt.Errorf("%w: on there, off here", ErrEncryption)
}

// under is the layer below TLS of a connection.
func (i *Identity) under(conn net.Conn) *records { return &records{Conn: conn, spare: &i.spare} }

// encrypt does the handshake of TLS, and what comes after it.
func (i *Identity) encrypt(t *sealed, after func(net.Conn) error) (net.Conn, string, error) {
	if err := t.Handshake(); err != nil {
		return nil, "", err
	}
	if err := after(t); err != nil {
		return nil, "", err
	}
	id, err := PeerID(t.ConnectionState())
	return t, id, err
}

// explain turns an error of TLS into one of those above, unless the connection just
// broke.
func (i *Identity) explain(err error) error {
	if err == nil || isVerdict(err) {
		return err
	}
	var op *net.OpError
	var header tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	isOp := errors.As(err, &op)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the peer ended the connection before the handshake was done (it stops, or is no Hearth node): %w", io.ErrUnexpectedEOF)
	case i.mode != encrypted, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrClosedPipe),
		isOp && op.Op != "remote error" && op.Op != "local error": // these two are alerts of TLS
		return fmt.Errorf("the handshake was broken off: %w", err)
	case errors.As(err, &header):
		return fmt.Errorf("%w: %w", ErrNotHearth, err)
	case isOp && op.Op == "remote error":
		return fmt.Errorf("%w: the peer refused this node's certificate (%w); the fingerprint here is %s", ErrKey, op.Err, i.cluster.fingerprint)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: the peer's certificate was made with another key; the fingerprint here is %s", ErrKey, i.cluster.fingerprint)
	}
	return fmt.Errorf("%w: %w; the fingerprint here is %s", ErrKey, err, i.cluster.fingerprint)
}

// isVerdict reports whether an error says something about the peer. Other errors mean
// that the connection broke.
func isVerdict(err error) bool {
	for _, known := range []error{ErrKey, ErrNoKey, ErrName, ErrEncryption, ErrVersion, ErrNotHearth, ErrOtherNode, ErrNotLoopback} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// proof proves, to a node that has the key, that its maker has it, too. It holds for this
// connection and role only, since the greetings have nonces.
func (i *Identity) proof(role kind, client, server []byte) []byte {
	h := hmac.New(sha256.New, i.cluster.keys().plain)
	for _, part := range [][]byte{{byte(role)}, []byte(i.name), client, server} {
		_, _ = h.Write(binary.BigEndian.AppendUint16(nil, uint16(len(part))))
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}

func (i *Identity) verify(conn net.Conn, role kind, client, server []byte) error {
	got, err := receiveBody(conn, proof, proofBytes)
	if errors.Is(err, ErrKey) {
		return fmt.Errorf("%w; the fingerprint here is %s", err, i.cluster.fingerprint)
	}
	if err != nil {
		return err
	}
	if !hmac.Equal(got, i.proof(role, client, server)) {
		return fmt.Errorf("%w: the peer has another one; the fingerprint here is %s", ErrKey, i.cluster.fingerprint)
	}
	return nil
}
