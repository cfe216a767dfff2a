package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// preflight judges every pod before anything is touched.
func (e *drainer) preflight(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	p, err := readPayload(t.Assignment)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	n, code, detail, err := e.read(ctx, t.Assignment)
	if err != nil {
		return broken(err)
	}
	if code != "" {
		return executor.Permanent(code, detail)
	}
	if code, detail, err = e.narrow(ctx, t.Assignment, &p, n); err != nil {
		return broken(err)
	}
	if code != "" {
		return executor.Permanent(code, detail)
	}
	if p.OnDeadline == onDeadlineForce { // the others are met on the way, before it is
		missing, err := e.rightsTo(ctx, deleteRight)
		if err != nil {
			return broken(err)
		}
		if len(missing) > 0 {
			return executor.Permanent("forbidden", missing[0].Missing("").Detail)
		}
	}
	// The cordon itself is next, and the first that touches anything: it says what a
	// rehearsal of it would, for one request less.
	sv, blockers, err := e.meet(ctx, p, n)
	if err != nil {
		return broken(err)
	}
	if code, detail = sv.refusal(p); code != "" {
		t.Blocked(blockers)
		return executor.Permanent(code, detail)
	}
	t.Blocked(ahead(t, p, blockers))
	for _, b := range blockers[:min(len(blockers), maxNotes)] { // what may pass, or be waited for
		t.Note("blocker", b.Resource+": "+b.Detail)
	}
	s.mu.Lock()
	s.node, s.nodeAt = n, e.c.Now()
	s.pods, s.podsAt = follow.New(podsOf(e.c, n.Name), takePod), e.c.Now()
	s.pods.Seed(sv.listed, sv.version)
	s.record = e.newRecord(t.Assignment, s.began, n, sv.verdicts)
	s.mu.Unlock()
	return executor.Done(fmt.Sprintf("%d pods to evict from node %s", count(sv.verdicts), n.Name))
}

func count(verdicts []verdict) (n int) {
	for _, v := range verdicts {
		if v.kind != finished {
			n++
		}
	}
	return n
}

// meet surveys the node, rehearses evictions, and lists everything that a drain of it
// would meet now, the worst first.
func (e *drainer) meet(ctx context.Context, p payload, n *corev1.Node) (*survey, []protocol.Blocker, error) {
	sv, err := e.survey(ctx, p, n.Name)
	if err != nil {
		return nil, nil, err
	}
	refused, err := e.rehearse(ctx, p, sv)
	if err != nil {
		return nil, nil, err
	}
	return sv, sv.blockers(n, e.c.Now, refused), nil
}

// foresee is what a drain would meet, with what the API server says to the cordon, where
// the agent may ask for it.
func (e *drainer) foresee(ctx context.Context, a *protocol.Assignment, p payload, n *corev1.Node, mayCordon bool) (*survey, []protocol.Blocker, error) {
	sv, blockers, err := e.meet(ctx, p, n)
	if err != nil || !mayCordon {
		return sv, blockers, err
	}
	refused, err := e.rehearseCordon(ctx, a, n, sv)
	if err != nil {
		return nil, nil, err
	}
	if refused != nil {
		blockers = append([]protocol.Blocker{refused.blocker(n.Name)}, blockers...)
		slices.SortStableFunc(blockers, worse)
	}
	return sv, blockers[:min(len(blockers), maxBlockers)], nil
}

// rehearseCordon asks for the cordon as the drain would place it, with its plan.
func (e *drainer) rehearseCordon(ctx context.Context, a *protocol.Assignment, n *corev1.Node, sv *survey) (*refusal, error) {
	r := e.newRecord(a, e.c.Now(), n, sv.verdicts)
	w := e.toCordon(a, n, &placing{record: r})
	if w.stop != nil || w.done != "" { // the cordon itself says so
		return nil, nil
	}
	return e.rehearsePatch(ctx, a, "cordon", n, w.set)
}

// maxBlockers bounds what one look tells, and maxNotes what of it the journal keeps.
const (
	maxBlockers = 200
	maxNotes    = 20
)

