package deployment

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What seen keeps beside causes: since when a controller has done nothing.
const (
	seenUnobserved = "\x00unobserved"
	seenIdle       = "\x00idle"
)

// unobserved tells of an object whose controller does not take notice of what it is
// asked for, as while the controller manager does not run: since when, and of what.
func (s scene) unobserved(seen map[string]time.Time, now time.Time) (since time.Time, what string, is bool) {
	switch {
	case s.record == nil:
	case s.kind == dynamoGraphs:
		if s.restart.observed != s.record.ID {
			return s.record.At, fmt.Sprintf("the restart (status.restart.observedID is %q)", s.restart.observed), true
		}
	case s.setless || s.observed == 0 && s.kind == leaderWorkerSets: // one that does not tell
	case s.observed < s.generation:
		what = fmt.Sprintf("its generation %d (observed is %d)", s.generation, s.observed)
		if g := s.record.Goal; g != nil && s.observed < g.Generation {
			return s.record.At, "the restart: " + what, true
		}
		if _, known := seen[seenUnobserved]; !known {
			seen[seenUnobserved] = now
		}
		return seen[seenUnobserved], what, true
	}
	delete(seen, seenUnobserved)
	return time.Time{}, "", false
}

// idle tells whether there is something to do for the controller and for nobody
// else: no pod is stopping or getting ready.
func (s scene) idle() bool {
	if s.kind == dynamoGraphs { // whose operator has pods made by controllers in between
		return false
	}
	for _, p := range s.pods {
		if s.owned(p) && !ended(p) && (p.DeletionTimestamp != nil || !ready(p)) {
			return false
		}
	}
	return true
}

// silence is the cause of a rollout whose controller does nothing: by what it has not
// observed, or by what it leaves undone. wake is when it will count as one.
func (s scene) silence(v *verdict, b Bounds, seen map[string]time.Time, now time.Time) (c cause, is bool, wake time.Time) {
	quiet := cmp.Or(b.Silence, DefaultBounds.Silence)
	c = cause{code: codeSilent, resource: "deployment/" + s.name(), rest: "the cluster rolls on once its controller runs"}
	since, what, is := s.unobserved(seen, now)
	switch {
	case is:
		delete(seen, seenIdle)
		c.since, c.rule = since, "status.observedGeneration"
		c.detail = fmt.Sprintf("%s has not taken notice of %s: it does not run, is behind or fails at it", s.kind.controller, what)
		if s.kind == dynamoGraphs {
			c.rule = "status.restart"
		}
	case len(v.causes) == 0 && s.idle():
		if _, known := seen[seenIdle]; !known {
			seen[seenIdle] = now
		}
		c.since, c.rule = seen[seenIdle], "status"
		quiet += time.Duration(count(s.object, "spec", "minReadySeconds")) * time.Second
		c.detail = fmt.Sprintf("no pod of %s is stopping or getting ready, and nothing is done for the rest: %s does not run, is behind or fails at it", s.name(), s.kind.controller)
	default:
		delete(seen, seenIdle)
		return c, false, time.Time{}
	}
	if at := c.since.Add(quiet); now.Before(at) {
		return c, false, at
	}
	return c, true, time.Time{}
}

// late is how long after its grace a pod may take until it is told that it has not
// gone: a kubelet says a little later that a pod has stopped.
const late = 5 * time.Second

// stopCause tells of a pod that should have gone, and keeps the next one from being
// made. wake is when that will be so.
func stopCause(p *corev1.Pod, now time.Time) (c cause, is bool, wake time.Time) {
	end := p.DeletionTimestamp.Time // the grace is in it
	c = cause{code: codeOverdue, resource: "pod/" + p.Namespace + "/" + p.Name, rule: "grace period", since: asked(p),
		detail: fmt.Sprintf("pod %s should have stopped: the kubelet of node %s does not say that it did", p.Name, p.Spec.NodeName), rest: "the cluster rolls on when it has gone"}
	if len(p.Finalizers) > 0 {
		c.code, c.rule, c.detail = codeFinalizer, "finalizer "+p.Finalizers[0], fmt.Sprintf("pod %s is held by finalizer %s", p.Name, p.Finalizers[0])
	} else {
		end = end.Add(late)
	}
	if now.Before(end) {
		return c, false, end
	}
	return c, true, time.Time{}
}

// asked is when the pod was asked to stop.
func asked(p *corev1.Pod) time.Time {
	at := p.DeletionTimestamp.Time
	if g := p.DeletionGracePeriodSeconds; g != nil {
		at = at.Add(-time.Duration(*g) * time.Second)
	}
	return at
}
