package auth

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Defaults of a Limiter.
const (
	DefaultRate  = 500 // requests a second
	DefaultWaits = 100 // open waits
)

// limiterMax is how many principals are remembered before the idle ones are
// looked through at each newcomer.
const limiterMax = 10_000

// Limiter bounds what one principal can ask of this process: requests a second,
// and long polls open at once. Zero fields mean the defaults; that of Burst is what two
// seconds allow, and 10 at least. Principals that
// have been idle for as long as their burst takes to fill again are forgotten,
// which changes nothing for them.
type Limiter struct {
	Rate  float64
	Burst int
	Waits int
	Now   func() time.Time

	mu      sync.Mutex
	by      map[string]*usage
	sweptAt time.Time
}

type usage struct {
	bucket *rate.Limiter
	waits  int
	seen   time.Time
}

func (l *Limiter) clock() time.Time {
	if l.Now != nil {
		return l.Now()
	}
	return time.Now()
}

// burst is how much a principal that was idle may ask at once: five seconds'
// worth, so that a script that reads back what it made is not stopped in it.
func (l *Limiter) burst() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return int(min(max(5*l.MaxRate(), 10), math.MaxInt32))
}

// MaxRate is how many requests a second it allows.
func (l *Limiter) MaxRate() float64 {
	if l.Rate > 0 {
		return l.Rate
	}
	return DefaultRate
}

// MaxWaits is how many open waits it allows.
func (l *Limiter) MaxWaits() int {
	if l.Waits > 0 {
		return l.Waits
	}
	return DefaultWaits
}

// Allow tells whether the principal may make a request now and, when not, after
// how long.
func (l *Limiter) Allow(id string) (ok bool, retryAfter time.Duration) {
	now := l.clock()
	l.mu.Lock()
	bucket := l.use(id, now).bucket
	l.mu.Unlock()
	r := bucket.ReserveN(now, 1)
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return false, wait
	}
	return true, 0
}

// AcquireWait takes one of the principal's open waits; release gives it back,
// once, however often it is called.
func (l *Limiter) AcquireWait(id string) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.use(id, l.clock())
	if u.waits >= l.MaxWaits() {
		return func() {}, false
	}
	u.waits++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.waits--
		u.seen = l.clock()
	}), true
}

// use is called with the lock held.
func (l *Limiter) use(id string, now time.Time) *usage {
	if l.by == nil {
		l.by = map[string]*usage{}
		l.sweptAt = now
	}
	idle := time.Duration(float64(l.burst())/l.MaxRate()*float64(time.Second)) + time.Second
	u := l.by[id]
	if u == nil {
		if now.Sub(l.sweptAt) > idle || len(l.by) >= limiterMax && now.Sub(l.sweptAt) > time.Second {
			l.sweep(now, idle)
		}
		u = &usage{bucket: rate.NewLimiter(rate.Limit(l.MaxRate()), l.burst())}
		l.by[id] = u
	}
	u.seen = now
	return u
}

func (l *Limiter) sweep(now time.Time, idle time.Duration) {
	l.sweptAt = now
	for id, u := range l.by {
		if u.waits == 0 && now.Sub(u.seen) > idle {
			delete(l.by, id)
		}
	}
}