func (s *survey) blockers(n *corev1.Node, now clock, refused map[types.UID]*refusal) []protocol.Blocker {
	list := []protocol.Blocker{}
	add := func(code, resource, rule, detail string) {
		list = append(list, protocol.Blocker{Code: code, Resource: resource, Rule: rule, Detail: detail})
	}
	if code, why := ailing(n); code != "" {
		add(code, "node/"+n.Name, "", why)
	}
	untold := map[string]bool{} // webhooks, each said once
	for _, v := range s.verdicts {
		name := "pod/" + key(v.pod)
		for _, o := range v.objections {
			add(o.code, name, "", o.why)
		}
		for _, f := range lasting(v.pod) {
			if v.kind != finished {
				add("finalizer", name, f, fmt.Sprintf("pod %s has the finalizer %s: it stays until that is removed", key(v.pod), f))
			}
		}
		if v.kind == stopping && len(lasting(v.pod)) == 0 {
			if f, why := unremoved(v.pod, now()); f != "" {
				add("finalizer", name, f, fmt.Sprintf("pod %s: %s", key(v.pod), why))
			}
		}
		if v.kind != toEvict {
			continue
		}
		h, r := rule(s.budgets, v.pod), refused[v.pod.UID]
		if h != nil {
			add(h.code, name, h.rule, h.why)
		}
		switch {
		case r == nil || h != nil && r.code == h.code: // the same, from who goes by it
		case r.code == codeUntold:
			if !untold[r.rule] {
				untold[r.rule] = true
				add(r.code, "node/"+n.Name, r.rule, r.why)
			}
		default:
			add(r.code, name, r.rule, r.why)
		}
		if v.returns {
			add("tolerates_cordon", name, "toleration/"+corev1.TaintNodeUnschedulable,
				fmt.Sprintf("pod %s tolerates the cordon: its replacement may be placed on this node again, and is left alone then", key(v.pod)))
		}
		if v.named {
			_, rule := controller(v.pod)
			add(codeReturns, name, rule, namedNode(v.pod))
		}
	}
	slices.SortStableFunc(list, worse)
	return list[:min(len(list), maxBlockers)]
}

// severity orders blockers: what ends a drain comes before what it waits for.
var severity = map[string]int{
	"api_unavailable": 1, "node_unreachable": 2, codeRefused: 3, "two_pdbs": 3, "unmanaged_pod": 3, "orphaned_daemonset_pod": 3, "local_data": 3,
	"eviction_refused": 4, codeUnanswered: 4, codeUndeleted: 4, codeNoEffect: 4, "pdb": 5, codeReturns: 5, "namespace_terminating": 6, "finalizer": 7, "api_error": 8, "throttled": 8,
	"node_not_ready": 9, "terminating": 9, "stopping": 9, "still_serving": 10, "volume_attached": 10, "tolerates_cordon": 11,
	codeUntold: 12,
}

func worse(a, b protocol.Blocker) int { return severity[a.Code] - severity[b.Code] }

// previewDrain tells what a drain would meet now: what its preflight would.
func (e *drainer) previewDrain(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	a := previewed(r)
	n, blockers, err := e.previewNode(ctx, a)
	if n == nil || err != nil {
		return blockers, err
	}
	p, err := readPayload(a)
	if err != nil { // the operation's preflight says the same
		return []protocol.Blocker{{Code: "invalid_payload", Resource: r.TargetName, Detail: err.Error()}}, nil
	}
	need := []cluster.Right{patchRight, evictRight}
	if p.OnDeadline == onDeadlineForce {
		need = append(need, deleteRight)
	}
	lacks, err := e.rightsTo(ctx, need...)
	if err != nil {
		return nil, fmt.Errorf("preview %s: %w", r.Type, err)
	}
	missing := lacking(n.Name, lacks)
	code, why, err := e.narrow(ctx, a, &p, n)
	if err != nil {
		return nil, fmt.Errorf("preview %s: %w", r.Type, err)
	}
	if code != "" {
		return []protocol.Blocker{{Code: code, Resource: "device/" + p.Device, Detail: why}}, nil
	}
	sv, blockers, err := e.foresee(ctx, a, p, n, !slices.Contains(lacks, patchRight))
	if err == nil {
		return append(append(missing, blockers...), sv.hurried(n, p, time.Duration(r.DeadlineMS)*time.Millisecond)...), nil
	}
	switch denied := cluster.Denied("node/"+n.Name, err); {
	case denied != nil && len(missing) > 0: // the same, asked in another way
		return missing, nil
	case denied != nil:
		return []protocol.Blocker{*denied}, nil
	}
	return nil, fmt.Errorf("preview %s: %w", r.Type, err)
}

// hurried tells what comes of a deadline that is so near; 0: it is not known.
func (s *survey) hurried(n *corev1.Node, p payload, left time.Duration) (list []protocol.Blocker) {
	if left <= 0 {
		return nil
	}
	within := left.Round(time.Second)
	ends := "the drain is timed out by then"
	if p.OnDeadline == onDeadlineForce {
		ends = "its grace is cut short then"
		if w := p.window(); left <= w {
			list = append(list, protocol.Blocker{Code: "forces_at_once", Resource: "node/" + n.Name, Rule: "force_window_seconds",
				Detail: fmt.Sprintf("the deadline is in %s and the force window is %s: whatever a rule holds is deleted past it at once", within, w)})
		}
	}
	for _, v := range s.verdicts {
		grace := time.Duration(ownGrace(v.pod)) * time.Second
		if p.GracePeriodSeconds >= 0 {
			grace = time.Duration(p.GracePeriodSeconds) * time.Second
		}
		if v.kind == toEvict && grace > left && len(list) < maxBlockers {
			list = append(list, protocol.Blocker{Code: "deadline_short", Resource: "pod/" + key(v.pod), Rule: "grace_period",
				Detail: fmt.Sprintf("pod %s may take its grace period of %s to stop, and the deadline is in %s: %s", key(v.pod), grace, within, ends)})
		}
	}
	return list
}
