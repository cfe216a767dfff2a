package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func (e *nodes) probeSchedulable(ctx context.Context, t *executor.Task, want bool) executor.Finding {
	n, code, detail, err := e.read(ctx, t.Assignment)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case code != "":
		return executor.Lost(code, detail)
	}
	state := fmt.Sprintf("node %s is cordoned", n.Name)
	if !n.Spec.Unschedulable {
		state = fmt.Sprintf("node %s is schedulable", n.Name)
	}
	if n.Spec.Unschedulable == want {
		return executor.ToRun(state)
	}
	if r := readRecord(n, t.Assignment); r != nil && t.Step.Name == "cordon" {
		state += r.account()
	}
	return executor.Found(state)
}

func (e *nodes) probeCordon(ctx context.Context, t *executor.Task) executor.Finding {
	return e.probeSchedulable(ctx, t, false)
}

func (e *nodes) probeUncordon(ctx context.Context, t *executor.Task) executor.Finding {
	return e.probeSchedulable(ctx, t, true)
}

// cordon closes the node to new pods. A cordon that was there before stays its
// owner's; the node then carries this operation's mark alone, so that an uncordon
// by somebody else is told from a cordon that is still to come.
func (e *nodes) cordon(ctx context.Context, t *executor.Task, p *placing) executor.Outcome {
	n, o := e.patch(ctx, t, "cordon", p.node, func(n *corev1.Node) wish { return e.toCordon(t.Assignment, n, p) })
	p.node = n
	if o.Class != operation.OutcomeDone {
		return o
	}
	if kept := p.kept; kept != nil {
		if t.Assignment.Type != "node.cordon" { // whoever looks at the node sees what begins there
			e.say(ctx, t, n, "CordonKept", "Opsplane found the node cordoned and leaves that cordon to whom it belongs: "+cmp.Or(t.Assignment.Reason, t.Assignment.Type))
		}
		t.Note("cordon_kept", fmt.Sprintf("node %s was cordoned before by %s; that cordon stays theirs", n.Name, describe(kept)))
		return executor.Done(fmt.Sprintf("node %s was cordoned before by %s; it stays theirs", n.Name, describe(kept)))
	}
	if p.placed {
		e.say(ctx, t, n, "Cordoned", "Opsplane cordoned the node: "+cmp.Or(t.Assignment.Reason, t.Assignment.Type))
	}
	return o
}

// toCordon is what cordon makes of the node as it is.
func (e *nodes) toCordon(a *protocol.Assignment, n *corev1.Node, p *placing) wish {
	on, marked := cluster.ReadMark(n.Annotations)
	marked = marked && on.SameRun(markOf(a))
	p.placed, p.kept = false, nil
	now := e.c.Now().UTC() // of this try: an earlier one may have hung for long and come to nothing
	if !n.Spec.Unschedulable {
		if marked && !cordonStripped(n) { // an earlier patch of this run cordoned it: once is enough
			return stopped("uncordoned_externally", fmt.Sprintf("node %s was cordoned by this operation, and somebody uncordoned it", n.Name))
		}
		p.placed = true
		c, err := json.Marshal(executor.Doing(a, now))
		if err != nil {
			return stopped("invalid_payload", fmt.Sprintf("encode the cordon: %v", err))
		}
		set := change{unschedulable: ptr.To(true), annotations: map[string]*string{cluster.AnnotationCordon: ptr.To(string(c)), cluster.AnnotationUncordon: nil, annotationDrain: nil}}
		p.write(n, a, now, set.annotations)
		return wish{set: set}
	}
	if c := CordonOf(n); !ours(c, a.Operation) {
		p.kept = c
	}
	if marked && on.Generation == a.Generation {
		return wish{done: fmt.Sprintf("node %s is cordoned", n.Name)}
	}
	set := change{annotations: map[string]*string{}}
	p.write(n, a, now, set.annotations)
	return wish{set: set}
}

// placing is what goes with a cordon: the node as it was just read, and the record
// of a drain.
type placing struct {
	node   *corev1.Node
	record *record

	placed bool             // this operation cordons the node
	kept   *protocol.Cordon // somebody else's, which stays
}

// write adds the record to a patch, planned now. What an earlier lease of the run
// wrote there stays: its pods were planned, and it is when the drain began.
func (p *placing) write(n *corev1.Node, a *protocol.Assignment, now time.Time, annotations map[string]*string) {
	if p.record == nil {
		return
	}
	if old := readRecord(n, a); old != nil {
		old.add(p.record)
		p.record = old
	} else {
		p.record.Planned = now
	}
	annotations[annotationDrain] = ptr.To(p.record.encode())
}

// lift is the patch that opens the node again.
func lift() change {
	return change{unschedulable: ptr.To(false), annotations: map[string]*string{cluster.AnnotationCordon: nil, annotationDrain: nil}}
}

// uncordonPayload is the payload of an uncordon.
type uncordonPayload struct {
	TakeOver bool `json:"take_over"`
}

// toUncordon is what uncordon makes of the node as it is, and whose cordon it lifts.
func (p uncordonPayload) toUncordon(n *corev1.Node) (w wish, lifted *protocol.Cordon) {
	if !n.Spec.Unschedulable {
		return wish{done: fmt.Sprintf("node %s is schedulable", n.Name)}, nil
	}
	c := CordonOf(n)
	if c.Owner != "opsplane" && !p.TakeOver {
		return stopped("cordon_not_owned", fmt.Sprintf("node %s was cordoned by somebody else: %s", n.Name, describe(c))), nil
	}
	return wish{set: lift()}, c
}

