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
// not answer: it asks admission webhooks first, each of which may take up to 30 s, and
// 10 s where its owner said nothing. Calls are given less.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts
const codeUnanswered = "eviction_unanswered"

const (
	// shortOf is twice what calls are given: where less is left there is no second call
	// that may take longer than the first.
	shortOf = 16 * time.Second
	// askLeast is the shortest time for which it is asked for once more.
	askLeast = time.Second
	// readBack is what such a call leaves of the time before the deadline, to read what
	// became of the pod, or the node: the step knows it then.
	readBack = 2 * time.Second
	// maxPatient bounds, over all drains, the evictions in flight that may take so long.
	maxPatient = 32
)

// unheard is what is known of evictions of a pod that were not answered, in a row. The
// zero value: there is none.
type unheard struct {
	since time.Time     // the first was sent
	took  time.Duration // the last
	tries int
	needs time.Duration // how long the last answer took, if there was one
	open  bool          // the pod is yet to be read
}

// refusal is what keeps a pod that was read after its eviction was not answered.
func (u *unheard) refusal(pod string) *refusal {
	since := u.since.UTC()
	return &refusal{code: codeUnanswered, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: %s, and it is not stopping: %s", pod, u, mayHang)}
}

// mayHang is what keeps an API server from its answer that answers else.
const mayHang = "an admission webhook may hang"

func (u *unheard) String() string {
	s := fmt.Sprintf("its eviction was not answered within %s", u.took.Round(time.Second))
	if u.tries > 1 {
		s += fmt.Sprintf(", the last of %d tries", u.tries)
	}
	return s
}

// patience is how long the next eviction of a pod may take whose last one was not
// answered: as long as admission may. A forced deletion does not wait for it.
func (d *drive) patience() time.Duration {
	return min(cluster.AdmissionMost, d.t.Remaining()-max(d.p.window(), readBack))
}

// isPatient tells whether the pod's eviction may take as long as patience: its last one was
// not answered, or it is the last for which there is time, as of a drain that is taken
// over near its deadline. A webhook is heard, and named, that answers until then.
func (d *drive) isPatient(p *planned) bool {
	left := d.patience()
	return p.unheard.tries > 0 || left >= askLeast && left < shortOf
}

// tooLate tells whether no eviction of such a pod is asked for any more, nor of one whose
// last refusal took longer than is left: what is left of the time is for reading, or for
// deletions. One whose evictions do nothing is deleted in the window.
func (d *drive) tooLate(p *planned, force bool) bool {
	if force && p.refusal.code == codeNoEffect {
		return true
	}
	u := p.unheard
	if u.tries == 0 {
		return u.needs >= askLeast && d.patience() < u.needs
	}
	return force || d.patience() < max(askLeast, u.needs)
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

// notAnswered books an eviction whose answer did not come, if there was somebody to
// give it. The pod is read before that is told.
func (d *drive) notAnswered(p *planned, r result) {
	if away, _ := d.c.Pulse.State(); r.stage > 0 || away != nil {
		return
	}
	u := &p.unheard
	if u.tries++; u.tries == 1 {
		u.since = r.begun
	}
	u.took, u.open = r.took, true
}

// openEnd is the outcome of a drive that was ended while evictions were in flight: what
// became of these is not known. What was waited for before is told with it, and that
// evictions went unanswered.
func (d *drive) openEnd(lost int, o executor.Outcome) executor.Outcome {
	detail := fmt.Sprintf("what became of %d evictions is not known", lost)
	if o.Detail != "" {
		detail += "; " + o.Detail
	}
	away, _ := d.c.Pulse.State()
	if p := d.unheard(); p != nil && away == nil && !strings.Contains(detail, mayHang) {
		detail += fmt.Sprintf("; pod %s: %s: %s", p.name, &p.unheard, mayHang)
	}
	x := executor.Ambiguous(detail)
	x.ActionCode = operation.ActRestoreDependency
	x.ActionText = "see that the API server answers, and every admission webhook that it asks about evictions; look which pods are stopping, then drain again"
	if away != nil {
		x.ActionText = "find out why the API server does not answer; look which pods are stopping once it does, then drain again"
	}
	return x
}

// unheard is the first pod that is left whose last eviction was not answered; nil: there
// is none.
func (d *drive) unheard() *planned {
	for _, p := range sorted(d.s.plan, d.p) {
		if p.unheard.tries > 0 && p.left() && !p.going() {
			return p
		}
	}
	return nil
}
