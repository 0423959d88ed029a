// Package doctor checks whether Hearth can work on a machine, and says what to do where it cannot.
//
// A look gathers facts about one thing: the machine and its limits, a mount that is made and taken away
// again, each cache directory, each volume, each origin, the addresses, or the node, if one runs. Functions
// without side effects judge what the facts mean. So each verdict is tested without the machine that would
// earn it.
//
// Looks run at the same time, and each has a bound on its time. What a look has found by then counts, and
// that it did not finish is a finding. A thread that waits for a device cannot be killed, and keeps its
// process from ending. So looks that may wait for a device run in processes of their own (Options.Apart),
// which are left to their device. Other looks that run out of time keep a goroutine, in a command that is
// about to end.
//
// Nothing is left behind. Files that are written to never have a name where the file system can do that. A
// cache directory that does not exist is not made. An address that is free is given back.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/node/status"
)

// Verdict is what a finding means for Hearth.
type Verdict string

// The verdicts mean: all is well; it works, but less well than it could; it does not work.
const (
	OK   Verdict = "OK"
	Warn Verdict = "WARN"
	Fail Verdict = "FAIL"
)

// Finding is the outcome of one check.
type Finding struct {
	// Check says what was checked. Subject says which one, a directory or an origin, and is empty if there
	// is only one.
	Check   string  `json:"check"`
	Subject string  `json:"subject,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Found is what was found. Cure is what to do, unless all is well.
	Found string `json:"found"`
	Cure  string `json:"cure,omitempty"`
}

// Options say what is checked.
type Options struct {
	// Links are the origins. Those whose Write is through are tried for the rights to write, too. Alone means that nothing else is checked.
	Links []config.Link
	Alone bool
	// Cache are the budgets.
	Cache config.Cache
	// Volumes are the volumes to attach.
	Volumes config.Volumes
	// Admin is where the node answers. Its Socket is a path, or "-".
	Admin config.Admin
	// Ring is the node's part in a ring. The zero value means that the node is alone.
	Ring config.Membership
	// Without lists what mounts do without. AllowOther says that a mount lets other users in.
	Without    []string
	AllowOther bool
	// Version is sent to origins.
	Version string
	// Node asks the node at the admin socket how it is. A nil Running without an error means that no node
	// runs.
	Node func(ctx context.Context) (*Running, error)
	// Apart has another process run LookAt with these Options, and passes on what that tells. An error
	// means that the process could not be started. If Apart is nil, this process runs the look.
	Apart func(ctx context.Context, index int, tell func(...Finding)) error
}

// Running is a node that answers.
type Running struct {
	Version string
	PID     int
	// Says is the first line of its status, and Well whether that is ok.
	Says string
	Well bool
	// Keeper is what it says of its keeper; nil if it has none.
	Keeper *status.KeeperLine
	// Volumes are those that it was told to attach. Of those that are not in Options the node's word is taken, since
	// it alone knows their secrets.
	Volumes []status.Volume
}

// The time bounds of looks. A silent origin takes two attempts, and a check whether it speaks TLS. A disk
// that is only slow writes a few megabytes within its bound.
const (
	nodeBound   = 3 * time.Second
	mountBound  = 10 * time.Second
	diskBound   = 10 * time.Second
	originBound = 20 * time.Second
	volumeBound = 20 * time.Second
)

// look is one check of the world. It tells what it finds as it goes.
type look struct {
	check, subject string
	bound          time.Duration
	at             func(ctx context.Context, tell func(...Finding))
}

// Run checks everything and returns the findings in their order. An error says that ctx ended before that,
// and why.
func Run(ctx context.Context, o Options) ([]Finding, error) {
	var found []Finding
	if !o.Alone {
		running, say := askNode(ctx, o)
		found = append(found, say...)
		found = append(found, together(ctx, o.apart(o.local(running)))...)
		found = append(found, running.judgeVolumes(o.Volumes.Devices)...)
	}
	var asked []look
	for _, l := range o.Links {
		b := bucket{name: l.Origin.URL, config: config.OriginConfig(l.Origin, l.Path, o.Version), writes: l.Write == config.WriteThrough}
		if l.Path != "" && l.Path != "/" {
			b.name += " at " + l.Path
		}
		asked = append(asked, look{"origin", b.name, originBound, b.look})
	}
	if len(asked) == 0 {
		found = append(found, Finding{"origin", "", Warn, "none is configured", "name one: hearth doctor s3://bucket/prefix, or origin: in the configuration"})
	}
	found = append(found, together(ctx, asked)...)
	if ctx.Err() != nil {
		return found, context.Cause(ctx)
	}
	return found, nil
}

// local returns the looks at this machine.
func (o Options) local(running *Running) []look {
	limits := machine.ReadLimits("/")
	ram, err := machine.RAM(o.Cache.RAM, limits)
	all := []look{
		{"machine", "", nodeBound, func(_ context.Context, tell func(...Finding)) { tell(readSystem("/", limits).judge(o.Cache.RAM)...) }},
		{"mount", "", mountBound, func(ctx context.Context, tell func(...Finding)) { tell(tryMount(ctx, o).judge()...) }},
		{"addresses", "", nodeBound, func(ctx context.Context, tell func(...Finding)) { tell(atDoors(ctx, o, running)...) }},
	}
	if o.Ring.On() {
		all = append(all, look{"ring", "", nodeBound + answerBound, func(ctx context.Context, tell func(...Finding)) { tell(atRing(ctx, o.Ring, running)...) }})
	}
	for _, v := range o.Volumes.Devices {
		all = append(all, look{"volume", v.URL, volumeBound, shared{v, o.Ring}.look})
	}
	if err != nil { // the look at the machine reports this error
		ram = 0
	}
	disks, err := machine.Disks(o.Cache.Disks)
	if err != nil {
		return append(all, look{"cache directory", "", nodeBound, func(_ context.Context, tell func(...Finding)) {
			tell(Finding{"cache directory", "", Fail, err.Error(), "name one with --cache-disks PATH=SIZE"})
		}})
	}
	for _, d := range disks {
		x := &directory{disk: d, floor: o.Cache.FreeFloor, memory: max(limits.Memory-ram-machine.Beside, 0), limits: limits, node: running}
		all = append(all, look{"cache directory", d.Path, diskBound, x.look})
	}
	return all
}

// apart has the looks that ask a device run in processes of their own.
func (o Options) apart(looks []look) []look {
	for i, l := range looks {
		if o.Apart == nil || l.check != "cache directory" && l.check != "mount" && l.check != "volume" {
			continue
		}
		looks[i].at = func(ctx context.Context, tell func(...Finding)) {
			if o.Apart(ctx, i, tell) != nil {
				l.at(ctx, tell)
			}
		}
	}
	return looks
}

// LookAt runs one look for a Run in another process.
func LookAt(ctx context.Context, o Options, index int, tell func(...Finding)) error {
	running, _ := askNode(ctx, o)
	looks := o.local(running)
	if index >= len(looks) {
		return fmt.Errorf("look %d of %d", index, len(looks))
	}
	looks[index].at(ctx, tell)
	return nil
}

// together runs looks at the same time.
func together(ctx context.Context, looks []look) (all []Finding) {
	found := make([][]Finding, len(looks))
	var wait sync.WaitGroup
	for i, l := range looks {
		wait.Go(func() { found[i] = l.run(ctx) })
	}
	wait.Wait()
	for _, f := range found {
		all = append(all, f...)
	}
	return all
}

// run runs a look and returns what it found within its bound.
func (l look) run(ctx context.Context) (found []Finding) {
	ctx, cancel := context.WithTimeout(ctx, l.bound)
	defer cancel()
	told := make(chan []Finding)
	go func() {
		defer close(told)
		l.at(ctx, func(f ...Finding) {
			select {
			case told <- f:
			case <-ctx.Done():
			}
		})
	}()
	for {
		select {
		case f, more := <-told:
			if !more {
				return found
			}
			found = append(found, f...)
		case <-ctx.Done():
			return append(found, Finding{l.check, l.subject, Fail, fmt.Sprintf("no answer within %v", l.bound), l.patience()})
		}
	}
}

// patience returns what to do about a look that did not finish.
func (l look) patience() string {
	switch l.check {
	case "origin":
		return "check the endpoint, and proxies and firewalls between"
	case "cache directory":
		return "look at the device (dmesg), or choose another directory with --cache-disks PATH=SIZE"
	case "mount":
		return "look for a FUSE process that hangs: grep fuse /proc/self/mountinfo"
	}
	return "look at the machine's load and its log (dmesg)"
}

// Failed reports whether any finding is a Fail.
func Failed(found []Finding) bool {
	for _, f := range found {
		if f.Verdict == Fail {
			return true
		}
	}
	return false
}
