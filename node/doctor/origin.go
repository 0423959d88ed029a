package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
)

// bucket is an origin that is checked.
type bucket struct {
	name   string
	config origin.Config
	writes bool // it is to be written
}

// A doctor is less patient than a node: it is to find faults, not to get through.
const (
	originPatience = 5 * time.Second
	originAttempts = 2
)

// look checks credentials, clock and abilities of an origin. Each may fail without the others.
func (b bucket) look(ctx context.Context, tell func(...Finding)) {
	c := b.config
	if c.Timeout <= 0 || c.Timeout > originPatience {
		c.Timeout = originPatience
	}
	c.Retry = origin.Retry{Attempts: originAttempts, Within: c.Timeout}
	o, err := origin.Open(ctx, c)
	if err != nil {
		tell(b.judgeProbe(origin.Abilities{}, err))
		return
	}
	if closer, ok := o.(interface{ Close() error }); ok {
		defer func() { _ = closer.Close() }() // it was only read from
	}
	if k, ok := o.(interface {
		Credentials(context.Context) (origin.Credentials, error)
	}); ok {
		have, err := k.Credentials(ctx)
		tell(b.judgeCredentials(have, time.Now(), err))
		if err != nil {
			return // without credentials the probe would fail the same way
		}
	}
	if k, ok := o.(interface {
		Ahead(context.Context) (time.Duration, error)
	}); ok {
		asking, cancel := context.WithTimeout(ctx, c.Timeout)
		ahead, err := k.Ahead(asking)
		cancel()
		tell(b.judgeClock(ahead, err)...)
	}
	can, err := o.Probe(ctx)
	tell(b.judgeProbe(can, err))
	if k, ok := o.(interface {
		ProbeWrites(context.Context) (string, error)
	}); err == nil && b.writes && ok {
		tell(b.judgeWrites(k.ProbeWrites(ctx)))
	}
	if err == nil && can.Listed != nil && can.Listed.Version != can.Told.Version {
		says, err := namespace.Compare(ctx, o, can.Listed.Key, can.Listed, can.Told)
		tell(b.judgeListings(can.Listed.Key, says, err)...)
	}
}

// judgeListings says what it means if listings name other versions than HEADs.
func (b bucket) judgeListings(key, says string, err error) []Finding {
	if err != nil || says == "" {
		return nil // the object changed meanwhile
	}
	return []Finding{{"listings", b.name, Warn, "they name other versions than HEADs (" + key + ": " + says + "), so that each name costs a HEAD once in each bound",
		"report it to who runs the origin; nothing wrong is served"}}
}

// judgeWrites says whether an origin can be written. left is the key of an upload that could not be aborted.
func (b bucket) judgeWrites(left string, err error) Finding {
	if err != nil {
		f := b.failed("writes", err)
		if left != "" {
			f.Found += "; the upload of " + left + " that was begun to try it could not be aborted, and is still there"
		}
		return f
	}
	return Finding{"writes", b.name, OK, "an upload was begun and aborted; deleting is allowed", ""}
}

func (b bucket) judgeCredentials(c origin.Credentials, now time.Time, err error) Finding {
	if err != nil {
		return b.failed("credentials", err)
	}
	f := Finding{Check: "credentials", Subject: b.name, Verdict: OK, Found: "from " + c.Source}
	if strings.HasPrefix(c.Source, "none") {
		f.Found = c.Source
	}
	left := c.Expires.Sub(now).Round(time.Second)
	switch {
	case c.Expires.IsZero() && c.Token:
		f.Verdict, f.Cure = Warn, "for long jobs take them from a profile or a role, which is asked for new ones; a node takes new variables at its next start only"
		f.Found += ", with a session token, whose end nobody tells"
	case c.Expires.IsZero():
	case left <= 0:
		f.Verdict, f.Cure = Fail, "renew them (aws sso login, or whatever gives them)"
		f.Found += fmt.Sprintf(", expired %v ago", -left)
	default:
		f.Found += fmt.Sprintf(", for %v (until %s), then asked for again", left, c.Expires.UTC().Format(time.RFC3339))
	}
	return f
}

