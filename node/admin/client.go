package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/fsck"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/warmup"
)

// DefaultSocket returns the path of this machine's admin socket: the system's when root runs the node, else the
// user's own.
func DefaultSocket() string {
	if os.Geteuid() == 0 {
		return "/run/hearth/hearth.sock"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "hearth", "hearth.sock")
	}
	return filepath.Join(os.TempDir(), "hearth-"+strconv.Itoa(os.Geteuid()), "hearth.sock")
}

// errorTrailer and kindTrailer are HTTP trailers. They carry the error of an answer whose first bytes were
// already sent.
const (
	errorTrailer = "Hearth-Error"
	kindTrailer  = "Hearth-Kind"
)

// Client asks a node through its admin API.
type Client struct {
	socket string
	http   *http.Client
	// Waits is called when the Client begins to wait for an answer. The func that it returns is called when the
	// answer begins to arrive. nil means that nobody is told.
	Waits func() (ended func())
}

// Dial returns a Client of the node at address: a path, unix://path, or "" for
// DefaultSocket. It does not connect yet.
func Dial(address string) (*Client, error) {
	socket := strings.TrimPrefix(address, "unix://")
	if strings.Contains(socket, "://") {
		return nil, &Error{Kind: KindUsage, Message: fmt.Sprintf("node address %q: only unix://PATH is in this version", address)}
	}
	if socket == "" {
		socket = DefaultSocket()
	}
	if err := Trusted(filepath.Dir(socket)); err != nil {
		return nil, &Error{Kind: KindOf(err), Message: err.Error()}
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, socket)
	}}
	return &Client{socket: socket, http: &http.Client{Transport: transport}}, nil
}

// handing returns a Client of the same node that sends a descriptor with its request.
func (c *Client) handing(f *os.File) *Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return DialHanding(ctx, c.socket, f)
	}}
	return &Client{socket: c.socket, http: &http.Client{Transport: transport}}
}

