package node

import (
	"context"
	"fmt"
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
	again := ""
	if u.tries > 1 {
		again = fmt.Sprintf(", the last of %d tries", u.tries)
	}
	return &refusal{code: codeUnanswered, rule: "admission", since: &since,
		why: fmt.Sprintf("pod %s: its eviction was not answered within %s%s, and it is not stopping: an admission webhook may hang", pod, u.took.Round(time.Second), again)}
}

// patience is how long the next eviction of a pod may take whose last one was not
// answered: as long as admission may. A forced deletion does not wait for it.
func (d *drive) patience() time.Duration {
	return min(cluster.AdmissionMost, d.t.Remaining()-max(d.p.window(), readBack))
}

// tooLate tells whether no eviction of such a pod is asked for any more: what is left
// of the time is for reading, or for deletions.
func (d *drive) tooLate(p *planned, force bool) bool {
	u := p.unheard
	return u.tries > 0 && (force || d.patience() < max(askLeast, u.needs))
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
// became of these is not known.
func (d *drive) openEnd(lost int, o executor.Outcome) executor.Outcome {
	detail := fmt.Sprintf("what became of %d evictions is not known", lost)
	if o.Detail != "" {
		detail += "; " + o.Detail
	}
	x := executor.Ambiguous(detail)
	if away, _ := d.c.Pulse.State(); away == nil {
		x.ActionCode = operation.ActRestoreDependency
		x.ActionText = "see that the API server answers, and every admission webhook that it asks about evictions; look which pods are stopping, then drain again"
	}
	return x
}
