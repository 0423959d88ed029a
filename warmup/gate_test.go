package warmup

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	mostSteps  = 80             // steps that connections allow
	firstLarge = firstSteps / 4 // steps that may be large before any brought more
)

// at runs do beside a running Gate, on a clock of its own.
func at(t *testing.T, p Pressure, do func(t *testing.T, g *Gate)) {
	none := func() int64 { return 0 }
	if p.Readers == nil {
		p.Readers = none
	}
	if p.Throttled == nil {
		p.Throttled = none
	}
	p.Most = func() int { return mostSteps }
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.Run(ctx, p)
		}()
		do(t, g)
		stop()
		<-ended
	})
}

func TestReadersGoFirst(t *testing.T) {
	// A reader's request narrows the gate within a tenth of a second; half a second after
	// the last one it is as wide as before.
	var reads atomic.Int64
	at(t, Pressure{Readers: reads.Load}, func(t *testing.T, g *Gate) {
		s := g.Join()
		defer s.Leave()
		for range 3 {
			for range 10 {
				reads.Add(1)
				time.Sleep(100 * time.Millisecond)
			}
			if most, _ := g.Steps(); most != busySteps {
				t.Errorf("%d steps while readers read", most)
			}
			time.Sleep(500 * time.Millisecond)
			if most, _ := g.Steps(); most != firstSteps {
				t.Errorf("%d steps half a second later", most)
			}
		}
	})
}

func TestHalfACoreWhileReadersRead(t *testing.T) {
	// Steps that do nothing but work run beside other work. While readers are active they
	// take half a core at most; within a second of the last reader there are as many as
	// before. A step rests for maxRest at most, so half a core holds for steps of up to a
	// third of that, 67 ms. A longer step waits for its origin or its disk. The bound is
	// then busySteps under way, each of which rests maxRest before the next, and
	// busySteps cores if they worked all the time. No step does: an extent is 16 MiB at
	// most, of which copies and checksums are some ten milliseconds.
	for _, x := range []struct {
		step time.Duration
		most float64 // cores
	}{{20 * time.Millisecond, 0.5}, {maxRest / restPerWork, 0.5}, {150 * time.Millisecond, busySteps * 150. / (150 + 200)}, {2 * time.Second, busySteps * 2000. / (2000 + 200)}} {
		t.Run(x.step.String(), func(t *testing.T) { beside(t, x.step, x.most) })
	}
}

// beside checks that steps of a length take no more than so many cores while readers are
// active.
func beside(t *testing.T, step time.Duration, most float64) {
	var reads atomic.Int64
	at(t, Pressure{Readers: reads.Load}, func(t *testing.T, g *Gate) {
		ctx, stop := context.WithCancel(t.Context())
		s := g.Join()
		defer s.Leave()
		var work sync.WaitGroup
		var worked atomic.Int64
		for range firstSteps + 20 {
			work.Go(func() {
				for {
					p, err := s.Enter(ctx, false)
					if err != nil {
						return
					}
					time.Sleep(step)
					worked.Add(int64(step))
					p.Exit(ctx, 1<<10)
				}
			})
		}
		read := func(d time.Duration) {
			for range d / (100 * time.Millisecond) {
				reads.Add(1)
				time.Sleep(100 * time.Millisecond)
			}
		}
		read(10 * time.Second)
		before := worked.Load()
		read(40 * time.Second)
		took, all := time.Duration(worked.Load()-before), time.Duration(most*float64(40*time.Second))
		// Each of the steps under way may have begun before, or not have ended.
		if took > all+busySteps*step || took < all*8/10-busySteps*step {
			t.Errorf("%.2f cores while readers read, want at most %.2f", took.Seconds()/40, most)
		}
		time.Sleep(time.Second)
		synctest.Wait() // a step that ends at this moment is followed by the next
		if _, flying := g.Steps(); flying < firstSteps {
			t.Errorf("%d steps under way a second later", flying)
		}
		stop()
		work.Wait()
	})
}

