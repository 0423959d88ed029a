package origin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func TestQueriesLoseTheirSignatureAlone(t *testing.T) {
	// However the names of a signature's parameters are written, they stay; the rest goes on byte
	// for byte, in its order.
	for raw, want := range map[string]string{
		"":                            "",
		"uploads":                     "uploads",
		"a=%zz&&x=1&a+b":              "a=%zz&&x=1&a+b",
		"X-Amz-Signature=s":           "",
		"a=1&X-Amz-Signature=s&b=%2f": "a=1&b=%2f",
		"x-amz-algorithm&X-Amz-Credential=&X-AMZ-DATE=1&X-Amz-Expires=1&X-Amz-SignedHeaders=h&X-Amz-Security-Token=t&X-Amz-Content-Sha256=u&k": "k",
		"%58%2Damz-signature=s&k":            "k",
		"X-Amz-Meta-Signature=s&X-Amz-Acl=a": "X-Amz-Meta-Signature=s&X-Amz-Acl=a",
		"k=X-Amz-Signature":                  "k=X-Amz-Signature",
		"X-Amz-Signature%=s":                 "X-Amz-Signature%=s",
	} {
		if got := passedQuery(raw); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

func FuzzQuery(f *testing.F) {
	// No signature goes on, and nothing else is lost.
	f.Add("a=1&X-Amz-Signature=s&b")
	f.Add("%58-amz-date=1&&;")
	f.Fuzz(func(t *testing.T, raw string) {
		got := passedQuery(raw)
		if passedQuery(got) != got {
			t.Errorf("%q: %q, then %q", raw, got, passedQuery(got))
		}
		before, _ := url.ParseQuery(raw)
		after, _ := url.ParseQuery(got)
		for name, values := range after {
			if strings.EqualFold(name, "X-Amz-Signature") {
				t.Errorf("%q: %q", raw, got)
			}
			if len(before[name]) != len(values) {
				t.Errorf("%q: %q", raw, got)
			}
			delete(before, name)
		}
		for name := range before {
			if !signs(url.QueryEscape(name)) {
				t.Errorf("%q lost %q", raw, name)
			}
		}
	})
}

func TestWhatIsSaidOfThePayload(t *testing.T) {
	// What the origin can check goes on; what only the client's key explains does not.
	hash := strings.Repeat("aB", 32)
	for said, want := range map[string]string{
		"": unsignedPayload, unsignedPayload: unsignedPayload, hash: hash, trailer: trailer, hash[1:]: unsignedPayload, strings.Repeat("g", 64): unsignedPayload,
		"STREAMING-AWS4-HMAC-SHA256-PAYLOAD": "", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": "", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD": "",
	} {
		got, err := passedPayload(http.Header{"X-Amz-Content-Sha256": {said}})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q %v", said, got, err)
		}
	}
}

func TestBucketNames(t *testing.T) {
	// No name becomes another place in a URL.
	for name, ok := range map[string]bool{"": true, "bucket": true, "Old_Name.x-1": true, "..": false, ".": false, "a/b": false, "a?b": false, "a#b": false, "a@b": false, "a:b": false, "a%2fb": false,
		"a b": false, "a\n": false, "ü": false, strings.Repeat("a", 256): false} {
		if err := checkBucketName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func upload(in io.Reader, length int64) *http.Request {
	return &http.Request{Body: io.NopCloser(in), ContentLength: length, Header: http.Header{}}
}

func TestTheLastByteWaitsForTheEnd(t *testing.T) {
	// In whatever pieces a body comes and is read: right, it is whole; wrong at its end, its last
	// byte is kept; and what it said once it says again.
	wrong := errors.New("wrong")
	text := bytes.Repeat([]byte("0123456789"), 10)
	for name, cut := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "with the end": iotest.DataErrReader} {
		for end, err := range map[string]error{"right": nil, "wrong": wrong} {
			in := io.Reader(bytes.NewReader(text))
			if err != nil {
				in = io.MultiReader(in, iotest.ErrReader(err))
			}
			b := newPassedBody(t.Context(), upload(cut(in), int64(len(text))), passWaits{Asked: time.Hour, Stall: time.Hour}, func() {})
			got, said := io.ReadAll(iotest.OneByteReader(b))
			if end == "right" && (said != nil || !bytes.Equal(got, text) || b.Err() != io.EOF) {
				t.Errorf("%s %s: %d bytes, %v", name, end, len(got), said)
			}
			if end == "wrong" && (said != wrong || len(got) >= len(text) || b.Err() != wrong) {
				t.Errorf("%s %s: %d bytes, %v", name, end, len(got), said)
			}
			if _, again := b.Read(make([]byte, 1)); end == "wrong" && again != wrong || end == "right" && again != io.EOF {
				t.Errorf("%s %s: then %v", name, end, again)
			}
			if b.Unread() {
				t.Errorf("%s %s: it was not read", name, end)
			}
			b.End()
		}
	}
}

func TestABodyThatIsTakenBackGivesNothing(t *testing.T) {
	// What goes with another attempt is not read by the one before.
	b := newPassedBody(t.Context(), upload(strings.NewReader("abc"), 3), passWaits{Asked: time.Hour, Stall: time.Hour}, func() {})
	if !b.Unread() {
		t.Error("it was read")
	}
	if n, err := b.Read(make([]byte, 3)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	var none *passedBody
	if !none.Unread() || none.Err() != nil || none.Trace() != nil {
		t.Error("no body is none")
	}
}

func TestABodyThatIsNotAskedForIsHeldBack(t *testing.T) {
	// The origin answered instead of asking: net/http's Read waits, and gets nothing, until the
	// attempt is over or given up. The body may go with another.
	for name, end := range map[string]func(b *passedBody, cancel func()){"over": func(b *passedBody, _ func()) { b.End() }, "given up": func(_ *passedBody, cancel func()) { cancel() }} {
		ctx, cancel := context.WithCancel(t.Context())
		r := upload(strings.NewReader("abc"), 3)
		r.Header.Set("Expect", "100-continue")
		b := newPassedBody(ctx, r, passWaits{Asked: time.Hour, Stall: time.Hour}, func() {})
		b.Trace().Wait100Continue()
		ended := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 3))
			ended <- err
		}()
		end(b, cancel)
		if err := <-ended; err != errUnasked || !b.Unread() {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	r := upload(strings.NewReader("abc"), 3)
	r.Header.Set("Expect", "100-continue")
	b := newPassedBody(t.Context(), r, passWaits{Asked: time.Hour, Stall: time.Hour}, func() {})
	b.Trace().Wait100Continue()
	b.Trace().Got100Continue()
	if text, err := io.ReadAll(b); string(text) != "abc" || err != nil {
		t.Errorf("%q %v", text, err)
	}
}

func TestTheWatchIsOverTheOriginAlone(t *testing.T) {
	// A client may be as slow as it likes; an origin that takes nothing is told of; one that has
	// answered may leave the rest.
	synctest.Test(t, func(t *testing.T) {
		slow := iotest.OneByteReader(passedReaderFunc(func(p []byte) (int, error) { time.Sleep(time.Minute); return 1, nil }))
		var silent atomic.Int64
		b := newPassedBody(t.Context(), upload(slow, 3), passWaits{Stall: 30 * time.Second}, func() { silent.Add(1) })
		for range 2 {
			if _, err := b.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}
		if silent.Load() != 0 {
			t.Error("the client was slow, and the origin was blamed")
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if silent.Load() != 0 {
			t.Error("too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if silent.Load() != 1 {
			t.Error("the origin took nothing, and nobody said so")
		}
		b = newPassedBody(t.Context(), upload(slow, 3), passWaits{Stall: 30 * time.Second}, func() { silent.Add(1) })
		_, _ = b.Read(make([]byte, 1))
		b.Answered()
		_, _ = b.Read(make([]byte, 1))
		time.Sleep(time.Hour)
		if silent.Load() != 1 {
			t.Error("it had answered")
		}
	})
}

func TestTheWatchOverTheAnswer(t *testing.T) {
	// The whole body is there, and was closed as net/http does: from then on the origin has its time,
	// and not if it answered, or if the client's body was not whole.
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Int64
		made := func(in io.Reader) *passedBody {
			b := newPassedBody(t.Context(), upload(in, 3), passWaits{Stall: time.Second, Answer: time.Minute}, func() { silent.Add(1) })
			_, _ = io.ReadAll(b)
			_ = b.Close()
			return b
		}
		made(strings.NewReader("ab")).End()
		made(strings.NewReader("abc")).Answered()
		time.Sleep(time.Hour)
		if synctest.Wait(); silent.Load() != 0 {
			t.Error("one was cut off, one answered")
		}
		b := made(strings.NewReader("abc"))
		time.Sleep(59 * time.Second)
		if synctest.Wait(); silent.Load() != 0 {
			t.Error("too early")
		}
		time.Sleep(2 * time.Second)
		if synctest.Wait(); silent.Load() != 1 {
			t.Error("it never answered, and nobody said so")
		}
		b.End()
	})
}

type passedReaderFunc func([]byte) (int, error)

func (f passedReaderFunc) Read(p []byte) (int, error) { return f(p) }
