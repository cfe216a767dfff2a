package loop

import (
	"maps"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// progressed changes what is known of a step's progress and tells it, unless
// nothing changed. Another step begins anew.
func (r *run) progressed(step string, change func(p *operation.Progress)) {
	r.mu.Lock()
	next := r.progress
	if next.Step != step {
		next = operation.Progress{Step: step}
	}
	change(&next)
	same := next.Equal(&r.progress)
	r.progress = next
	r.watchSilence(next.Blockers)
	r.mu.Unlock()
	if !same {
		r.out.tell(next)
	}
}

// standsAgainWithin is how long something may be away from what stands in the way and
// still be the same trouble: while a refused call is made again nothing is known to
// refuse it, and between two tries lies half a minute at most.
const standsAgainWithin = time.Minute

// clockFar is from where on this machine's clock counts as wrong, as it does for the plane.
const clockFar = 30 * time.Second

// dated is a time of this machine's by the plane's clock, where the two are far apart: that
// something has stood in the way since before the operation was made, or will from some
// minute on, helps nobody. The operation's deadline, and what is left until then, tell.
func (r *run) dated(at time.Time) time.Time {
	if r.a.Deadline.IsZero() {
		return at.UTC()
	}
	off := r.a.Deadline.Add(-r.lease.left()).Sub(r.agent.now())
	if off.Abs() < clockFar {
		off = 0
	}
	return at.Add(off).UTC()
}

// sinceMost is how long an executor may say that something has stood in the way: a time
// further back is a clock's fault, or none at all. Pods that cannot end do so for weeks.
const sinceMost = 366 * 24 * time.Hour

// obstacle is what one blocker is about; its detail changes as counts do.
type obstacle struct{ code, resource, rule string }

// stood is since when something stands in the way, and when it was seen no longer;
// zero: it stands there now. said: the executor knows since when.
type stood struct {
	since, gone time.Time
	said        bool
}

// obstacles are what has stood in a run's way lately. The zero value is ready.
type obstacles map[obstacle]stood

// now bounds and cleans what stands in the way at this time and says since when it
// does: since the executor knows that it does, and of what is back after a moment, since
// it did at first. That may be before it was shown, or after: a preflight shows what is
// yet to stand in the way.
func (o *obstacles) now(at time.Time, blockers []protocol.Blocker) []protocol.Blocker {
	if *o == nil {
		*o = obstacles{}
	}
	maps.DeleteFunc(*o, func(_ obstacle, s stood) bool { return !s.gone.IsZero() && at.Sub(s.gone) > standsAgainWithin })
	for k, s := range *o {
		if s.gone.IsZero() {
			s.gone = at
			(*o)[k] = s
		}
	}
	out := make([]protocol.Blocker, 0, min(len(blockers), operation.MaxProgressBlockers))
	for _, b := range blockers[:min(len(blockers), operation.MaxProgressBlockers)] {
		b.Code, b.Resource, b.Rule, b.Detail = cut(clean(b.Code), 128), redact(b.Resource, 512), redact(b.Rule, 512), redact(b.Detail, 512)
		k := obstacle{b.Code, b.Resource, b.Rule}
		s, before := (*o)[k]
		if !before {
			s.since = at
		}
		if said := b.Since; said != nil && !said.After(at) && at.Sub(*said) <= sinceMost && (!s.said || said.Before(s.since)) {
			s.since, s.said = said.UTC(), true
		}
		s.gone = time.Time{}
		(*o)[k] = s
		b.Since = &s.since
		out = append(out, b)
	}
	return out
}