// S3 refuses signatures that are off by more than 15 minutes. A clock that is a minute off is not
// synchronized.
const (
	clockOff    = time.Minute
	clockBeyond = 15 * time.Minute
)

func (b bucket) judgeClock(ahead time.Duration, err error) []Finding {
	f := Finding{Check: "clock", Subject: b.name, Verdict: OK}
	switch {
	case errors.Is(err, origin.ErrNoDate):
		f.Found = "not compared: " + err.Error()
		return []Finding{f}
	case err != nil:
		return nil // an origin that cannot be asked is the probe's finding
	}
	off, word := ahead.Abs().Round(time.Second), "ahead of"
	if ahead < 0 {
		word = "behind"
	}
	f.Found = fmt.Sprintf("this machine is %v %s the origin", off, word)
	switch {
	case off <= 2*time.Second:
		f.Found = "the same as the origin's"
	case off > clockBeyond:
		f.Verdict, f.Cure = Fail, "set the clock (timedatectl set-ntp true): S3 refuses what is more than 15 minutes off"
	case off > clockOff:
		f.Verdict, f.Cure = Warn, "set the clock (timedatectl set-ntp true): S3 refuses what is more than 15 minutes off"
	}
	return []Finding{f}
}

func (b bucket) failed(check string, err error) Finding {
	problem, cure := origin.Diagnose(err)
	if cure == "" {
		cure = "check the origin's name, and that it is there and may be read"
	}
	return Finding{check, b.name, Fail, b.without(problem), cure}
}

// without returns a problem without the origin that it begins with, since the finding's subject names that.
func (b bucket) without(problem string) string {
	problem = strings.TrimPrefix(problem, "open origin "+b.config.URL+": ")
	where, rest, ok := strings.Cut(problem, ": ")
	if ok && strings.Contains(where, "://") && strings.HasPrefix(strings.TrimRight(b.config.URL, "/")+"/", strings.TrimRight(where, "/")+"/") {
		return rest
	}
	return problem
}

// farAway is a round trip that makes every cold look-up slow enough to feel.
const farAway = 500 * time.Millisecond

func (b bucket) judgeProbe(a origin.Abilities, err error) Finding {
	if err != nil {
		return b.failed("origin", err)
	}
	f := Finding{Check: "origin", Subject: b.name, Verdict: OK, Found: fmt.Sprintf("answers within %v", a.RoundTrip.Round(time.Millisecond/10))}
	if a.Region != "" {
		f.Found += ", region " + a.Region
	}
	switch {
	case !a.Objects:
		f.Verdict, f.Cure = Warn, "check the prefix (hearth ls shows what there is); without an object nothing else can be tried"
		f.Found += ", and has no object there"
	case a.Passed != "" && !a.Range:
		f.Verdict, f.Cure = Warn, "restore what is to be read; without an object that can be read nothing else can be tried"
		f.Found += ", and nothing that was tried can be read: " + a.Passed
	case a.Passed != "":
		f.Verdict, f.Cure = Warn, "see the words behind the object's name; hearth warmup --dry-run counts what is archived"
		f.Found += ", but not with every object: " + a.Passed
	case !a.StrongETag:
		f.Verdict, f.Cure = Warn, "use an endpoint whose ETags are strong (of a file:// origin: wait two seconds after a change)"
		f.Found += ", ranges; its ETags are weak or missing, so nothing can be cached"
	case !a.IfMatch:
		f.Verdict, f.Cure = Warn, "use an endpoint that knows If-Match, where objects are overwritten; nothing wrong is served without it"
		f.Found += ", ranges, strong ETags; it ignores If-Match, so that a change is seen a round trip later"
	case a.RoundTrip > farAway:
		f.Verdict, f.Cure = Warn, "use an endpoint that is nearer, if there is one: each cold look-up waits that long"
	default:
		f.Found += ", ranges, If-Match, strong ETags"
	}
	return f
}
