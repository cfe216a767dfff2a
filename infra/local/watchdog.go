package local

import (
	"context"
	"sync"
	"time"
)

// pulse is when the reactor was last seen alive: a stream was judged; its feed came
// round, and there was nothing to judge and nothing that could not be; or events were
// judged meanwhile, as when it catches up.
type pulse struct {
	mu     sync.Mutex
	at     time.Time
	judged int64
}

func (e *Engine) reactorLives() {
	e.pulse.mu.Lock()
	e.pulse.at = time.Now()
	e.pulse.mu.Unlock()
}

// reactorSince is when the reactor was last seen alive.
func (e *Engine) reactorSince() time.Time {
	judged := e.Reactor.Metrics.Read().Judged
	e.pulse.mu.Lock()
	defer e.pulse.mu.Unlock()
	if judged != e.pulse.judged {
		e.pulse.judged, e.pulse.at = judged, time.Now()
	}
	return e.pulse.at
}

// silentPart is a part of the engine that is silent.
type silentPart struct {
	part  string
	means string // what nobody does meanwhile
	since time.Duration
}

// silent lists what is silent and should not be. A stream that cannot be judged is
// not: the others are, and the engine serves.
func (e *Engine) silent(now time.Time) []silentPart {
	var out []silentPart
	for _, x := range []struct {
		part, means string
		at          time.Time
	}{
		{"sweep", "deadlines and dead leases are not looked after", time.UnixMilli(e.swept.Load())},
		{"reactor", "no alert fires and none resolves", e.reactorSince()},
	} {
		if since := now.Sub(x.at); since > watchdogAfter {
			out = append(out, silentPart{x.part, x.means, since.Round(time.Second)})
		}
	}
	return out
}

// watchdog says what is silent: nothing else would notice, for alerts come from
// what it watches.
func (e *Engine) watchdog(ctx context.Context) {
	for sleep(ctx, watchdogEvery) {
		e.watch(time.Now())
	}
}

func (e *Engine) watch(now time.Time) {
	for _, q := range e.silent(now) {
		e.opts.Logger.Error("a part of the engine is silent", "part", q.part, "for", q.since, "means", q.means)
	}
	if n, oldest := e.behind.longer(now, watchdogAfter); n > 0 {
		e.opts.Logger.Error("streams have not been judged: no alert of theirs fires or resolves", "streams", n, "for", now.Sub(oldest).Round(time.Second))
	}
}
