// Package doctor looks whether Hearth can work on a machine, and says what to do
// where it cannot.
//
// A look gathers facts: of the machine and its limits, by a mount that is tried and
// taken away again, of each cache directory, of each origin, of the addresses and of
// the node, if one runs. What the facts mean is said by functions without side effects,
// so that each verdict is tested without the machine that would earn it.
//
// Looks run beside each other, and each is given up after a bound of its own: what has
// been found until then counts, and that no more came is a finding. A thread that waits
// for a device cannot be killed, and would keep its process from ending: what may wait so
// is done by processes of their own (Options.Apart), which are left to their device. Other
// looks that are given up keep a goroutine of a command that is about to end. Nothing is left behind: files that are written to are
// never seen under a name where the file system can do that, a cache directory that
// does not exist is not made, an address that is free is given back.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
)

// Verdict is what a finding means for Hearth.
type Verdict string

// The verdicts: all is well; it works, and less well than it could; it does not work.
const (
	OK   Verdict = "OK"
	Warn Verdict = "WARN"
	Fail Verdict = "FAIL"
)

// Finding is the outcome of one check.
type Finding struct {
	// Check says what was looked at, Subject at which one: a directory, an origin; "":
	// there is only one.
	Check   string  `json:"check"`
	Subject string  `json:"subject,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Found is what there is; Cure what to do, unless all is well.
	Found string `json:"found"`
	Cure  string `json:"cure,omitempty"`
}

// Options say what is looked at.
type Options struct {
	// Links are the origins. Alone: nothing else is looked at.
	Links []config.Link
	Alone bool
	// Cache are the budgets.
	Cache config.Cache
	// Admin is where the node is asked; its Socket is a path, or "-".
	Admin config.Admin
	// Ring is the node's part in one; zero: it is alone.
	Ring config.Membership
	// Without is what mounts do without, AllowOther that one lets other users in.
	Without    []string
	AllowOther bool
	// Version is what origins are told.
	Version string
	// Node asks the node at the admin socket how it is; nil, nil: none runs.
	Node func(ctx context.Context) (*Running, error)
	// Apart has another process take LookAt with these Options and hands on what that
	// tells; an error: it could not be begun. nil: this process does it.
	Apart func(ctx context.Context, index int, tell func(...Finding)) error
}

// Running is a node that answers.
type Running struct {
	Version string
	PID     int
	// Says is the first line of its status, Well whether it is ok.
	Says string
	Well bool
}

// The bounds. An origin that is silent takes two attempts and a look whether it
// speaks TLS; a disk that is merely slow writes a few megabytes within its bound.
const (
	nodeBound   = 3 * time.Second
	mountBound  = 10 * time.Second
	diskBound   = 10 * time.Second
	originBound = 20 * time.Second
)

// look is one look at the world: it tells what it finds as it goes.
type look struct {
	check, subject string
	bound          time.Duration
	at             func(ctx context.Context, tell func(...Finding))
}

// Run looks at everything and returns the findings in their order. An error says
// that ctx ended before that, and why.
func Run(ctx context.Context, o Options) ([]Finding, error) {
	var found []Finding
	if !o.Alone {
		running, say := askNode(ctx, o)
		found = append(found, say...)
		found = append(found, together(ctx, o.apart(o.local(running)))...)
	}
	var asked []look
	for _, l := range o.Links {
		b := bucket{name: l.Origin.URL, config: config.OriginConfig(l.Origin, l.Path, o.Version)}
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

// local are the looks at this machine.
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
	if err != nil { // which the look at the machine says
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

// apart has looks that ask a device done by processes of their own.
func (o Options) apart(looks []look) []look {
	for i, l := range looks {
		if o.Apart == nil || l.check != "cache directory" && l.check != "mount" {
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

// LookAt is what a process of its own does for Run.
func LookAt(ctx context.Context, o Options, index int, tell func(...Finding)) error {
	running, _ := askNode(ctx, o)
	looks := o.local(running)
	if index >= len(looks) {
		return fmt.Errorf("look %d of %d", index, len(looks))
	}
	looks[index].at(ctx, tell)
	return nil
}

// together runs looks beside each other.
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

// run takes a look and returns what it found within its bound.
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

// patience is what to do about what does not answer.
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

// Failed reports whether a finding is that something does not work.
func Failed(found []Finding) bool {
	for _, f := range found {
		if f.Verdict == Fail {
			return true
		}
	}
	return false
}
