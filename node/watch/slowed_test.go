package watch

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnOriginThatThrottlesIsToldOfWhileItDoes(t *testing.T) {
	// One answer that asks to slow down is nothing, nor are a few among thousands. A storm is reported with its
	// figures, for its own link alone, until it has been over for ten seconds. What came before the node looked
	// counts from the start.
	synctest.Test(t, func(t *testing.T) {
		var s Slowed
		var mu sync.Mutex // guards links
		links := map[string]Answers{}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx, func() map[string]Answers { mu.Lock(); defer mu.Unlock(); return maps.Clone(links) })
		after := func(wait time.Duration, link string, answers Answers, want string) {
			t.Helper()
			time.Sleep(wait)
			mu.Lock()
			defer mu.Unlock()
			links[link] = Answers{links[link].All + answers.All, links[link].Slowed + answers.Slowed}
			if got := s.Says(link, "s3://b/"+link, links[link]); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("%+v: %q, want %q", links[link], got, want)
			}
		}
		after(500*time.Millisecond, "a", Answers{5, 1}, "")
		after(time.Second, "a", Answers{1, 1}, "")
		after(time.Second, "a", Answers{4, 1}, "the origin s3://b/a asks to slow down: 3 of 10 answers in the last 10 s; fewer nodes at once")
		after(0, "b", Answers{1000, 0}, "")
		after(8*time.Second, "a", Answers{}, "3 of 10 answers")
		after(time.Second, "a", Answers{}, "")
		after(time.Minute, "b", Answers{10_000, 400}, "")
		after(time.Second, "b", Answers{1000, 500}, "900 of 11000 answers")
		after(0, "a", Answers{}, "")
		after((sampled+1)*time.Second, "b", Answers{}, "")
		cancel()
		synctest.Wait()
	})
}
