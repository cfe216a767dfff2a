package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

const (
	// yieldsAfter is how long a call waits for its answer until another may be made
	// beside it: the API server waits for a webhook then, and not the call for it.
	yieldsAfter = time.Second
	// perDrainMost bounds the calls of one drive that are in flight, those included.
	perDrainMost = 64
	// pressedFor is how long nothing more is asked of an API server that said that it is
	// busy, or did not answer.
	pressedFor = 30 * time.Second
)

// waits is what a drive knows of the calls that it waits for, and how long those took that
// were answered. Evictions and deletions, which ask other webhooks, are apart: 0 and 1.
type waits struct {
	mu   sync.Mutex
	sent map[*planned]sent

	slow    [2]bool          // the last that tells was slow, or not answered
	longest [2]time.Duration // an answer took
	pressed time.Time
}

// sent is a call in flight.
type sent struct {
	at    time.Time
	stage int
}

func (w *waits) begin(p *planned, stage int, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent == nil {
		w.sent = map[*planned]sent{}
	}
	w.sent[p] = sent{now, stage}
}

func (w *waits) of(p *planned) (sent, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sent[p]
	return s, ok
}

// yielding counts the calls that have waited so long that they yield; next is when one
// more does, 0 if none will.
func (w *waits) yielding(now time.Time) (n int, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent {
		switch left := yieldsAfter - now.Sub(s.at); {
		case left <= 0:
			n++
		case next == 0 || left < next:
			next = left
		}
	}
	return n, next
}

// ended books how long a call took; what an API server that is away does not answer says
// nothing of webhooks.
func (w *waits) ended(r result, there, answered bool) {
	w.mu.Lock()
	delete(w.sent, r.p)
	w.mu.Unlock()
	if !r.issued || !there && !answered {
		return
	}
	kind := min(r.stage, 1)
	switch {
	case r.took >= cluster.SlowFrom:
		w.slow[kind] = true
	case answered && r.took < yieldsAfter:
		w.slow[kind] = false
	}
	if answered {
		w.longest[kind] = max(w.longest[kind], r.took)
	}
}

// why words what keeps the API server from an answer: a webhook that only is slow answers
// others.
func (w *waits) why(stage int) string {
	if took := w.longest[min(stage, 1)]; took >= cluster.SlowFrom {
		return fmt.Sprintf("an admission webhook is slow, as others were answered after up to %s", took.Round(time.Second))
	}
	return mayHang
}

// room is for how many calls there is room beside those in flight. What only waits for
// its answer leaves its place to another, so that a slow webhook does not make a drain wait
// for one pod after the other; not where the API server itself has too much to do.
func (d *drive) room(l *look, now time.Time) int {
	n, next := d.waits.yielding(now)
	if l.away || now.Sub(d.waits.pressed) < pressedFor {
		return perDrain - d.inFlight
	}
	if next > 0 {
		l.wake(next)
	}
	return min(perDrain-d.inFlight+n, perDrainMost-d.inFlight)
}

// unansweredYet is what keeps a pod whose first call is in flight for longer than short ones are
// given else; nil: nothing yet.
func (d *drive) unansweredYet(l *look, p *planned, now time.Time) *hold {
	s, ok := d.waits.of(p)
	if !ok || l.away {
		return nil
	}
	if left := cluster.ShownAfter - now.Sub(s.at); left > 0 {
		l.wake(left)
		return nil
	}
	what, code, since := "eviction", codeUnanswered, s.at.UTC()
	if s.stage > 0 {
		what, code = "deletion", codeUndeleted
	}
	return &hold{code: code, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: its %s has had no answer since %s: %s", p.name, what, since.Format(time.RFC3339), d.waits.why(s.stage))}
}
