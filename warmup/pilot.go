package warmup

// pilot finds the number of steps in flight that brings the most: congestion control by
// arithmetic alone. The number grows while the rate does, and is halved when an origin asks
// to slow down.
type pilot struct {
	steps int
	best  float64 // the best units per second so far, slowly forgotten
	rest  int     // intervals left without growth, after an origin asked to slow down
	flat  int     // intervals without a gain
}

// fly takes the rate of the last interval, whether all steps were in flight in it, and
// whether an origin asked to slow down. It returns the number of steps for the next
// interval.
func (p *pilot) fly(rate float64, full, throttled bool, most int) int {
	switch {
	case throttled:
		p.steps, p.best, p.rest = p.steps/2, 0, 10
	case p.rest > 0:
		p.rest--
	case !full:
	case rate > 1.05*p.best:
		p.best, p.flat = rate, 0
		p.steps += max(4, p.steps/2)
	case rate < 0.6*p.best: // too many, or the origin has become slower
		p.best = rate
		p.steps = p.steps * 3 / 4
	default:
		p.best *= 0.99 // an old best rate fades
		if p.flat++; p.flat%10 == 0 {
			p.steps += 2
		}
	}
	p.steps = max(busySteps, min(p.steps, most))
	return p.steps
}
