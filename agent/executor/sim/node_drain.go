package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var drainSteps = map[string]step{
	"preflight": {(*Executor).probeConfirm, (*Executor).drainPreflight},
	"cordon":    {(*Executor).probeCordon, (*Executor).cordon},
	"evict":     {(*Executor).probeEvict, (*Executor).evict},
	"wait":      {(*Executor).probeDrained, (*Executor).waitGone},
	"confirm":   {(*Executor).probeConfirm, (*Executor).drainConfirm},
	"restore":   {(*Executor).probeRestore, (*Executor).restore},
}

// drainPlan is a drain's payload, ready to use.
type drainPlan struct {
	operation.DrainPayload
	selector selector
}

// readDrainPlan reads the payload of a drain. (A payload that admission has
// not filled has a grace period of 0, so an absent field must stay at -1.)
func readDrainPlan(t *executor.Task) (drainPlan, error) {
	p := drainPlan{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1, OnDeadline: "stop", OnCancel: "leave"}}
	if err := decode(t.Assignment.Payload, &p.DrainPayload); err != nil {
		return p, err
	}
	if p.ForceWindowSeconds == 0 {
		p.ForceWindowSeconds = max(p.GracePeriodSeconds, 0) + 30
	}
	var err error
	p.selector, err = parseSelector(p.PodSelector)
	return p, err
}

// forceNow tells whether the window before the deadline has begun in which what
// is left is deleted.
func (p drainPlan) forceNow(t *executor.Task) bool {
	return p.OnDeadline == "force" && t.Remaining() <= time.Duration(p.ForceWindowSeconds)*time.Second
}

// verdict is what a drain makes of one pod.
type verdict struct {
	pod  *Pod
	code string // of what stands in the way for good
	why  string
}

// judge sorts a node's pods as kubectl drain does: DaemonSet and mirror pods
// are left alone, completed ones never stand in the way, unmanaged ones and
// those with local data are refused unless the payload allows them.
func (p drainPlan) judge(w *World, ix *index, node string) []verdict {
	var list []verdict
	on := p.deviceOn(w, ix, node)
	for _, pod := range sortedPods(ix.podsByNode[node]) {
		if pod.Owner == OwnerDaemonSet || pod.Owner == OwnerMirror || !p.selector.match(pod.Labels) {
			continue
		}
		if p.Device != "" && (on == nil || !slices.Contains(on.Pods, pod.UID)) {
			continue
		}
		v := verdict{pod: pod}
		switch {
		case pod.Completed || pod.DeletedAt != nil:
		case pod.Owner == OwnerNone && !p.Force:
			v.code, v.why = "unmanaged_pod", fmt.Sprintf("pod %s has no controller: nothing would start it again", pod.Key())
		case pod.EmptyDir && !p.DeleteEmptyDirData:
			v.code, v.why = "local_data", fmt.Sprintf("pod %s keeps data in an emptyDir, which would be lost", pod.Key())
		}
		list = append(list, v)
	}
	return list
}

// deviceOn is the node's device that the drain is narrowed to, nil if it has none
// by that name.
func (p drainPlan) deviceOn(w *World, ix *index, node string) *Device {
	n := w.Nodes[node]
	if n == nil || p.Device == "" {
		return nil
	}
	name := strings.TrimPrefix(p.Device, "device:")
	for _, spelled := range []string{name, n.Name + "/" + name} {
		if d := w.Devices[ix.devByAlias[strings.ToLower(spelled)]]; d != nil && d.NodeUID == node {
			return d
		}
	}
	return nil
}

// refusal finds what no drain with this payload gets past: nothing is touched.
func (p drainPlan) refusal(w *World, ix *index, node string) (code, why string) {
	if p.Device != "" && p.deviceOn(w, ix, node) == nil {
		return "device_gone", fmt.Sprintf("the node has no device %s", p.Device)
	}
	for _, v := range p.judge(w, ix, node) {
		if v.code != "" {
			return v.code, v.why
		}
		if v.pod.Completed || v.pod.DeletedAt != nil {
			continue
		}
		if b := budgets(w, ix, v.pod); len(b) > 1 && p.OnDeadline != "force" {
			return "two_pdbs", twoPDBs(v.pod, b)
		}
	}
	return "", ""
}

// twoPDBs words what the eviction API answers with a 500.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func twoPDBs(p *Pod, b []allowance) string {
	return fmt.Sprintf("pod %s is selected by two disruption budgets, %s and %s: the cluster evicts no such pod", p.Key(), b[0].pdb.Key(), b[1].pdb.Key())
}

