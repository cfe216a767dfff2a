package node

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

// cordonPlanned is cordon with the plan written beside it.
func (e *drainer) cordonPlanned(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	p := &placing{}
	s.mu.Lock()
	if s.node != nil && e.c.Now().Sub(s.nodeAt) < fresh {
		p.node = s.node
	}
	r := s.record
	s.mu.Unlock()
	if r == nil { // another lease did the preflight
		plan, err := readPayload(t.Assignment)
		if err != nil {
			return executor.Permanent("invalid_payload", err.Error())
		}
		n, code, why, err := e.read(ctx, t.Assignment)
		if err != nil {
			return broken(err)
		}
		if code != "" {
			return executor.Permanent(code, why)
		}
		if code, why, err = e.narrow(ctx, t.Assignment, &plan, n); err != nil {
			return broken(err)
		}
		if code != "" {
			return executor.Permanent(code, why)
		}
		sv, err := e.survey(ctx, plan, n.Name)
		if err != nil {
			return broken(err)
		}
		r, p.node = e.newRecord(t.Assignment, s.began, n, sv.verdicts), n
	}
	placed := *r // it tells of a cordon only once there is one
	placed.Planned = e.c.Now().UTC()
	p.record = &placed
	o := e.cordon(ctx, t, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Class != operation.OutcomeDone {
		s.record = r
		return o
	}
	s.record, s.node, s.nodeAt = p.record, p.node, e.c.Now()
	switch on := readRecord(p.node, t.Assignment); { // of an earlier try, whose answer was lost
	case on != nil && on.Cut:
		s.record.Planned = on.Planned
	case on != nil:
		s.record = on
	}
	o.Detail += s.record.account()
	return o
}

// evict asks for the eviction of each planned pod, as their disruption budgets
// allow it. It ends when every one of them is stopping or gone.
func (e *drainer) evict(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	return e.withPayload(t, func(p payload) executor.Outcome { return e.drive(ctx, t, s, p, false) })
}

// waitGone waits until each planned pod is gone, and names what it waits for.
func (e *drainer) waitGone(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	return e.withPayload(t, func(p payload) executor.Outcome {
		o := e.drive(ctx, t, s, p, true)
		if o.Class != operation.OutcomeDone || !p.AwaitVolumeDetach {
			return o
		}
		return e.awaitDetach(ctx, t, s, p, o)
	})
}

func (e *drainer) withPayload(t *executor.Task, f func(p payload) executor.Outcome) executor.Outcome {
	p, err := readPayload(t.Assignment)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	return f(p)
}

// confirm observes, by reading anew, that each planned pod is gone by UID and that
// the node is cordoned: acceptance of evictions proves nothing. Where pods were put on the
// node by name, it looks once more when their controllers have had time to do so again.
func (e *drainer) confirm(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	return e.withPayload(t, func(p payload) executor.Outcome {
		for waited := false; ; {
			if h := executor.Halted(ctx, t); h != "" {
				return executor.Waiting(h, "stopped before the node was read")
			}
			n, code, why, err := e.read(ctx, t.Assignment)
			if err != nil {
				return broken(err)
			}
			if code == "" && s.node != nil && s.node.UID != n.UID {
				code, why = "node_replaced", fmt.Sprintf("node %s is another one now (%s, not %s)", n.Name, n.UID, s.node.UID)
			}
			if code != "" {
				return executor.Permanent(code, why)
			}
			if !n.Spec.Unschedulable {
				return executor.Permanent("uncordoned_externally", uncordoned(n.Name))
			}
			n, stop := e.rely(ctx, t, n, nil)
			if stop != nil {
				return *stop
			}
			if code, why, err = e.narrow(ctx, t.Assignment, &p, n); err != nil {
				return broken(err)
			}
			if code != "" {
				return executor.Permanent(code, why)
			}
			sv, err := e.survey(ctx, p, n.Name)
			if err != nil {
				return broken(err)
			}
			r := e.reckon(t, s, n, sv)
			if len(r.left) > 0 {
				s.mu.Lock()
				s.node, s.nodeAt = n, e.c.Now()
				for _, v := range r.left { // relabelled, or its DaemonSet went: the drain is about it now
					delete(s.came, v.pod.UID)
				}
				s.mu.Unlock()
				if o := e.drive(ctx, t, s, p, true); o.Class != operation.OutcomeDone {
					return o
				}
				executor.Wait(ctx, t, apiPause) // the watch may be behind what was just read
				waited = false
				continue
			}
			if !waited && len(s.byName()) > 0 {
				waited = true
				executor.Wait(ctx, t, returnsWithin)
				continue
			}
			s.mu.Lock()
			s.final = &reading{node: n, pods: sv.pods, version: sv.version, at: e.c.Now()}
			s.mu.Unlock()
			return executor.Done(r.String() + ", node cordoned")
		}
	})
}

// tally is how far the planned pods are gone, as it was just read.
type tally struct {
	total, gone, forced int
	left                []verdict // still there: stopping, or not evicted
	came                int       // pods that came after the plan
}

func (r tally) String() string {
	return fmt.Sprintf("%d of %d pods gone", r.gone, r.total) + countForced(r.forced)
}

// reckon compares what is on the node with what was planned.
func (e *drainer) reckon(t *executor.Task, s *session, n *corev1.Node, sv *survey) tally {
	var r tally
	known := map[types.UID]bool{}
	rec := readRecord(n, t.Assignment)
	if rec != nil && rec.Cut {
		rec = nil
	}
	there := make(map[types.UID]*verdict, len(sv.verdicts))
	for i := range sv.verdicts {
		there[sv.verdicts[i].pod.UID] = &sv.verdicts[i]
	}
	if s != nil && s.plan != nil {
		for uid, p := range s.plan {
			known[uid] = true
			if p.wasForced() != "" && there[uid] == nil {
				r.forced++
			}
			if v := there[uid]; v == nil && !p.finished || v != nil && v.kind != finished {
				r.total++
			}
		}
	} else if rec != nil {
		for uid := range rec.Pods {
			known[types.UID(uid)] = true
			if there[types.UID(uid)] != nil || !slices.Contains(rec.Finished, uid) {
				r.total++
			}
		}
	}
	finishedKnown := 0
	for _, v := range sv.verdicts {
		switch {
		case v.kind == finished:
			if known[v.pod.UID] && (s == nil || s.plan == nil) {
				finishedKnown++
			}
			continue
		case known[v.pod.UID]:
		case (s != nil && s.plan != nil || rec != nil) && toleratesCordon(v.pod):
			r.came++
			continue
		default:
			r.total++
		}
		r.left = append(r.left, v)
	}
	r.total -= finishedKnown
	r.gone = r.total - len(r.left)
	return r
}

// probeDrain reads node and pods; a node that is not cordoned is not drained,
// whatever is on it.
func (e *drainer) probeDrain(ctx context.Context, t *executor.Task, done func(r tally) bool) executor.Finding {
	ctx = cluster.Operation(ctx, t.Assignment)
	p, err := readPayload(t.Assignment)
	if err != nil {
		return executor.Lost("invalid_payload", err.Error())
	}
	n, code, why, err := e.read(ctx, t.Assignment)
	if err != nil {
		return cluster.Unread(err)
	}
	if code != "" {
		return executor.Lost(code, why)
	}
	if code, why, err = e.narrow(ctx, t.Assignment, &p, n); err != nil {
		return cluster.Unread(err)
	}
	if code != "" { // who is on the device cannot be told now
		return executor.ToRun(why)
	}
	sv, err := e.survey(ctx, p, n.Name)
	if err != nil {
		return cluster.Unread(err)
	}
	r := e.reckon(t, e.session(t.Assignment, false), n, sv)
	if n.Spec.Unschedulable && done(r) {
		return executor.Found(r.String())
	}
	return executor.ToRun(r.String() + e.holdUp(n, sv, r))
}

// holdUp names the first pod that holds the drain up and the rule that it does so
// by, to follow on what is said of the pods.
func (e *drainer) holdUp(n *corev1.Node, sv *survey, r tally) string {
	for _, v := range r.left {
		if h := rule(sv.budgets, v.pod); v.kind == toEvict && h != nil {
			return waitingFor(key(v.pod), h.why)
		}
	}
	for _, v := range r.left {
		if v.kind == stopping {
			_, _, why := staying(&session{node: n}, &planned{pod: v.pod}, e.c.Now())
			return waitingFor(key(v.pod), why)
		}
	}
	return ""
}

func (e *drainer) probeEvict(ctx context.Context, t *executor.Task) executor.Finding {
	return e.probeDrain(ctx, t, func(r tally) bool {
		for _, v := range r.left {
			if v.kind != stopping {
				return false
			}
		}
		return true
	})
}

func (e *drainer) probeGone(ctx context.Context, t *executor.Task) executor.Finding {
	return e.probeDrain(ctx, t, func(r tally) bool { return len(r.left) == 0 })
}

// restore lifts the drain's own cordon. The plan goes with it: it is kept for
// Observe, of an earlier lease as well.
func (e *drainer) restore(ctx context.Context, t *executor.Task, s *session) executor.Outcome {
	return e.nodes.restore(ctx, t, func(n *corev1.Node) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := readRecord(n, t.Assignment); r != nil && !r.Cut && s.record == nil {
			s.record = r
		}
	})
}
