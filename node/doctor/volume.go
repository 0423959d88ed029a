package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/volume"
)

// shared is a volume that is checked.
type shared struct {
	config.Volume
	ring config.Membership
}

// volumeFacts are what a look at a volume found. What failed ends the look.
type volumeFacts struct {
	opened  error
	took    time.Duration // to open it
	remote  string        // the connection in words; "" for a file or a block device
	digests string
	most    int // bytes of one command; 0: no bound
	block   int // bytes
	locked  bool
	info    volume.Info
	looked  error
	cluster [16]byte
	reads   []time.Duration // of 4 KiB, sorted
	read    error
}

const (
	// tries is how many reads of 4 KiB are timed.
	tries = 32
	// slowVolume is the time of a read from which on a volume is hardly faster than a bucket.
	slowVolume = 10 * time.Millisecond
)

// look reaches the device and reads from it. It writes nothing.
func (x shared) look(ctx context.Context, tell func(...Finding)) { tell(x.facts(ctx).judge(x.URL)...) }

func (x shared) facts(ctx context.Context) (f volumeFacts) {
	address, err := volume.ParseAddress(x.URL)
	if err == nil {
		f.cluster, err = config.ClusterID(x.ring)
	}
	if err != nil {
		f.opened = err
		return f
	}
	var host [16]byte
	_, _ = rand.Read(host[:]) // it never fails (crypto/rand)
	began := time.Now()
	dev, err := volume.Spec{Address: address, SecretFile: x.SecretFile}.Open(ctx, volume.Access{HostID: host})
	f.took, f.opened = time.Since(began), err
	if err != nil {
		return f
	}
	defer func() { _ = dev.Close() }() // it was only read from
	f.block = dev.BlockSize()
	switch d := dev.(type) {
	case volume.Namespace:
		s := d.Stats()
		f.remote = fmt.Sprintf("%s (%s), %d queues of %d commands", s.Portal, s.Access, s.Queues, s.Depth)
		f.digests, f.most, f.locked = digests(address), s.MaxTransfer, s.ReadOnly
	case *volume.File:
		f.locked = d.ReadOnly()
	}
	f.info, f.looked = volume.Look(dev)
	page := device.Aligned(4096)
	for range tries {
		began = time.Now()
		at := mathrand.Int64N(max(1, dev.Size()/4096)) * 4096
		if _, f.read = dev.ReadAt(page, at); f.read != nil || ctx.Err() != nil {
			return f
		}
		f.reads = append(f.reads, time.Since(began))
	}
	slices.Sort(f.reads)
	return f
}

// digests says what an address asks of the connection.
func digests(a volume.Address) string {
	switch header, data := a.Digests(); {
	case header && data:
		return "header and data digest"
	case header:
		return "header digest"
	case data:
		return "data digest"
	}
	return "no digests"
}

// judge says what the facts mean.
func (f volumeFacts) judge(name string) (all []Finding) {
	add := func(v Verdict, found, cure string) { all = append(all, Finding{"volume", name, v, found, cure}) }
	if f.opened != nil {
		add(Fail, f.opened.Error(), "see that the device or target is there, and that this host may use it")
		return all
	}
	if f.remote != "" {
		add(OK, fmt.Sprintf("reached in %v: %s, %s", f.took.Round(time.Millisecond/10), f.remote, f.digests), "")
		if f.most > 0 && f.most < 1<<20 {
			add(Warn, fmt.Sprintf("a command moves %s at most, so a block takes several", machine.SizeText(int64(f.most))), "raise MDTS of the target to 1 MiB")
		}
	}
	switch {
	case errors.Is(f.looked, volume.ErrNoVolume):
		add(Fail, "it is not formatted", "hearth volume format "+name)
	case f.looked != nil:
		add(Fail, f.looked.Error(), "see what is on it: hearth volume stat "+name)
	case f.info.Cluster != f.cluster:
		add(Fail, "it belongs to another cluster", "give this node that cluster's name and key, or format the volume anew")
	default:
		add(OK, fmt.Sprintf("volume %q of %s, %d segments of %s", f.info.Label, machine.SizeText(f.info.Size), f.info.Segments, machine.SizeText(f.info.Segment)), "")
	}
	if f.block > 4096 {
		add(Fail, fmt.Sprintf("its blocks have %d bytes", f.block), "use a device with blocks of 512 to 4096 bytes")
	}
	if f.locked {
		add(Warn, "it takes no writes from this host", "see its rights, and whether the target protects the namespace")
	}
	switch {
	case f.read != nil:
		add(Fail, f.read.Error(), "look at the device (dmesg), or at the target's log")
	case len(f.reads) == tries:
		middle, worst := f.reads[tries/2], f.reads[tries-1]
		found := fmt.Sprintf("a read of 4 KiB takes %v, at worst %v", middle.Round(time.Microsecond), worst.Round(time.Microsecond))
		if middle > slowVolume {
			add(Warn, found, "that is hardly faster than a bucket: look at the network and at the target's load")
		} else {
			add(OK, found, "")
		}
	}
	return all
}

// judgeVolumes says what a node reports of its volumes, but for those that were looked at. A nil Running has none.
func (r *Running) judgeVolumes(looked []config.Volume) (all []Finding) {
	if r == nil {
		return nil
	}
	for _, v := range r.Volumes {
		if slices.ContainsFunc(looked, func(x config.Volume) bool { return x.URL == v.Address }) {
			continue
		}
		f := Finding{"volume", v.Address, OK, fmt.Sprintf("the node has it attached: volume %q of %s", v.Label, machine.SizeText(v.Size)), ""}
		cure := "hearth volume stat " + v.Address + " looks at it"
		switch {
		case v.Away != "":
			f.Verdict, f.Found, f.Cure = Fail, "the node does not use it: "+v.Away, cure
		case v.Stopped != "":
			f.Verdict, f.Found, f.Cure = Warn, "the node writes nothing to it: "+v.Stopped, cure
		}
		all = append(all, f)
	}
	return all
}