// Over returns a Client that connects by dial. It serves a client inside the node's process.
func Over(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Client {
	return &Client{socket: "(in process)", http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Socket returns the path of the socket that the Client connects to.
func (c *Client) Socket() string { return c.socket }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks for the status document.
func (c *Client) Status(ctx context.Context) (*status.Status, error) {
	s := &status.Status{}
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, s)
}

// Ring asks for the ring as the node sees it, and for what each member says of itself.
func (c *Client) Ring(ctx context.Context) (*status.RingStatus, error) {
	s := &status.RingStatus{}
	return s, c.call(ctx, http.MethodGet, "/v1/ring", nil, s)
}

// Owners asks who owns the parts of a file.
func (c *Client) Owners(ctx context.Context, path string) (*status.Owned, error) {
	o := &status.Owned{}
	return o, c.call(ctx, http.MethodGet, "/v1/ring/owners?"+url.Values{"path": {path}}.Encode(), nil, o)
}

// Volumes asks for the volumes of the node.
func (c *Client) Volumes(ctx context.Context) (all []status.Volume, err error) {
	return all, c.call(ctx, http.MethodGet, "/v1/volumes", nil, &all)
}

// Attach has the node attach a volume, and returns once it is attached, or with the reason why it cannot be.
func (c *Client) Attach(ctx context.Context, v config.Volume) (*status.Volume, error) {
	x := &status.Volume{}
	return x, c.call(ctx, http.MethodPost, "/v1/volumes", v, x)
}

// Detach has the node let go of a volume, by its address, its label, or the beginning of its id.
func (c *Client) Detach(ctx context.Context, name string) (*status.Volume, error) {
	x := &status.Volume{}
	return x, c.call(ctx, http.MethodDelete, "/v1/volumes?"+url.Values{"name": {name}}.Encode(), nil, x)
}

// Mount asks for a mount and returns once the mount answers.
func (c *Client) Mount(ctx context.Context, r MountRequest) (*status.Mount, error) {
	m := &status.Mount{}
	if r.At != nil {
		r.Handed = true
		c = c.handing(r.At)
		defer c.Close()
	}
	return m, c.call(ctx, http.MethodPost, "/v1/mounts", r, m)
}

// Unmount takes a mount away. lazy detaches the mount even if it is in use.
func (c *Client) Unmount(ctx context.Context, dir string, lazy bool) error {
	q := url.Values{"dir": {dir}, "lazy": {strconv.FormatBool(lazy)}}
	return c.call(ctx, http.MethodDelete, "/v1/mounts?"+q.Encode(), nil, nil)
}

// WaitUnmounted returns once the mount at dir is gone, whoever took it away.
func (c *Client) WaitUnmounted(ctx context.Context, dir string) error {
	q := url.Values{"dir": {dir}}
	return c.call(ctx, http.MethodGet, "/v1/mounts/wait?"+q.Encode(), nil, nil)
}

// Upgrade has a program take the node's place. The node's answer may be lost as it ends.
func (c *Client) Upgrade(ctx context.Context, program string) error {
	q := url.Values{"program": {program}}
	return c.call(ctx, http.MethodPost, "/v1/upgrade?"+q.Encode(), nil, nil)
}

// Stat asks what the node knows about a path.
func (c *Client) Stat(ctx context.Context, path string) (*Stat, error) {
	s := &Stat{}
	err := c.call(ctx, http.MethodGet, "/v1/stat?"+url.Values{"path": {path}}.Encode(), nil, s)
	s.restore()
	return s, err
}

// List calls each for every name below path, as the names arrive. It returns how many keys there have no name.
func (c *Client) List(ctx context.Context, path string, recursive bool, each func(Entry) error) (hidden int64, err error) {
	q := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	body, err := c.do(ctx, http.MethodGet, "/v1/ls?"+q.Encode(), nil)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for {
		var line struct {
			Entry
			*Error
			listEnd
		}
		switch err := d.Decode(&line); {
		case err != nil:
			return 0, fmt.Errorf("list %s: the answer broke off: %w", path, err)
		case line.Error != nil:
			return 0, line.Error
		case line.End:
			return line.Hidden, nil
		}
		line.restore()
		if err := each(line.Entry); err != nil {
			return 0, err
		}
	}
}

// Usage asks for the sum of sizes below path.
func (c *Client) Usage(ctx context.Context, path string) (*Usage, error) {
	u := &Usage{}
	return u, c.call(ctx, http.MethodGet, "/v1/du?"+url.Values{"path": {path}}.Encode(), nil, u)
}

// Refresh has the node ask its origin again for what path names.
func (c *Client) Refresh(ctx context.Context, path string) (*Refreshed, error) {
	r := &Refreshed{}
	return r, c.call(ctx, http.MethodPost, "/v1/refresh?"+url.Values{"path": {path}}.Encode(), nil, r)
}

// Fsck has the node check one of its cache directories, and calls tell with what the check finds.
func (c *Client) Fsck(ctx context.Context, dir string, repair bool, tell func(fsck.Event)) error {
	q := url.Values{"dir": {dir}, "repair": {strconv.FormatBool(repair)}}
	body, err := c.do(ctx, http.MethodPost, "/v1/fsck?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return fsck.Receive(ctx, body, tell)
}

// Explain asks where the bytes of the file at path are, and what a read at off would do.
func (c *Client) Explain(ctx context.Context, path string, off int64) (*status.Explanation, error) {
	e := &status.Explanation{}
	q := url.Values{"path": {path}, "off": {strconv.FormatInt(off, 10)}}
	return e, c.call(ctx, http.MethodGet, "/v1/explain?"+q.Encode(), nil, e)
}

// Jobs asks about warm-ups.
func (c *Client) Jobs() *Jobs { return &Jobs{c.send} }

// Pins lists what is pinned.
func (c *Client) Pins(ctx context.Context) (all []namespace.PinView, err error) {
	return all, c.call(ctx, http.MethodGet, "/v1/pins", nil, &all)
}

// Unpin ends the pins of paths, and returns the paths whose pins ended. Without paths it ends all pins that
// the caller may end.
func (c *Client) Unpin(ctx context.Context, paths []string) (ended []string, err error) {
	return ended, c.call(ctx, http.MethodDelete, "/v1/pins?"+url.Values{"path": paths}.Encode(), nil, &ended)
}

// Drafts lists the files that were written and are not in their bucket.
func (c *Client) Drafts(ctx context.Context) (all []status.Draft, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/drafts", nil, &all)
	for i := range all {
		all[i].Restore()
	}
	return all, err
}

// PublishDrafts publishes the drafts at and below paths, and returns once that is done or has failed. Without paths it publishes
// all that nobody has open and that the caller may publish.
func (c *Client) PublishDrafts(ctx context.Context, paths []string) (all []PublishedDraft, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/drafts/publish?"+url.Values{"path": paths}.Encode(), nil, &all)
	for i := range all {
		all[i].Restore()
	}
	return all, err
}

// DropDraft deletes a draft with its bytes, and returns what it was. force drops one that is open or being published, too.
func (c *Client) DropDraft(ctx context.Context, path string, force bool) (*status.Draft, error) {
	d := &status.Draft{}
	q := url.Values{"path": {path}, "force": {strconv.FormatBool(force)}}
	err := c.call(ctx, http.MethodDelete, "/v1/drafts?"+q.Encode(), nil, d)
	d.Restore()
	return d, err
}

// Evict drops what the tiers hold of the files at and below paths. With dry it only counts them: the files of
// which something is held, and the bytes held.
func (c *Client) Evict(ctx context.Context, paths []string, dry bool) (t warmup.Tally, err error) {
	q := url.Values{"path": paths, "dry_run": {strconv.FormatBool(dry)}}
	return t, c.call(ctx, http.MethodPost, "/v1/evict?"+q.Encode(), nil, &t)
}

// Cat writes bytes [off, off+n) of the file at path to w. A negative n means to the end of the file.
func (c *Client) Cat(ctx context.Context, path string, off, n int64, w io.Writer) error {
	q := url.Values{"path": {path}, "off": {strconv.FormatInt(off, 10)}, "n": {strconv.FormatInt(n, 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hearth/v1/cat?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	to := &taker{w: w}
	got, err := io.Copy(to, resp.Body)
	if to.err != nil {
		return to.err // the write failed, not the read
	}
	if err != nil {
		return fmt.Errorf("read %s after %d bytes: %w", path, got, err)
	}
	if why := resp.Trailer.Get(errorTrailer); why != "" {
		return &Error{Kind: Kind(resp.Trailer.Get(kindTrailer)), Message: why}
	}
	return nil
}

func (c *Client) call(ctx context.Context, method, target string, in, out any) error {
	body, err := c.do(ctx, method, target, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, body)
	} else {
		err = json.NewDecoder(body).Decode(out)
	}
	if err != nil {
		return c.unreachable(ctx, fmt.Errorf("read the node's answer: %w", err))
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, target string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("ask the node: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://hearth"+target, body)
	if err != nil {
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// send returns the answer if it is one, else the node's error.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	ended := func() {}
	if c.Waits != nil && !strings.HasSuffix(req.URL.Path, "/wait") { // a mount may stand for days
		ended = c.Waits()
	}
	resp, err := c.http.Do(req)
	ended()
	if err != nil {
		return nil, c.unreachable(req.Context(), err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	e := &Error{}
	if err := json.NewDecoder(resp.Body).Decode(e); err != nil || e.Message == "" {
		return nil, &Error{Kind: KindFailed, Message: "the node answered " + resp.Status}
	}
	return nil, e
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	why := "no node answers at " + c.socket
	if errors.Is(err, os.ErrPermission) {
		return &Error{Kind: KindRefused, Message: "not allowed to ask the node at " + c.socket +
			": become root or a member of the group hearth"}
	}
	if !errors.Is(err, os.ErrNotExist) && !deserted(err) {
		why += " (" + err.Error() + ")"
	}
	return &Error{Kind: KindUnreachable, Message: why}
}

// taker is a Writer that keeps the error of a failed write.
type taker struct {
	w   io.Writer
	err error
}

func (t *taker) Write(p []byte) (n int, err error) {
	n, t.err = t.w.Write(p)
	return n, t.err
}

// HTTPStatus returns the HTTP status code of a Kind, for people who use curl.
func HTTPStatus(k Kind) int {
	switch k {
	case KindUsage:
		return http.StatusBadRequest
	case KindNotFound, KindNoLink:
		return http.StatusNotFound
	case KindRefused:
		return http.StatusForbidden
	case KindTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}
