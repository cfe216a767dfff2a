package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Codes of an undo that was issued and is not observed.
const (
	codeUndoIncomplete = "undo_incomplete" // the pods of before are not ready
	// codeUndoDiffers: the template is not that of before. It ends the step, though tries
	// of it may be left: the restart's annotations are out, and what is not as before is of
	// admission, or of whoever changed it with the undo or after. Admission would make the
	// same of one more patch, for the price of one more rollout of pods that run, and what
	// somebody else set is not the operation's to take away. So it says what differs, and
	// by which command a person goes back once that is seen to.
	codeUndoDiffers = "undo_differs"
)

func (r *roller) probeUndo(ctx context.Context, t *executor.Task) executor.Finding {
	ctx = cluster.Operation(ctx, t.Assignment)
	d, err := r.find(ctx, t.Assignment)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case d == nil:
		return executor.Lost("deployment_gone", gone(t.Assignment))
	case !d.restarted(cluster.MarkOf(t)) || !d.record.Undone:
		return executor.ToRun("it is not taken back")
	}
	s, err := r.look(ctx, d)
	if err != nil {
		return cluster.Unread(err)
	}
	is := d.takenBack()
	switch {
	case !s.back(cluster.MarkOf(t)):
		return executor.ToRun(is.text + ", its pods are not ready: " + d.String())
	case is.known && !is.whole:
		return executor.ToRun(is.text)
	}
	return executor.Found(is.outcome(d).Detail)
}

// back tells whether the pods of before are all there and ready, and none of the
// restart runs. What ended (evicted, refused by its kubelet) a controller may leave behind.
func (s scene) back(by cluster.Mark) bool {
	for _, p := range s.pods {
		if s.owned(p) && !ended(p) && s.renewed(p, by) && p.DeletionTimestamp == nil {
			return false
		}
	}
	return s.settled()
}

// undo takes a rollout that is failing back to the template of before: an effect
// of kind (a), done when that was observed. What has not failed is left to its controller.
func (r *roller) undo(ctx context.Context, t *executor.Task) executor.Outcome {
	ctx = cluster.Operation(ctx, t.Assignment)
	by := cluster.MarkOf(t)
	for range maxConflicts {
		d, err := r.find(ctx, t.Assignment)
		switch {
		case err != nil:
			return unread(err)
		case d == nil:
			return executor.Permanent("deployment_gone", gone(t.Assignment))
		case !d.restarted(by):
			return leftAsIs("nothing to undo: " + d.name() + " does not carry this operation's restart")
		case d.mark.Stale(by):
			return executor.Transient("fenced", "nothing was issued: a newer lease of this operation has changed "+d.name())
		case d.record.Undone:
			return r.awaitBack(ctx, t, d)
		case d.superseded() != "":
			return executor.Permanent("superseded", "left as it is: "+supersededBy(d))
		case d.object.GetDeletionTimestamp() != nil:
			return executor.Permanent("deployment_gone", "left as it is: "+d.name()+" is being deleted")
		case d.kind == dynamoGraphs:
			return executor.Permanent("not_supported", "a DynamoGraphDeployment has no revision to go back to")
		}
		s, err := r.look(ctx, d)
		if err != nil {
			return unread(err)
		}
		if why := s.notFailing(by, r.bounds, t.Remaining, r.Now()); why != "" {
			return leftAsIs("left as it is: " + d.name() + " " + why)
		}
		if held := d.holds(); len(held) > 0 { // whoever did that has it in hand
			return executor.Permanent(held[0].code, "left as it is: "+held[0].detail)
		}
		if halt := executor.Halted(ctx, t); halt != "" {
			return executor.Waiting(halt, "stopped before the undo of "+d.name())
		}
		patch, slow, stop := r.undoing(ctx, t, d, by)
		if stop != nil {
			return *stop
		}
		after, again, stop := r.change(ctx, t, d, "undo restart", patch, slow)
		if stop != nil {
			return *stop
		}
		if !again {
			r.learn(t, d, patch, after)
			r.Event(ctx, t, reference(d), corev1.EventTypeWarning, "OpsplaneUndo", "The restart failed and was taken back by Opsplane")
			return r.awaitBack(ctx, t, d)
		}
	}
	return executor.Transient("conflict", "the deployment is written to all the time")
}

// undoing is the patch of an undo, with what the API server says that it makes of it.
// Where it does not say, the patch itself meets whatever that is.
func (r *roller) undoing(ctx context.Context, t *executor.Task, d *rollout, by cluster.Mark) (patch []byte, slow bool, stop *executor.Outcome) {
	patch, err := undoPatch(d, by, nil)
	if err == nil {
		made, took, unknown := r.answered(ctx, t, d, "undo of the restart", patch)
		var h *cluster.Hung
		if errors.As(unknown, &h) {
			o := h.Outcome(ctx, t)
			return nil, false, &o
		}
		slow = took
		if unknown == nil && made != nil {
			patch, err = undoPatch(d, by, made)
		}
	}
	if err != nil {
		o := executor.Permanent("api_error", err.Error())
		return nil, false, &o
	}
	return patch, slow, nil
}