func (e *nodes) uncordon(ctx context.Context, t *executor.Task) executor.Outcome {
	var p uncordonPayload
	if err := decode(t.Assignment.Payload, &p); err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	var lifted *protocol.Cordon
	n, o := e.patch(ctx, t, "uncordon", nil, func(n *corev1.Node) wish {
		w, lifts := p.toUncordon(n)
		if lifts != nil {
			e.sign(t.Assignment, lifts, w.set)
		}
		if w.done == "" { // else what a try whose answer was lost has lifted stays told
			lifted = lifts
		}
		return w
	})
	if lifted == nil || o.Class != operation.OutcomeDone && o.Class != operation.OutcomeAmbiguous {
		return o
	}
	if p.TakeOver {
		t.Note("cordon_taken_over", fmt.Sprintf("the cordon that was lifted: owner %s, by %s, reason %q",
			lifted.Owner, cmp.Or(lifted.By, "unknown"), lifted.Reason))
	}
	if o.Class == operation.OutcomeDone {
		e.say(ctx, t, n, "Uncordoned", "Opsplane uncordoned the node: "+cmp.Or(t.Assignment.Reason, t.Assignment.Type))
	}
	return o
}

func (e *nodes) confirmSchedulable(ctx context.Context, t *executor.Task, judge func(n *corev1.Node) executor.Outcome) executor.Outcome {
	n, code, detail, err := e.read(ctx, t.Assignment)
	switch {
	case err != nil:
		return broken(err)
	case code != "":
		return executor.Permanent(code, detail)
	}
	o := judge(n)
	if o.Class != operation.OutcomeDone {
		return o
	}
	n, stop := e.rely(ctx, t, n, nil)
	if stop != nil {
		return *stop
	}
	return judge(n)
}

func (e *nodes) confirmCordon(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.confirmSchedulable(ctx, t, func(n *corev1.Node) executor.Outcome {
		if !n.Spec.Unschedulable {
			return executor.Permanent("uncordoned_externally", fmt.Sprintf("node %s is schedulable again: somebody uncordoned it", n.Name))
		}
		return executor.Done(fmt.Sprintf("node %s is cordoned", n.Name))
	})
}

func (e *nodes) confirmUncordon(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.confirmSchedulable(ctx, t, func(n *corev1.Node) executor.Outcome {
		if n.Spec.Unschedulable {
			return executor.Permanent("cordoned_externally", fmt.Sprintf("node %s is cordoned again by %s", n.Name, describe(CordonOf(n))))
		}
		return executor.Done(fmt.Sprintf("node %s is schedulable", n.Name))
	})
}

func (e *nodes) probeRestore(ctx context.Context, t *executor.Task) executor.Finding {
	n, code, detail, err := e.read(ctx, t.Assignment)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case code != "":
		return executor.FoundNothing(toNothing(detail))
	case ours(CordonOf(n), t.Assignment.Operation):
		return executor.ToRun("this operation's cordon is on the node")
	case mayCordonYet(t.Assignment, n):
		return executor.ToRun(noCordon(n) + ", but one that an earlier lease asked for may come yet")
	case lifted(t.Assignment, n): // by a lease that could not say so any more
		return executor.Found(liftedIts)
	}
	return executor.FoundNothing(noCordon(n))
}

// liftedIts says that a restore has done what it is for.
const liftedIts = "this operation has lifted its cordon"

// noCordon is why there is nothing to restore on a node.
func noCordon(n *corev1.Node) string {
	const none = "no cordon of this operation is on the node"
	if c := CordonOf(n); c != nil {
		return none + ", which is cordoned by " + describe(c)
	}
	return none
}

// toNothing says so where there is no such node.
func toNothing(detail string) string { return "nothing to restore: " + detail }

// mayCordonYet tells whether a cordon that an earlier lease asked for, and that a webhook
// still holds, may land on the node as it was read. One is asked for under the node's
// resourceVersion, where it was schedulable and without a mark of the run (toCordon).
func mayCordonYet(a *protocol.Assignment, n *corev1.Node) bool {
	on, marked := cluster.ReadMark(n.Annotations)
	return a.Generation > 1 && !n.Spec.Unschedulable && !(marked && on.SameRun(markOf(a)))
}

// restore lifts the cordon if this operation placed it; nobody else's. That there is none
// it says only once none can come any more. see gets the node as it was read.
func (e *nodes) restore(ctx context.Context, t *executor.Task, see func(n *corev1.Node)) executor.Outcome {
	judge := func(n *corev1.Node) wish {
		see(n)
		c := CordonOf(n)
		switch {
		case ours(c, t.Assignment.Operation):
		case lifted(t.Assignment, n): // its answer was lost
			return wish{done: liftedIts}
		default:
			return wish{done: noCordon(n)}
		}
		set := lift()
		e.sign(t.Assignment, c, set)
		return wish{set: set}
	}
	n, o := e.patch(ctx, t, "uncordon", nil, judge)
	if o.Class == operation.OutcomeDone && mayCordonYet(t.Assignment, n) {
		var stop *executor.Outcome
		if n, stop = e.rely(ctx, t, n, nil); stop != nil {
			o = *stop
		} else {
			n, o = e.patch(ctx, t, "uncordon", n, judge)
		}
	}
	switch {
	case o.ErrorCode == "node_gone" || o.ErrorCode == "node_replaced":
		o = executor.Nothing(toNothing(o.Detail))
	case o.Class != operation.OutcomeDone:
	case lifted(t.Assignment, n):
		if !n.Spec.Unschedulable { // else somebody has closed it since
			e.say(ctx, t, n, "Uncordoned", "Opsplane took the cordon of its drain back")
		}
	default:
		o.Nothing = true
	}
	return o
}

// decode reads a payload; an empty one has no fields.
func decode(raw json.RawMessage, to any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, to)
}
