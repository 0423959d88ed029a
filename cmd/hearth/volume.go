package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/volume"
)

func volumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume [list|format|stat|check|attach|detach]", GroupID: "admin",
		Short: "Make, look at and check the volumes that keep blocks behind the cache",
		Long: "Work with volumes: files, block devices, or namespaces of NVMe/TCP targets that several nodes share\n" +
			"(docs/volumes.md). A DEVICE is a path, or nvme+tcp://HOST[:PORT]/NQN. format, stat and check go to the\n" +
			"device themselves and need no running node; list, attach and detach ask this machine's node.",
		Example: "  hearth volume format --yes --size 10GiB /srv/volume\n  hearth volume stat /srv/volume",
		Args:    cobra.ArbitraryArgs,
		RunE:    unknownVerb,
	}
	cmd.AddCommand(volumeFormatCommand(), volumeListCommand(), volumeStatCommand(), volumeCheckCommand(), volumeAttachCommand(), volumeDetachCommand())
	return cmd
}

// volumeDevice is the device that a verb was told to open.
type volumeDevice struct {
	address volume.Address
	secret  string // a file
}

// addDevice gives a verb the flags by which a device is reached.
func addDevice(cmd *cobra.Command) *volumeDevice {
	d := &volumeDevice{}
	cmd.Flags().StringVar(&d.secret, "secret-file", "",
		"`FILE` with this host's key for DH-HMAC-CHAP, for its owner and group alone")
	return d
}

// read takes the argument. A path may be relative.
func (d *volumeDevice) read(text string) (err error) {
	if !strings.Contains(text, "://") {
		if text, err = filepath.Abs(text); err != nil {
			return err
		}
	}
	if d.address, err = volume.ParseAddress(text); err != nil {
		return cli.Usagef("%w", err)
	}
	if d.secret != "" && !d.address.Remote() {
		return cli.Usagef("--secret-file is for a namespace over NVMe/TCP, and %s is a path", text)
	}
	return nil
}

func (d *volumeDevice) open(ctx context.Context) (volume.Opened, error) {
	var with volume.Access
	if d.secret != "" {
		var err error
		if with.Secret, err = volume.ReadSecret(d.secret); err != nil {
			return nil, err
		}
	}
	return d.address.Open(ctx, with)
}

// failed names the device in an error, and gives the error its exit code.
func (d *volumeDevice) failed(verb string, err error) error {
	var said *cli.ExitError
	if err == nil || errors.As(err, &said) {
		return err
	}
	if !strings.Contains(err.Error(), d.address.String()) {
		err = fmt.Errorf("%s %s: %w", verb, d.address, err)
	}
	for _, refused := range []error{volume.ErrTaken, volume.ErrInUse, volume.ErrNewer, volume.ErrReadOnly} {
		if errors.Is(err, refused) {
			return &cli.ExitError{Code: cli.ExitRefused, Err: err}
		}
	}
	if errors.Is(err, volume.ErrNoVolume) {
		return &cli.ExitError{Code: cli.ExitNotFound, Err: err}
	}
	return err
}

// within does what may wait for a device that does not answer. The end of the context ends the wait; what hangs ends
// with the process.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return cli.Because(ctx, err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// volumeWork is what a verb does once its device is known.
type volumeWork func(ctx context.Context, cmd *cobra.Command, s *settings.Settings) error

// volumeVerb makes the RunE of a verb about one device. verb is what it does to the device, in its errors.
func volumeVerb(c *cli.Common, d *volumeDevice, verb string, do volumeWork) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := c.CheckOutput(); err != nil {
			return err
		}
		s, err := settings.Load(cmd)
		if err == nil {
			err = d.read(args[0])
		}
		if err != nil {
			return err
		}
		ctx, stop := c.Context(cmd.Context())
		defer stop()
		return d.failed(verb, within(ctx, func() error { return do(ctx, cmd, s) }))
	}
}

// superblock is what a superblock says.
type superblock struct {
	ID       string `json:"id"`
	Label    string `json:"label"`
	Cluster  string `json:"cluster"`
	Size     int64  `json:"size"`
	Segment  int64  `json:"segment_size"`
	Segments int    `json:"segments"`
	Ranges   int    `json:"ranges"`
	Created  string `json:"created"`
	Format   uint32 `json:"format"`
}

func volumeDoc(i volume.Info) superblock {
	return superblock{ID: hex.EncodeToString(i.ID[:]), Label: i.Label, Cluster: hex.EncodeToString(i.Cluster[:]),
		Size: i.Size, Segment: i.Segment, Segments: i.Segments, Ranges: i.Ranges, Created: cli.Stamp(i.Created), Format: i.Format}
}

// describe says what a device is.
func describe(a volume.Address, d volume.Device) string {
	kind := "a file"
	if a.Remote() {
		kind = "a namespace"
	} else if info, err := os.Stat(a.String()); err == nil && info.Mode()&os.ModeDevice != 0 {
		kind = "a block device"
	}
	return fmt.Sprintf("%s of %s, blocks of %d bytes", kind, cli.Bytes(d.Size()), d.BlockSize())
}

