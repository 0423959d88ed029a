package faultproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// racingFake is a fake of the server that Exclusive is for. A GET or HEAD looks up the ETag by the
// key, and then the bytes by the key again. An object's ETag follows from its bytes, so an answer
// shows by itself whether it is whole.
type racingFake struct {
	between func(r *http.Request) // called between the two, and before a change answers; may be nil
	sending func(r *http.Request) // called before the bytes, after the head; may be nil
	mu      sync.Mutex            // guards objects
	objects map[string]string
}

func (f *racingFake) at(path string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[path]
}

func (f *racingFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if r.Method == "GET" || r.Method == "HEAD" {
		w.Header().Set("ETag", f.at(path))
	} else {
		data, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.objects[path] = string(data)
		f.mu.Unlock()
	}
	if f.between != nil {
		f.between(r)
	}
	data := f.at(path)
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_ = http.NewResponseController(w).Flush() // the head first
	if f.sending != nil {
		f.sending(r)
	}
	_, _ = io.WriteString(w, data)
}

// race is a fake with a proxy in front, and clients of it.
type race struct {
	*testing.T
	*faultproxy.Proxy
	fake   *racingFake
	client *http.Client
}

func newRace(t *testing.T, exclusive bool, between func(r *http.Request)) *race {
	fake := &racingFake{objects: map[string]string{}, between: between}
	server := httptest.NewServer(fake)
	p, err := faultproxy.Start(faultproxy.Options{Target: server.Listener.Addr().String(), Exclusive: exclusive})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(func() { client.CloseIdleConnections(); p.Close(); server.Close() })
	return &race{t, p, fake, client}
}

// do sends a request and returns its answer's ETag and bytes.
func (r *race) do(method, target, data string) (etag, body string) {
	req, err := http.NewRequestWithContext(r.Context(), method, r.URL()+target, strings.NewReader(data))
	if err != nil {
		r.Error(err)
		return "", ""
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.Errorf("%s %s: %v", method, target, err)
		return "", ""
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Errorf("%s %s: %v", method, target, err)
	}
	return resp.Header.Get("ETag"), string(all)
}

// begin sends the request on another goroutine.
func (r *race) begin(method, target, data string) (ended chan [2]string) {
	ended = make(chan [2]string, 1)
	go func() { etag, body := r.do(method, target, data); ended <- [2]string{etag, body} }()
	return ended
}

func (r *race) waitFor(what string, fact func(faultproxy.Stats) bool) {
	r.Helper()
	if !hearthtest.Eventually(r.Context(), 10*time.Second, func() bool { return fact(r.Stats()) }) {
		r.Fatalf("waited in vain for %s: %+v", what, r.Stats())
	}
}

func TestAPutBetweenETagAndBytesOfAGet(t *testing.T) {
	// A PUT comes after the server has looked up a GET's ETag and before it opens the file. The GET
	// has the old ETag with the new bytes. Through an exclusive proxy the PUT waits, and the GET is
	// whole; other keys do not wait.
	for _, exclusive := range []bool{false, true} {
		there, goOn := make(chan string), make(chan struct{})
		r := newRace(t, exclusive, func(q *http.Request) {
			if q.Method == "GET" && q.URL.Path == "/b/k" {
				there <- q.Method
				<-goOn
			}
		})
		r.do("PUT", "/b/k", "old")
		get := r.begin("GET", "/b/k", "")
		<-there
		put := r.begin("PUT", "/b/k", "new")
		want := [2]string{"old", "old"}
		if exclusive {
			r.waitFor("the PUT to be read", func(s faultproxy.Stats) bool { return s.Other.Requests == 2 })
			r.do("PUT", "/b/other", "any") // which gives that PUT time to go wrong
			if r.fake.at("/b/k") != "old" {
				t.Error("a PUT met a GET at the server")
			}
		} else {
			<-put
			want[1] = "new"
		}
		close(goOn)
		if got := <-get; got != want {
			t.Errorf("exclusive %v: the GET has ETag and bytes %q, not %q", exclusive, got, want)
		}
		if exclusive {
			<-put
		}
		if r.fake.at("/b/k") != "new" {
			t.Error("the PUT did nothing")
		}
	}
}

func TestAnswersAreWholeAmongManyChanges(t *testing.T) {
	// Readers and writers of two keys, by differently escaped names, meet at a server that is slow
	// between the ETag and the bytes.
	r := newRace(t, true, func(*http.Request) {
		for range 20 {
			runtime.Gosched()
		}
	})
	var all sync.WaitGroup
	for i := range 4 {
		key := fmt.Sprintf("/b/dir/%d", i%2)
		all.Go(func() {
			for n := range 150 {
				switch method, data := "PUT", fmt.Sprintf("%d of %d", n, i); {
				case n%10 == 3:
					r.do("DELETE", key, "")
				case n%10 == 6:
					r.do("POST", key+"?partNumber=1&uploadId=1", data)
				case n%10 == 9:
					r.do(method, strings.Replace(key, "dir", "d%69r", 1), data)
				default:
					r.do(method, key, data)
				}
			}
		})
		all.Go(func() {
			for range 150 {
				if etag, body := r.do("GET", key, ""); etag != body {
					t.Errorf("%s: the ETag of %q with the bytes of %q", key, etag, body)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestWhatAnExclusiveProxyLetsPass(t *testing.T) {
	// While a GET is between ETag and bytes, other reads pass, and so do requests that change no
	// object of this key. While a change is at the server, requests for its own key wait. A body in
	// flight holds up nothing.
	r := newRace(t, true, nil)
	there, goOn := make(chan string), make(chan struct{})
	hold := func(at string) func(q *http.Request) {
		return func(q *http.Request) {
			if q.URL.Query().Has(at) {
				there <- at
				<-goOn
			}
		}
	}
	r.fake.between, r.fake.sending = hold("between"), hold("sending")

	get := r.begin("GET", "/b/k?between", "")
	<-there
	for _, passes := range [][2]string{{"GET", "/b/k"}, {"HEAD", "/b/k"}, {"GET", "/b?list-type=2"}, {"PUT", "/b"}, {"PUT", "/b/k?partNumber=1&uploadId=1"},
		{"POST", "/b/k?uploads"}, {"DELETE", "/b/k?uploadId=1"}, {"PUT", "/b/k2"}, {"DELETE", "/b2/k"}} {
		r.do(passes[0], passes[1], "")
	}
	goOn <- struct{}{}
	<-get

	put := r.begin("PUT", "/b/k?between", "new")
	<-there
	waiting := []chan [2]string{r.begin("GET", "/b/k", ""), r.begin("HEAD", "/b/k", ""), r.begin("PUT", "/b/k", "newer")}
	r.waitFor("them to be read", func(s faultproxy.Stats) bool { return s.InFlight == 4 })
	r.do("GET", "/b/other", "") // which gives them time to go wrong
	for i, w := range waiting {
		if len(w) > 0 {
			t.Errorf("request %d did not wait for the change: %q", i, <-w)
		}
	}
	goOn <- struct{}{}
	<-put
	for _, w := range waiting {
		<-w
	}

	get = r.begin("GET", "/b/k?sending", "")
	<-there
	r.do("PUT", "/b/k", "newest")
	goOn <- struct{}{}
	if got := <-get; got != [2]string{"newer", "newer"} {
		t.Errorf("the GET whose body was on its way: %q", got)
	}
}