func (e *Executor) drainPreflight(_ context.Context, t *executor.Task) executor.Outcome {
	p, err := readDrainPlan(t)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	var code, why, name string
	count := 0
	var blockers []protocol.Blocker
	err = e.store.view(func(w *World, ix *index) {
		n, c, y := findNode(w, ix, t.Assignment.TargetUID, nodeName(t))
		if n == nil {
			code, why = c, y
			return
		}
		name, count = n.Name, len(p.judge(w, ix, n.UID))
		code, why = p.refusal(w, ix, n.UID)
		blockers = p.blockers(w, ix, n)
	})
	if err != nil {
		return e.broken(err)
	}
	if code != "" {
		return executor.Permanent(code, why)
	}
	for _, b := range blockers { // what may pass, or be waited for
		t.Note("blocker", b.Resource+": "+b.Detail)
	}
	return executor.Done(fmt.Sprintf("%d pods to evict from node %s", count, name))
}

// blockers lists everything that a drain of the node would meet now.
func (p drainPlan) blockers(w *World, ix *index, n *Node) []protocol.Blocker {
	var list []protocol.Blocker
	add := func(code, resource, rule, detail string) {
		list = append(list, protocol.Blocker{Code: code, Resource: resource, Rule: rule, Detail: detail})
	}
	if n.Unreachable {
		add("node_unreachable", "node/"+n.Name, "", fmt.Sprintf("node %s is unreachable: nobody can see its pods stop", n.Name))
	}
	if p.Device != "" && p.deviceOn(w, ix, n.UID) == nil {
		add("device_gone", "device/"+p.Device, "", fmt.Sprintf("node %s has no device %s", n.Name, p.Device))
	}
	for _, v := range p.judge(w, ix, n.UID) {
		name := "pod/" + v.pod.Key()
		if v.code != "" {
			add(v.code, name, "", v.why)
		}
		if v.pod.Finalizer != "" {
			add("finalizer", name, v.pod.Finalizer, fmt.Sprintf("pod %s has the finalizer %s: it stays until that is removed", v.pod.Key(), v.pod.Finalizer))
		}
		if v.pod.Completed || v.pod.DeletedAt != nil {
			continue
		}
		switch b := budgets(w, ix, v.pod); {
		case len(b) > 1:
			add("two_pdbs", name, "pdb/"+b[0].pdb.Key(), twoPDBs(v.pod, b))
		case len(b) == 1 && b[0].allowed() == 0:
			add("pdb", name, "pdb/"+b[0].pdb.Key(), b[0].String())
		}
	}
	return list
}

// planned reads how far the planned pods are gone.
type planned struct {
	total, gone int
	forced      int    // of those in total, removed against a rule
	left        []*Pod // copies, in the order of their names
	node        Node
}

func (p planned) String() string {
	return fmt.Sprintf("%d of %d pods gone", p.gone, p.total) + countForced(p.forced)
}

// countForced words how many pods were forced, if any.
func countForced(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d forced", n)
}

// readPlanned reads the operation's planned pods by UID, and any other pod that
// the drain is about.
func readPlanned(w *World, ix *index, t *executor.Task, p drainPlan, n *Node) planned {
	r := planned{node: *n}
	seen := map[string]bool{}
	if d := w.Drains[t.Assignment.Operation]; d != nil {
		for _, x := range d.Pods {
			seen[x.UID] = true
			r.total++
			if x.wasForced() {
				r.forced++
			}
			if pod := w.Pods[x.UID]; pod != nil && pod.NodeUID == n.UID {
				c := *pod
				r.left = append(r.left, &c)
			} else {
				r.gone++
			}
		}
	}
	for _, v := range p.judge(w, ix, n.UID) {
		if !seen[v.pod.UID] {
			c := *v.pod
			r.total++
			r.left = append(r.left, &c)
		}
	}
	return r
}

// probeDrain reads node and pods; a node that is not cordoned is not drained,
// whatever is on it.
func (e *Executor) probeDrain(t *executor.Task, done func(r planned) bool) executor.Finding {
	p, err := readDrainPlan(t)
	if err != nil {
		return executor.Lost("invalid_payload", err.Error())
	}
	var f executor.Finding
	err = e.store.view(func(w *World, ix *index) {
		n, code, detail := findNode(w, ix, t.Assignment.TargetUID, nodeName(t))
		if n == nil {
			f = executor.Lost(code, detail)
			return
		}
		r := readPlanned(w, ix, t, p, n)
		if !n.Schedulable && done(r) {
			f = executor.Found(r.String())
			return
		}
		f = executor.ToRun(r.String() + e.holdUp(w, ix, r))
	})
	if err != nil {
		return unread(err)
	}
	return f
}