// formatFlags are what format was told, and what it found.
type formatFlags struct {
	*volumeDevice
	size, segment   string
	bytes           int64 // of a file to be made; 0 means that there is something already
	make            bool  // the file is not there
	force, dry, yes bool
	options         volume.FormatOptions
	attached        func(volume.Device) error // refuses what this machine's node has attached
}

func volumeFormatCommand() *cobra.Command {
	f := &formatFlags{}
	cmd := &cobra.Command{
		Use: "format DEVICE", Short: "Make an empty volume on a device, for the nodes of a cluster",
		Long: "Make an empty volume on a file, a block device or a namespace. What lies there is lost. The first\n" +
			"256 KiB and the last MiB are looked at: a volume, a file system, a partition table or anything but\n" +
			"zeros there is refused without --force (exit code 8). What this machine's node has attached is\n" +
			"refused in any case, and so is a file or block device that another process here has open. Whether\n" +
			"nodes elsewhere use a namespace cannot be seen from here: ask them by hearth volume list, and have\n" +
			"all detach it first. On a terminal it asks; elsewhere it wants --yes. With --size a file that is\n" +
			"not there is made, without taking its room at once. The volume belongs to the cluster of the\n" +
			"configuration, by cluster.name and its key: the nodes of others refuse it.",
		Example: "  hearth volume format --yes --size 10GiB /srv/volume\n" +
			"  hearth volume format --yes --label v1 nvme+tcp://10.0.0.5/nqn.2014-08.org.example:v1",
		Args: cli.Exactly("DEVICE"),
	}
	c := cli.AddCommon(cmd)
	cli.AddOutput(cmd, c)
	f.volumeDevice = addDevice(cmd)
	settings.AddFlags(cmd, "cluster")
	s := cmd.Flags()
	s.StringVar(&f.options.Label, "label", "", "`NAME` for people, up to 32 bytes")
	s.StringVar(&f.size, "size", "", "make a file of this `SIZE`, such as 10GiB; one that is there must have it")
	s.StringVar(&f.segment, "segment", "", "`SIZE` of a segment, 4MiB to 1GiB (default: a 4096th of the volume, up to 64MiB)")
	s.BoolVar(&f.force, "force", false, "overwrite what the device holds")
	s.BoolVar(&f.dry, "dry-run", false, "say what would be made, and write nothing")
	s.BoolVar(&f.yes, "yes", false, "do not ask")
	work := func(ctx context.Context, cmd *cobra.Command, s *settings.Settings) (err error) {
		if err := f.read(); err != nil {
			return err
		}
		if f.options.Cluster, err = config.ClusterID(s.Ring); err != nil {
			return cli.Usagef("%w", err)
		}
		f.attached = func(dev volume.Device) error { return attachedHere(ctx, c, s, f.address, dev) }
		return f.format(ctx, c, cmd)
	}
	cmd.RunE = volumeVerb(c, f.volumeDevice, "format", work)
	return cmd
}

// read checks the sizes and what stands at the path.
func (f *formatFlags) read() (err error) {
	f.options.Force = f.force
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"--segment", f.segment, &f.options.Segment}, {"--size", f.size, &f.bytes}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = settings.ParseBytes(size.text); err != nil || *size.to == 0 {
			return cli.Usagef("%s: %q is not a size such as 64MiB", size.flag, size.text)
		}
	}
	path := f.address.String()
	if f.address.Remote() {
		if f.size != "" {
			return cli.Usagef("--size makes a file, and %s is a namespace, which has its size", path)
		}
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.size == "":
		return &cli.ExitError{Code: cli.ExitNotFound,
			Err: fmt.Errorf("%s is not there: name a device, or have a file made with --size 10GiB", path)}
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "/dev/"):
		return cli.Usagef("%s is not there, and a file below /dev lies in memory: make the device, or name another directory",
			path)
	case errors.Is(err, fs.ErrNotExist):
		f.make = true
		return mayMake(path)
	case err != nil || f.size == "":
		return err
	case !info.Mode().IsRegular():
		return cli.Usagef("--size makes a file, and %s is there already and is none: leave --size away", path)
	case info.Size() != f.bytes:
		return refused("%s is there already and has %s, not %s: leave --size away, or take the file away",
			path, cli.Bytes(info.Size()), cli.Bytes(f.bytes))
	}
	return nil
}

// mayMake refuses a file for which there is no directory that this user may write to.
func mayMake(path string) error {
	dir := filepath.Dir(path)
	switch err := unix.Access(dir, unix.W_OK|unix.X_OK); {
	case errors.Is(err, fs.ErrNotExist):
		return &cli.ExitError{Code: cli.ExitNotFound, Err: fmt.Errorf("the directory of %s is not there: mkdir -p %s", path, dir)}
	case err != nil:
		return fmt.Errorf("%s cannot be made: %s: %w; name a file in a directory that you may write to", path, dir, err)
	}
	return nil
}