func TestHalfACoreForStepsAndNames(t *testing.T) {
	// Large steps of four requests, six walks over names and an occasional checkpoint run
	// together. While readers are active, all of it takes half a core, and each has its
	// share. A request of 37 ms is within what is rested for in full. When steps are slow
	// because of their origin, names still go on.
	for _, x := range []struct {
		what            string
		request         time.Duration
		least, most     float64 // cores, of all
		steps, besideIt float64 // at least
	}{
		{"requests", 37 * time.Millisecond, 0.45, 0.5, 0.15, 0.1},
		{"a slow origin", 2 * time.Second, 1.5, 2.5, 1.5, 0.05},
	} {
		t.Run(x.what, func(t *testing.T) {
			var reads, steps, names atomic.Int64
			at(t, Pressure{Readers: reads.Load}, func(t *testing.T, g *Gate) {
				ctx, stop := context.WithCancel(t.Context())
				s := g.Join()
				defer s.Leave()
				var work sync.WaitGroup
				works := func(by *atomic.Int64, d time.Duration) {
					time.Sleep(d)
					by.Add(int64(d))
				}
				for range 6 {
					work.Go(func() {
						for ctx.Err() == nil {
							p, err := s.Enter(ctx, true)
							if err != nil {
								return
							}
							for i := range 4 {
								if i > 0 {
									p.Rest(ctx)
								}
								works(&steps, x.request)
							}
							p.Exit(ctx, 16<<20)
						}
					})
					work.Go(func() {
						for ctx.Err() == nil {
							works(&names, 100*time.Microsecond)
							g.Breathe(ctx, 100*time.Microsecond)
						}
					})
				}
				work.Go(func() {
					for ctx.Err() == nil {
						works(&names, 50*time.Millisecond)
						g.Breathe(ctx, 50*time.Millisecond)
						time.Sleep(time.Second)
					}
				})
				read := func(d time.Duration) {
					for range d / (100 * time.Millisecond) {
						reads.Add(1)
						time.Sleep(100 * time.Millisecond)
					}
				}
				read(20 * time.Second)
				s0, n0 := steps.Load(), names.Load()
				read(40 * time.Second)
				of := func(n int64) float64 { return time.Duration(n).Seconds() / 40 }
				by, beside := of(steps.Load()-s0), of(names.Load()-n0)
				// What is under way may have begun before, or not have ended.
				if all := by + beside; all > x.most+0.01 || all < x.least || by < x.steps || beside < x.besideIt {
					t.Errorf("steps %.3f and names %.3f cores, want at most %.2f together", by, beside, x.most)
				}
				stop()
				work.Wait()
			})
		})
	}
}

func TestSlowDownShrinks(t *testing.T) {
	// Steps grow while that brings more, and are halved by each look that hears of
	// SlowDown. After that they grow again.
	var slowed atomic.Int64
	at(t, Pressure{Throttled: slowed.Load}, func(t *testing.T, g *Gate) {
		ctx, stop := context.WithCancel(t.Context())
		s := g.Join()
		defer s.Leave()
		var work sync.WaitGroup
		for range 100 {
			work.Go(func() {
				for {
					p, err := s.Enter(ctx, false)
					if err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond) // whatever else is under way
					p.Exit(ctx, 16<<10)
				}
			})
		}
		time.Sleep(5 * time.Second)
		synctest.Wait() // steps that end at this moment are followed by the next
		if most, flying := g.Steps(); most != mostSteps || flying < mostSteps-6 {
			t.Errorf("%d of %d steps of an origin that has enough for all", flying, most)
		}
		for range 2 {
			slowed.Add(1)
			time.Sleep(pilotEvery + readersEvery)
		}
		if most, flying := g.Steps(); most != mostSteps/4 || flying > mostSteps/4 {
			t.Errorf("%d of %d steps after SlowDown", flying, most)
		}
		time.Sleep(10 * time.Second)
		if most, _ := g.Steps(); most < mostSteps/2 {
			t.Errorf("%d steps ten seconds later", most)
		}
		stop()
		work.Wait()
	})
}

func TestLargeStepsGrow(t *testing.T) {
	// A job has as many large steps under way as it said, and three before it said so. If
	// each stream of an origin brings as much as the others, they become more than at
	// first.
	at(t, Pressure{}, func(t *testing.T, g *Gate) {
		ctx, stop := context.WithCancel(t.Context())
		s := g.Join()
		defer s.Leave()
		var work sync.WaitGroup
		for range 40 {
			work.Go(func() {
				for {
					p, err := s.Enter(ctx, true)
					if err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond) // whatever else is under way
					p.Exit(ctx, 4<<20)
				}
			})
		}
		for _, x := range []struct{ said, want int }{{0, leastLarge}, {5, 5}, {10, 10}, {100, mostSteps / 4}, {4, 4}} {
			s.Large(x.said)
			time.Sleep(5 * time.Second)
			if _, flying := g.Steps(); flying != x.want {
				t.Errorf("%d large steps under way of a job that may have %d, want %d", flying, x.said, x.want)
			}
		}
		stop()
		work.Wait()
	})
}

