package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

// codeUnanswered is of a pod whose eviction the API server, which answers else, did
// not answer, and codeUndeleted of one whose deletion it did not: it asks admission
// webhooks first, each of which may take up to 30 s, and 10 s where its owner said
// nothing. Calls are given less.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts
const (
	codeUnanswered = "eviction_unanswered"
	codeUndeleted  = "deletion_unanswered"
)

const (
	// shortOf is twice what calls are given: where less is left there is no second call
	// that may take longer than the first.
	shortOf = 16 * time.Second
	// shortOfMost is the same of a second call that may take as long as admission may,
	// and is read back: what is deleted has no other chance.
	shortOfMost = shortOf/2 + cluster.AdmissionMost + readBack
	// askLeast is the shortest time for which it is asked for once more.
	askLeast = time.Second
	// readBack is what such a call leaves of the time before the deadline, to read what
	// became of the pod, or the node: the step knows it then.
	readBack = 2 * time.Second
	// maxPatient bounds, over all drains, the calls in flight that may take so long.
	maxPatient = 64
)

// unheard is what is known of evictions of a pod that were not answered, in a row, or of
// its deletions. The zero value: there is none.
type unheard struct {
	stage int           // of the last
	since time.Time     // the first was sent
	took  time.Duration // the last
	tries int
	needs time.Duration // how long the last answer took, if there was one
	open  bool          // the pod is yet to be read
}

// of is what is known of calls of that stage.
func (u *unheard) of(stage int) *unheard {
	if u.stage == 0 && stage > 0 { // the pod's evictions are over
		*u = unheard{}
	}
	u.stage = stage
	return u
}

// refusal is what keeps a pod that was read after its eviction was not answered.
func (u *unheard) refusal(pod, cause string) *refusal {
	since, code := u.since.UTC(), codeUnanswered
	if u.stage > 0 {
		code = codeUndeleted
	}
	return &refusal{stage: u.stage, code: code, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: %s, and it is not stopping: %s", pod, u, cause)}
}

// mayHang is what keeps an API server from its answer that answers else.
const mayHang = "an admission webhook may hang"

func (u *unheard) String() string {
	what := "eviction"
	if u.stage > 0 {
		what = "deletion"
	}
	s := fmt.Sprintf("its %s was not answered within %s", what, u.took.Round(time.Second))
	if u.tries > 1 {
		s += fmt.Sprintf(", the last of %d tries", u.tries)
	}
	return s
}

// patience is how long the next call about a pod may take whose last one was not
// answered: as long as admission may. A forced deletion waits for no eviction.
func (d *drive) patience(stage int) time.Duration {
	keep := readBack
	if stage == 0 {
		keep = max(d.p.window(), readBack)
	}
	return min(cluster.AdmissionMost, d.t.Remaining()-keep)
}

// isPatient tells whether the next call about the pod may take as long as patience: its
// last one was not answered, or those of others took long or do so now, or it is the last
// for which there is time, as of a drain that is taken over near its deadline. A webhook is
// heard, and named, that answers until then.
func (d *drive) isPatient(p *planned, stage int) bool {
	left := d.patience(stage)
	last := left < shortOf
	if stage > 0 {
		last = d.t.Remaining() < shortOfMost
	}
	slow := d.waits.slow[min(stage, 1)] || d.inFlight >= perDrain
	return left >= askLeast && (p.unheard.tries > 0 || slow || last)
}

// tooLate tells whether no eviction of such a pod is asked for any more, nor of one whose
// last refusal took longer than is left: what is left of the time is for reading, or for
// deletions. One whose evictions do nothing is deleted in the window, and where there is
// none the last of them has time to be answered, and the pod to be read: else nobody could
// say what became of it.
func (d *drive) tooLate(p *planned, force bool) bool {
	if p.refusal.code == codeNoEffect && (force || d.patience(0) < askLeast) {
		return true
	}
	u := p.unheard
	if u.tries == 0 {
		return u.needs >= askLeast && d.patience(0) < u.needs
	}
	return force || d.patience(0) < max(askLeast, u.needs)
}

// overdue tells the same of its deletions.
func (d *drive) overdue(p *planned) bool {
	u := p.unheard
	return u.stage > 0 && (u.tries > 0 || u.needs >= askLeast) && d.patience(u.stage) < max(askLeast, u.needs)
}

// untilOver is the context of a call that may take long: it is given up with the drive,
// which waits for its calls. The API server ends a request whose sender has gone.
func (d *drive) untilOver(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		select {
		case <-d.over:
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

// notAnswered books a call whose answer did not come, if there was somebody to give it.
// The pod is read before that is told.
func (d *drive) notAnswered(p *planned, r result) {
	if away, _ := d.c.Pulse.State(); away != nil {
		return
	}
	u := p.unheard.of(r.stage)
	if u.tries++; u.tries == 1 {
		u.since = r.begun
	}
	u.took, u.open = r.took, true
}

// openEnd is the outcome of a drive that was ended while calls were in flight: what
// became of these is not known. What was waited for before is told with it, and that
// calls went unanswered.
func (d *drive) openEnd(lost int, o executor.Outcome) executor.Outcome {
	what := "evictions"
	if d.p.forceNow(d.t) {
		what += " and deletions"
	}
	detail := fmt.Sprintf("what became of %d %s is not known", lost, what)
	if o.Detail != "" {
		detail += "; " + o.Detail
	}
	away, _ := d.c.Pulse.State()
	if p := d.firstUnheard(); p != nil && away == nil && !strings.Contains(detail, mayHang) {
		detail += fmt.Sprintf("; pod %s: %s: %s", p.name, &p.unheard, mayHang)
	}
	x := executor.Ambiguous(detail)
	x.ActionCode = operation.ActRestoreDependency
	x.ActionText = fmt.Sprintf("see that the API server answers, and every admission webhook that it asks about %s; look which pods are stopping, then drain again", what)
	if away != nil {
		x.ActionText = "find out why the API server does not answer; look which pods are stopping once it does, then drain again"
	}
	return x
}

// firstUnheard is the first pod that is left whose last call was not answered; nil: there is
// none.
func (d *drive) firstUnheard() *planned {
	for _, p := range sorted(d.s.plan, d.p) {
		if p.unheard.tries > 0 && p.left() && !p.going() {
			return p
		}
	}
	return nil
}