// askedWithin is how long a node is waited for that may have a device attached.
const askedWithin = 5 * time.Second

// attachedHere refuses a device that this machine's node has attached, by whatever address. A file or a block device
// is locked besides. A volume that the node found gone, or never found, may be formatted: the node waits for that.
// Without an answer nothing is known: no node runs here, or it lets in somebody else.
func attachedHere(ctx context.Context, c *cli.Common, s *settings.Settings, a volume.Address, dev volume.Device) error {
	n, err := dial(c, s)
	if err != nil {
		return nil
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	all, err := n.Volumes(ctx)
	if err != nil {
		return nil
	}
	id := ""
	if info, err := volume.Look(dev); err == nil {
		id = hex.EncodeToString(info.ID[:])
	}
	for _, v := range all {
		inUse := v.ID != "" && v.Away == ""
		if v.ID != "" && v.ID == id || inUse && v.Address == a.String() {
			return refused("format %s: %w: this machine's node has it attached; hearth volume detach %s, here and on all "+
				"other nodes, which cannot be seen from here", a, volume.ErrInUse, v.Address)
		}
	}
	return nil
}

// format says what it will do, asks, and does it.
func (f *formatFlags) format(ctx context.Context, c *cli.Common, cmd *cobra.Command) error {
	dev, p, err := f.plan(ctx)
	if dev != nil {
		defer func() { _ = dev.Close() }() // what was made was flushed
	}
	if err != nil {
		return err
	}
	say := func(string, ...any) {}
	if c.Output == "table" {
		say = c.Printer(cli.Out(cmd))
	}
	p.print(say, f.address.String())
	if !f.dry {
		if err := f.agreed(); err != nil {
			return err
		}
		if f.make {
			if dev, err = f.create(ctx); err != nil {
				return err
			}
			defer func() { _ = dev.Close() }() // as above
		}
		if p.volume, err = volume.MakeVolume(dev, f.options); err != nil {
			return err
		}
		say("formatted: volume %x", p.volume.ID)
	}
	if c.Output == "table" {
		return nil
	}
	return c.PrintJSON(cli.Out(cmd), formatted{f.address.String(), p.held, !f.dry, volumeDoc(p.volume)})
}

// formatPlan is what would be done.
type formatPlan struct {
	device, held string // what it is, and what it holds
	volume       volume.Info
}

// plan opens the device, if there is one, and looks whether it may be formatted.
func (f *formatFlags) plan(ctx context.Context) (dev volume.Opened, p formatPlan, err error) {
	if f.make {
		p.device = fmt.Sprintf("a file of %s, which is made", cli.Bytes(f.bytes))
		if p.volume, err = volume.Plan(f.bytes, f.options); err != nil {
			err = cli.Usagef("%w", err)
		}
		return nil, p, err
	}
	if dev, err = f.open(ctx); err != nil {
		return nil, p, err
	}
	if err := f.attached(dev); err != nil {
		return dev, p, err
	}
	o := f.options
	o.DryRun = true
	if p.volume, err = volume.MakeVolume(dev, o); err != nil {
		return dev, p, err
	}
	p.device = describe(f.address, dev)
	if p.held, err = volume.Holds(dev); err != nil { // with --force
		p.held = "what cannot be read (" + err.Error() + ")"
	}
	return dev, p, nil
}

// agreed asks whether to go on.
func (f *formatFlags) agreed() error {
	switch {
	case f.yes:
		return nil
	case !cli.IsTerminal(os.Stdin):
		return refused("%s was not formatted: nobody can be asked here; --yes says that it may be", f.address)
	case !agreed(fmt.Sprintf("format %s?", f.address)):
		return refused("nothing was formatted")
	}
	return nil
}

func refused(format string, args ...any) error {
	return &cli.ExitError{Code: cli.ExitRefused, Err: fmt.Errorf(format, args...)}
}

// formatted is what format says to programs.
type formatted struct {
	Device    string     `json:"device"`
	Held      string     `json:"held,omitempty"` // what is lost
	Formatted bool       `json:"formatted"`
	Volume    superblock `json:"volume"`
}

// print says what will be done.
func (p *formatPlan) print(say func(string, ...any), address string) {
	say("device   %s: %s", address, p.device)
	if p.held != "" {
		say("holds    %s, which is lost", p.held)
	}
	v, label := &p.volume, ""
	if v.Label != "" {
		label = fmt.Sprintf(", label %q", v.Label)
	}
	say("volume   %s: %s of %s in %s%s", cli.Bytes(v.Size), cli.Count(v.Segments, "segment"), cli.Bytes(v.Segment),
		cli.Count(v.Ranges, "range"), label)
	say("cluster  %x", v.Cluster[:4])
}

// create makes the file and opens it.
func (f *formatFlags) create(ctx context.Context) (volume.Opened, error) {
	path := f.address.String()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(file.Truncate(f.bytes), file.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return f.open(ctx)
}