func TestJobsShare(t *testing.T) {
	// One job has all steps, large ones too. Another one comes, and has half of each as
	// soon as steps end. A third one that wants one step alone gets it.
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		many := func(large bool) *GateShare {
			s := g.Join()
			s.Large(firstSteps)
			for range firstSteps {
				work.Go(func() {
					for {
						p, err := s.Enter(ctx, large)
						if err != nil {
							return
						}
						time.Sleep(time.Second)
						p.Exit(ctx, 1)
					}
				})
			}
			return s
		}
		under := func(s *GateShare) int {
			g.mu.Lock()
			defer g.mu.Unlock()
			return s.flying
		}
		first := many(false)
		time.Sleep(1500 * time.Millisecond)
		if n := under(first); n != firstSteps {
			t.Errorf("alone: %d steps", n)
		}
		second := many(false)
		time.Sleep(2 * time.Second)
		if a, b := under(first), under(second); a != firstSteps/2 || b != firstSteps/2 {
			t.Errorf("two: %d and %d steps", a, b)
		}
		large, another := many(true), many(true)
		time.Sleep(4 * time.Second)
		if a, b := under(large), under(another); a != firstLarge/2 || b != firstLarge/2 {
			t.Errorf("two that are large: %d and %d", a, b)
		}
		late := g.Join()
		soon, cancel := context.WithTimeout(ctx, 5*time.Second)
		if p, err := late.Enter(soon, true); err != nil {
			t.Errorf("a late one: %v", err)
		} else {
			p.Exit(ctx, 1)
		}
		cancel()
		late.Leave()
		stop()
		work.Wait()
		for _, s := range []*GateShare{first, second, large, another} {
			s.Leave()
		}
		if _, flying := g.Steps(); flying != 0 {
			t.Errorf("%d steps under way at the end", flying)
		}
	})
}

func TestAsideIsNoStep(t *testing.T) {
	// Steps that wait without working leave their places to another job, and go on when
	// there is a place. A step whose wait ends with its context only exits.
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		a, b := g.Join(), g.Join()
		a.Large(firstLarge)
		b.Large(firstLarge)
		var work sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		go1 := make(chan struct{})
		for range firstLarge {
			work.Go(func() {
				p, err := a.Enter(ctx, true)
				if err != nil {
					t.Error(err)
					return
				}
				defer p.Exit(ctx, 1)
				if err := p.Aside(ctx, func() error { <-go1; return nil }); err == nil {
					t.Error("went on beside as many others")
				}
			})
		}
		synctest.Wait()
		var others []*GatePass
		for range firstLarge {
			p, err := b.Enter(ctx, true)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, p)
		}
		close(go1)
		synctest.Wait()
		stop()
		work.Wait()
		for _, p := range others {
			p.Exit(ctx, 1)
		}
		if _, flying := g.Steps(); flying != 0 || g.large != 0 || a.begun[1] != 0 || b.begun[1] != 0 {
			t.Errorf("%d steps, %d large; begun %v, %v", flying, g.large, a.begun, b.begun)
		}
	})
}

func TestPilot(t *testing.T) {
	// The number of steps grows while the rate does. SlowDown halves it, and it rests
	// then. It shrinks when the rate falls.
	p := pilot{steps: firstSteps}
	for i := range 20 {
		p.fly(float64(1000*(i+1)), true, false, 56)
	}
	if p.steps != 56 {
		t.Errorf("%d steps while the rate grows, want all", p.steps)
	}
	if p.fly(1000, true, true, 56); p.steps != 28 {
		t.Errorf("%d steps after SlowDown", p.steps)
	}
	for range 9 {
		p.fly(5000, true, false, 56)
	}
	if p.steps != 28 {
		t.Errorf("%d steps right after SlowDown", p.steps)
	}
	p = pilot{steps: 40, best: 1000}
	if p.fly(500, true, false, 56); p.steps != 30 {
		t.Errorf("%d steps at half the rate", p.steps)
	}
}
