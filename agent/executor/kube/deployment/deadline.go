package deployment

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// codeDeadlineShort: the operation may end before its rollout counts as failed.
const codeDeadlineShort = "deadline_short"

// window is how long before the operation's deadline a rollout that does not come
// through is given up, so that it can be taken back: nothing may be issued past the
// deadline. whole is the time from the restart to the deadline.
func (b Bounds) window(whole time.Duration) time.Duration { return min(b.Undo, whole/4) }

// giveUp fails, in the window before the deadline, a rollout that something stands
// in the way of, or that made no progress for as long as the window: it would only
// time out, and stay half done. One that goes on is left to go on, also where its pods
// take long to get ready.
func (v *verdict) giveUp(s scene, b Bounds, left time.Duration, now time.Time) {
	if v.rolled || v.code != "" || s.record == nil {
		return
	}
	window := b.window(now.Sub(s.record.At) + left)
	begins := now.Add(left - window)
	if !slices.ContainsFunc(v.causes, func(c cause) bool { return c.code != codeNotReady }) {
		if at := v.progressed.Add(window); at.After(begins) {
			begins = at
		}
	}
	if now.Before(begins) {
		v.wakeAt(begins)
		return
	}
	near := fmt.Sprintf("the operation's deadline is %s away", max(left, 0).Round(time.Second))
	first, is := v.first()
	if !is {
		v.code, v.why = codeDeadline, fmt.Sprintf("%s: no new pod was made or got ready for %s, and %s (%s)", s.name(), now.Sub(v.progressed).Round(time.Second), near, s.rollout)
		return
	}
	v.code, v.why = first.code, fmt.Sprintf("%s: %s; %s (%s)", s.name(), first.detail, near, s.rollout)
}

// halted: the rollout goes on by itself, whatever becomes of the operation. What
// stands in its way is why it did not come through in time; away: that was not seen.
func (r *roller) halted(why string, s *scene, v verdict, away *cluster.Unanswered) executor.Outcome {
	code, rest, first := "rolling", restGoesOn, ""
	var held []protocol.Blocker // pods that have not gone
	known, is := v.first()
	switch {
	case v.rolled:
		held = stopping(v.leaving, r.Now())
	case len(v.causes) == 0:
		held = stopping(v.stopping, r.Now())
	}
	switch {
	case away != nil:
		code, first, rest = cluster.CodeUnavailable, away.Error()+"; when it last did: ", "what became of it since is not known"
	case len(held) > 0:
		code, first, rest = held[0].Code, held[0].Detail+"; ", "the cluster rolls on when it has gone"
		if v.rolled {
			rest = "its new pods are all there"
		}
	case !v.rolled && is:
		code, first, rest = known.code, known.detail+"; ", cmp.Or(known.rest, restGoesOn)
	}
	o := executor.Waiting(why, fmt.Sprintf("%s: %s%s; %s", s.name(), first, s, rest))
	if why == "interrupted" {
		advise(&o, code)
	}
	return o
}

// failed is the outcome of a rollout that failed.
func failed(code, why string) executor.Outcome {
	o := executor.Permanent(code, why)
	advise(&o, code)
	return o
}

// advise says what a person can do about the code. What is said of a finalizer
// elsewhere is about drains.
func advise(o *executor.Outcome, code string) {
	_, o.ActionCode, o.ActionText = executor.Action(code)
	if code == codeFinalizer {
		o.ActionText = "see to it that the finalizer is removed, then roll again if need be: the restart itself is in force"
	}
}

// failsAfter is how long a rollout may make no progress until it counts as failed;
// 0: for ever.
func (r *rollout) failsAfter(b Bounds) time.Duration {
	if !r.kind.ownDeadline {
		return r.bounded(b.Stall)
	}
	seconds, found, _ := unstructured.NestedInt64(r.object.Object, "spec", "progressDeadlineSeconds")
	switch {
	case !found:
		return 10 * time.Minute // the API's default
	case seconds >= math.MaxInt32: // which turns it off
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// short warns of a deadline that comes before a stuck rollout counts as failed; nil
// if it does not.
func (r *rollout) short(b Bounds, left time.Duration) *protocol.Blocker {
	after := r.failsAfter(b)
	if left <= 0 || after != 0 && after < left {
		return nil
	}
	rule, how := "spec.progressDeadlineSeconds", fmt.Sprintf("only after %s without progress", after)
	if after == 0 {
		how = "never"
	}
	if !r.kind.ownDeadline {
		rule = AnnotationProgressDeadline
	}
	return &protocol.Blocker{Code: codeDeadlineShort, Resource: "deployment/" + r.name(), Rule: rule,
		Detail: fmt.Sprintf("a stuck rollout of %s counts as failed %s; the operation's deadline is %s away and comes first: it would end as timed_out", r.name(), how, left.Round(time.Second))}
}