// holdUp names the first pod that holds the drain up and the rule that it does
// so by, to follow on what is said of the pods.
func (e *Executor) holdUp(w *World, ix *index, r planned) string {
	for _, pod := range r.left {
		if pod.DeletedAt != nil || pod.Completed {
			continue
		}
		switch b := budgets(w, ix, pod); {
		case len(b) > 1:
			return ", waiting: " + twoPDBs(pod, b)
		case len(b) == 1 && b[0].allowed() == 0:
			return fmt.Sprintf(", waiting for pod %s: %s", pod.Key(), b[0])
		}
	}
	for _, pod := range r.left {
		if pod.DeletedAt != nil {
			_, why := e.staying(pod, r.node)
			return fmt.Sprintf(", waiting for pod %s: %s", pod.Key(), why)
		}
	}
	return ""
}

func (e *Executor) probeEvict(_ context.Context, t *executor.Task) executor.Finding {
	return e.probeDrain(t, func(r planned) bool {
		for _, p := range r.left {
			if p.DeletedAt == nil {
				return false
			}
		}
		return true
	})
}

func (e *Executor) probeDrained(_ context.Context, t *executor.Task) executor.Finding {
	return e.probeDrain(t, func(r planned) bool { return len(r.left) == 0 })
}

// drainConfirm observes that each planned pod is gone by UID and that the node
// is cordoned: acceptance of evictions proves nothing.
func (e *Executor) drainConfirm(_ context.Context, t *executor.Task) executor.Outcome {
	f := e.probeDrained(context.Background(), t)
	switch f.Phase {
	case operation.StepSucceeded:
		return executor.Done(f.Detail + ", node cordoned")
	case operation.StepFailed:
		return executor.Permanent(f.ErrorCode, f.Detail)
	case operation.StepUnknown:
		return executor.Transient(f.ErrorCode, f.Detail)
	}
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return e.broken(err)
	case code != "":
		return executor.Permanent(code, detail)
	case n.Schedulable:
		return executor.Permanent("uncordoned_externally", uncordoned(n))
	}
	return executor.Waiting("pods_left", f.Detail)
}

func uncordoned(n Node) string {
	return fmt.Sprintf("node %s was uncordoned by somebody else during the drain", n.Name)
}

func (e *Executor) probeRestore(_ context.Context, t *executor.Task) executor.Finding {
	n, code, detail, err := e.readNode(t)
	switch {
	case err != nil:
		return unread(err)
	case code != "":
		return executor.FoundNothing(detail)
	case restores(n, t):
		return executor.ToRun("this operation's cordon is on the node")
	case restored(n, t):
		return executor.Found("this operation has lifted its cordon")
	}
	return executor.FoundNothing(noCordon)
}

// noCordon is why there is nothing to restore.
const noCordon = "no cordon of this operation is on the node"

// restores tells whether the operation's cordon is on the node.
func restores(n Node, t *executor.Task) bool {
	return !n.Schedulable && n.Cordon != nil && n.Cordon.Operation == t.Assignment.Operation
}

// restored tells whether the operation has lifted its cordon in this run.
func restored(n Node, t *executor.Task) bool {
	m := n.Mark
	return n.Lifted != nil && n.Lifted.Operation == t.Assignment.Operation && m != nil && m.Operation == t.Assignment.Operation && m.Run == t.Assignment.Run
}

// restore lifts the cordon if this operation placed it; nobody else's.
func (e *Executor) restore(ctx context.Context, t *executor.Task) executor.Outcome {
	if n, code, detail, err := e.readNode(t); err == nil && code != "" {
		return executor.Nothing(fmt.Sprintf("nothing to restore on %s: %s", n.Name, detail))
	}
	nothing := false
	o := e.patchNode(ctx, t, DidUncordon, func(n Node) (string, *executor.Outcome) {
		if nothing = !restores(n, t) && !restored(n, t); !restores(n, t) {
			return noCordon, nil
		}
		return "", nil
	}, func(n *Node, x *tx) {
		n.Schedulable, n.Cordon, n.Lifted = true, nil, executor.Doing(t.Assignment, x.now)
	})
	o.Nothing = nothing && o.Class == operation.OutcomeDone
	return o
}
