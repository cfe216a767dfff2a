package deployment

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// backward tells what keeps the pods of before from getting ready again, of a restart
// that was taken back. until is when nobody waits for them any more.
func (s scene) backward(by cluster.Mark, b Bounds, until time.Time, seen map[string]time.Time, now time.Time) verdict {
	var v verdict
	var list []cause
	if s.record != nil {
		v.progressed = s.record.At
	}
	fair := s.fair(by, b)
	for _, p := range slices.SortedFunc(slices.Values(s.pods), byReplica) {
		switch {
		case !s.owned(p) || ended(p):
		case p.DeletionTimestamp != nil:
			if s.inPlace() {
				v.stopping = append(v.stopping, p)
				c, is, wake := stopCause(p, now)
				if is {
					list = append(list, c)
				}
				v.wakeAt(wake)
			}
		case !s.renewed(p, by): // what the restart made is on its way out
			v.progressed = latest(v.progressed, p.CreationTimestamp.Time)
			if c := condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
				v.progressed = latest(v.progressed, c.LastTransitionTime.Time)
			}
			list = append(list, v.hear(s, p, b, fair, seen, now)...)
		}
	}
	list = append(append(append(list, s.holds()...), s.refused...), s.events...)
	v.causes, v.unready = sum(list), sum(v.unready)
	c, is, wake := s.silence(&v, b, seen, now)
	if is {
		v.causes = sum(append(v.causes, c))
	}
	v.wakeAt(wake)
	v.date(seen, now)
	for i, c := range v.causes {
		if slices.Contains(standstills, c.code) {
			v.causes[i].next = fmt.Sprintf("the undo waits for it until %s", clock(until))
		}
	}
	return v
}

// unseen is the outcome of an undo that was stopped before its pods were seen ready: what
// keeps them is why.
func (v verdict) unseen(halt, detail string) executor.Outcome {
	first, is := v.first()
	if is {
		detail += ": " + first.detail
	}
	o := executor.Waiting(halt, detail)
	if is && halt == "interrupted" {
		advise(&o, first.code)
	}
	return o
}
