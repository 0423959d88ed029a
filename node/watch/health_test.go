package watch

import (
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin"
)

func TestAFailureIsDueUntilItEnds(t *testing.T) {
	// What failed once is due after the pause, then less and less often, and with one try at a time. It is over
	// once a try or a fetch succeeds. A failure that began before that, and is heard late, does not count.
	synctest.Test(t, func(t *testing.T) {
		h := Health{Pause: 30 * time.Second}
		b := (&hearth.Object{Key: "k"}).Block(0)
		began := time.Now()
		h.Failed(Failure{Says: "away", Block: b}, began)
		time.Sleep(29 * time.Second)
		if f := h.Last(); f == nil || f.Says != "away" || f.Block != b || time.Since(f.At) != 29*time.Second || h.Due() != nil {
			t.Fatalf("after 29 s: %+v", f)
		}
		for _, pause := range []time.Duration{time.Second, time.Minute, 2 * time.Minute, 2 * time.Minute} {
			time.Sleep(pause - time.Nanosecond)
			if h.Due() != nil {
				t.Errorf("tried again before %v", pause)
			}
			time.Sleep(time.Nanosecond)
			f := h.Due()
			if f == nil || h.Due() != nil {
				t.Fatalf("after %v: %+v, or two at once", pause, f)
			}
			if h.Tried(f, &Failure{Says: "away still"}) || h.Last() == nil || h.Last().Says != "away still" || !h.Last().At.Equal(time.Now()) || h.Last().Block != b {
				t.Errorf("%+v", h.Last())
			}
		}
		time.Sleep(2 * time.Minute)
		f := h.Due()
		h.Failed(Failure{Says: "another"}, time.Now())
		if h.Tried(f, nil) || h.Last() == nil || h.Last().Says != "another" {
			t.Errorf("a failure heard meanwhile: %+v", h.Last())
		}
		time.Sleep(2 * time.Minute)
		if !h.Tried(h.Due(), nil) || h.Last() != nil || h.Due() != nil {
			t.Errorf("a try succeeded: %+v", h.Last())
		}
		if h.Failed(Failure{Says: "late"}, began); h.Last() != nil {
			t.Errorf("heard late: %+v", h.Last())
		}
		h.Failed(Failure{Says: "away"}, time.Now())
		if !h.Succeeded() || h.Succeeded() || h.Last() != nil {
			t.Errorf("a fetch succeeded: %+v", h.Last())
		}
	})
}

func TestOneDeniedKeyIsNoFailure(t *testing.T) {
	// If other keys were read lately, a denial concerns one key, which is tried once. If all keys are denied,
	// it is the origin's, and stays so whoever asks. A denied key is forgotten once nobody has asked for it for
	// long. If nothing was read before, a denial is the origin's failure until a try tells.
	synctest.Test(t, func(t *testing.T) {
		h := Health{Pause: 30 * time.Second}
		is := func(when string, one bool) {
			t.Helper()
			if f := h.Last(); f == nil || f.OneKey != one {
				t.Errorf("%s: %+v", when, f)
			}
		}
		deny := func() { h.Failed(Failure{Says: "denied", Denied: true}, time.Now()) }
		tried := func(one bool) {
			t.Helper()
			time.Sleep(2 * time.Minute)
			f := h.Due()
			if f == nil {
				t.Fatal("nothing is due")
			}
			deny() // somebody asks all the time
			h.Tried(f, &Failure{Says: "denied", Denied: true, OneKey: one})
		}
		deny()
		is("nothing was read", false)
		tried(true)
		is("others can be read", true)
		deny()
		if is("again", true); h.Due() != nil {
			t.Error("what is known is tried again")
		}
		time.Sleep(told + time.Nanosecond)
		if h.Last() != nil {
			t.Errorf("nobody asks for it: %+v", h.Last())
		}
		h.Succeeded()
		deny()
		is("another was read", true)
		tried(false)
		is("all are denied", false)
		deny()
		is("all are denied, again", false)
		h.Failed(Failure{Says: "away"}, time.Now())
		is("away", false)
		h.Succeeded()
		time.Sleep(told)
		deny()
		is("another was read long ago", false)
	})
}

func TestAnswersAboutOneKey(t *testing.T) {
	// An archived object is no failure of the origin, even if nothing was read before or all else just failed.
	// It is not tried again. An odd answer is believed to concern one key until a try tells: it may concern
	// all.
	synctest.Test(t, func(t *testing.T) {
		h := Health{Pause: 30 * time.Second}
		b := (&hearth.Object{Key: "k"}).Block(0)
		archived := *FailureOf(b, &origin.Error{Status: 403, Code: "InvalidObjectState", Err: hearth.ErrArchived})
		if h.Failed(archived, time.Now()); h.Last() == nil || !h.Last().OneKey || !h.Last().Archived {
			t.Errorf("%+v", h.Last())
		}
		if time.Sleep(5 * time.Minute); h.Due() != nil {
			t.Error("what is archived is tried again")
		}
		h.Failed(Failure{Says: "away", Block: b}, time.Now())
		if h.Last().OneKey {
			t.Error("the origin is away, and it is said of one key")
		}
		if h.Failed(archived, time.Now()); !h.Last().OneKey {
			t.Error("an answer, and the origin is away")
		}
		if time.Sleep(told + time.Second); h.Last() != nil {
			t.Errorf("nobody asks any more: %+v", h.Last())
		}
		odd := Failure{Says: "odd", Denied: true, OneKey: true}
		h = Health{Pause: 30 * time.Second}
		if h.Failed(odd, time.Now()); !h.Last().OneKey {
			t.Error("an odd answer, and the origin is ill")
		}
		time.Sleep(30 * time.Second)
		f := h.Due()
		if f == nil {
			t.Fatal("nothing is due")
		}
		if h.Tried(f, &Failure{Says: "odd", Denied: true}); h.Last().OneKey {
			t.Error("others are odd, too, and it is said of one key")
		}
	})
}

func TestWhatAFailureIsAbout(t *testing.T) {
	// An origin's answer tells whether it may concern one key, or concerns all.
	b := (&hearth.Object{Key: "k"}).Block(0)
	for _, x := range []struct {
		status                int
		code                  string
		denied, odd, archived bool
	}{
		{403, "AccessDenied", true, false, false}, {403, "", true, false, false}, {403, "InvalidAccessKeyId", false, false, false},
		{400, "KMS.DisabledException", true, false, false}, {400, "InvalidRequest", true, false, false}, {400, "ExpiredToken", false, false, false},
		{503, "SlowDown", false, false, false}, {403, "InvalidObjectState", true, true, true},
	} {
		err := &origin.Error{Op: "get", Where: "s3://b/k", Status: x.status, Code: x.code, Err: fs.ErrPermission}
		if x.archived {
			err.Err = hearth.ErrArchived
		}
		if f := FailureOf(b, err); f.Denied != x.denied || f.OneKey != x.odd || f.Archived != x.archived {
			t.Errorf("%d %s: %+v", x.status, x.code, f)
		}
	}
}