// leftAsIs is the outcome of an undo that had nothing to take back.
func leftAsIs(detail string) executor.Outcome {
	o := executor.Done(detail)
	o.Nothing = true
	return o
}

// notFailing tells why there is nothing to undo; "" if there is. Whatever kept
// the pods from getting ready a moment ago is taken at its word here: a crash
// loop's container may be running just now.
func (s scene) notFailing(by cluster.Mark, b Bounds, left func() time.Duration, now time.Time) string {
	v := s.judge(by, Bounds{Stall: b.Stall}, true, map[string]time.Time{}, now)
	if left != nil {
		v.giveUp(s, b, left(), now)
	}
	switch {
	case v.rolled:
		return "came through: " + s.String()
	case v.code != "":
		return ""
	}
	for _, p := range s.pods {
		if !s.owned(p) || !s.renewed(p, by) || ready(p) {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				return ""
			}
		}
	}
	return "has not failed (" + s.String() + "), the cluster rolls on by itself"
}

// awaitBack follows the controller back to the pods of before, and looks whether the
// template is that of before.
func (r *roller) awaitBack(ctx context.Context, t *executor.Task, d *rollout) executor.Outcome {
	until := r.Now().Add(r.bounds.Undo)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := r.watch(ctx, d)
	c := clearing{gone: map[types.UID]bool{}}
	var away *cluster.Unanswered
	is := takenBack{text: "the restart is taken back"} // not seen yet
	seen, known := map[string]time.Time{}, map[types.UID]words{}
	v := verdict{wake: until}
	for {
		fire, release := timer(v.wake, r.Now())
		select {
		case <-w.Changed():
		case <-fire:
		case <-ctx.Done():
		}
		release()
		if halt := executor.Halted(ctx, t); halt != "" {
			return v.unseen(halt, d.name()+": "+is.text+"; its pods were not seen ready")
		}
		v.wake = until // until it is judged again
		was := away
		var denied error
		away, denied = w.Trouble()
		switch {
		case denied != nil:
			return cluster.Broken(denied)
		case away != nil:
			tell(t, []protocol.Blocker{away.Blocker()})
		case was != nil:
			tell(t, nil)
		}
		late := !r.Now().Before(until)
		if (away != nil || !w.Ready()) && !late {
			continue
		}
		s, err := w.scene()
		switch {
		case late && !w.Ready():
		case err != nil:
			return executor.Permanent("api_error", err.Error())
		case s == nil:
			return executor.Permanent("deployment_gone", gone(t.Assignment))
		case s.record == nil || !s.record.Undone: // the watch has not seen it yet
		case s.back(cluster.MarkOf(t)) && c.made(s):
			if len(v.causes) > 0 {
				tell(t, nil)
			}
			return s.takenBack().outcome(s.rollout)
		default:
			d, is = s.rollout, s.takenBack()
			t.Progress(min(s.updated, s.target()), s.target(), "replicas", "going back: "+s.String())
			if o := r.clear(ctx, t, s, &c); o != nil {
				return *o
			}
			had := len(v.causes) > 0
			v = r.weigh(ctx, s, known, func() verdict { return s.backward(cluster.MarkOf(t), r.bounds, until, seen, r.Now()) })
			v.wakeAt(c.wake(until))
			if now := v.blockers(r.Now()); c.held == nil && (had || len(v.causes) > 0) {
				tell(t, now)
			}
		}
		if late {
			return is.unready(d, r.bounds.Undo, c.held, v)
		}
	}
}

// outcome is of an undo whose pods are there and ready.
func (b takenBack) outcome(d *rollout) executor.Outcome {
	if b.known && !b.whole {
		o := executor.Permanent(codeUndoDiffers, fmt.Sprintf("%s: %s (%s)", d.name(), b.text, d))
		o.ActionText = b.act
		return o
	}
	if !b.known {
		return executor.Done(fmt.Sprintf("%s: %s; %s", d.name(), b.text, d))
	}
	return executor.Done(fmt.Sprintf("%s is back: %s; %s", d.name(), b.text, d))
}

// unready is the outcome of one whose pods are not ready in time; held is what kept
// their broken ones, if anything did, and v what keeps those of before.
func (b takenBack) unready(d *rollout, within time.Duration, held *protocol.Blocker, v verdict) executor.Outcome {
	code := codeUndoIncomplete
	if b.known && !b.whole {
		code = codeUndoDiffers
	}
	detail := fmt.Sprintf("%s: %s, and its pods are not ready after %s (%s)", d.name(), b.text, within, d)
	if held != nil {
		detail += "; " + held.Detail
	} else if first, is := v.first(); is {
		detail += "; " + first.detail
	}
	o := executor.Permanent(code, detail)
	if code == codeUndoDiffers {
		o.ActionText = b.act
	}
	return o
}
