package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// round is one look at a node that is being drained.
type round struct {
	planned
	code, why string // for good: the drain cannot go on
	fresh     bool   // there are pods that are not in the plan yet
	ready     []*Pod // may be evicted now
	blocked   string // the first that may not, in words
	blockCode string
	act       string            // what a person can do about it
	rules     map[string]string // why a pod may not be evicted, by UID
	budgets   map[string]string // and by which disruption budget
	next      time.Duration     // when the first of those that are stopping is gone
}

func (e *Executor) look(t *executor.Task, p drainPlan) (r round, err error) {
	now := e.opts.Now()
	err = e.store.view(func(w *World, ix *index) {
		n, code, why := findNode(w, ix, t.Assignment.TargetUID, nodeName(t))
		if n == nil {
			r.code, r.why = code, why
			return
		}
		if n.Schedulable {
			r.code, r.why = "uncordoned_externally", uncordoned(*n)
			return
		}
		r.planned = readPlanned(w, ix, t, p, n)
		plan := w.Drains[t.Assignment.Operation]
		r.fresh = r.total > 0 && (plan == nil || len(plan.Pods) < r.total)
		r.next = time.Hour
		for _, v := range p.judge(w, ix, n.UID) {
			if v.code != "" { // it came after preflight
				r.code, r.why = v.code, v.why
				return
			}
		}
		for _, pod := range r.left {
			if pod.DeletedAt != nil {
				if pod.StopAt != nil {
					r.next = min(r.next, pod.StopAt.Sub(now))
				}
				continue
			}
			b := budgets(w, ix, pod)
			switch {
			case pod.Completed:
			case len(b) > 1 && p.OnDeadline != "force":
				r.code, r.why = "two_pdbs", twoPDBs(pod, b)
				return
			case len(b) > 1:
				r.block("two_pdbs", pod, b[0].pdb, twoPDBs(pod, b), "")
				continue
			case len(b) == 1 && b[0].allowed() == 0:
				r.block("pdb_blocked", pod, b[0].pdb, b[0].String(), b[0].act())
				continue
			}
			r.ready = append(r.ready, pod)
		}
	})
	return r, err
}

func (r *round) block(code string, p *Pod, by *PDB, why, act string) {
	if r.blocked == "" {
		r.blockCode, r.blocked, r.act = code, fmt.Sprintf("waiting for pod %s: %s", p.Key(), why), act
	}
	if r.rules == nil {
		r.rules, r.budgets = map[string]string{}, map[string]string{}
	}
	r.rules[p.UID] = why
	if by != nil {
		r.budgets[p.UID] = "pdb/" + by.Key()
	}
}

// forced puts in the journal that a pod was removed against a rule.
func forced(t *executor.Task, p *Pod, why string) {
	t.Note("forced", fmt.Sprintf("pod %s (%s): %s", p.Key(), p.UID, why))
}

// pastRules words why a pod was deleted: the drain asked for it.
func pastRules(rule string) string {
	return "deleted without grace, because the deadline is near and the drain has on_deadline: force; what held it: " + rule
}

// evict asks for the eviction of each planned pod, as their disruption budgets
// allow it. It ends when every one of them is stopping or gone.
func (e *Executor) evict(ctx context.Context, t *executor.Task) executor.Outcome {
	p, err := readDrainPlan(t)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	for {
		r, err := e.look(t, p)
		if err != nil {
			return e.broken(err)
		}
		if r.code != "" {
			return executor.Permanent(r.code, r.why)
		}
		if r.fresh {
			if err := e.plan(t, r); err != nil {
				return e.broken(err)
			}
		}
		force := p.forceNow(t)
		left := 0
		for _, pod := range r.left {
			if pod.DeletedAt != nil {
				continue
			}
			ready := contains(uids(r.ready), pod.UID)
			if !ready && !force {
				left++
				continue
			}
			if s := executor.Halted(ctx, t); s != "" {
				return executor.Waiting(s, r.String())
			}
			what := DidEvict
			if !ready {
				what = DidDelete
			}
			rep, stop := e.removePod(ctx, t, what, pod, p.GracePeriodSeconds, nil)
			switch {
			case rep.category != "ok": // not now, or before
			case !ready:
				forced(t, pod, pastRules(r.rules[pod.UID]))
			case pod.Owner == OwnerNone:
				forced(t, pod, "evicted, because the drain has force: true; it has no controller, so nothing starts it again")
			}
			if stop != nil {
				return *stop
			}
			if rep.code == "pdb_blocked" { // another drain was faster
				r.block(rep.code, pod, nil, rep.why, "")
				left++
			}
		}
		if left == 0 {
			r, err = e.look(t, p)
			if err != nil {
				return e.broken(err)
			}
			t.Progress(r.gone, r.total, "pods", r.String())
			t.Blocked(nil)
			if len(r.ready) == 0 && r.blocked == "" {
				return executor.Done(fmt.Sprintf("%d pods evicted", r.total) + countForced(r.forced))
			}
			continue
		}
		message := r.String()
		if r.blocked != "" {
			message += ", " + r.blocked
		}
		t.Progress(r.gone, r.total, "pods", message)
		t.Blocked(e.hindrances(p, r))
		if s := wait(ctx, t, r.next); s != "" {
			if r.blockCode != "" && s == "interrupted" {
				s = r.blockCode
			}
			o := executor.Waiting(s, message)
			if s == r.blockCode && r.act != "" {
				o.ActionText = r.act
			}
			return o
		}
	}
}

func uids(pods []*Pod) []string {
	list := make([]string, len(pods))
	for i, p := range pods {
		list[i] = p.UID
	}
	return list
}

// plan writes down which pods the operation is about, by UID. It is the record
// that a later generation and the confirmation go by, no side effect.
func (e *Executor) plan(t *executor.Task, r round) error {
	return e.store.mutate(func(x *tx) {
		d := Drain{Operation: t.Assignment.Operation, NodeUID: r.node.UID}
		if old := x.w.Drains[d.Operation]; old != nil {
			d.Pods = append(d.Pods, old.Pods...)
		}
		for _, p := range r.left {
			known := false
			for _, q := range d.Pods {
				known = known || q.UID == p.UID
			}
			if !known {
				d.Pods = append(d.Pods, DrainPod{UID: p.UID, Name: p.Key(), Evicted: p.DeletedAt, Unmanaged: p.Owner == OwnerNone})
			}
		}
		x.e.Drains = append(x.e.Drains, &d)
	})
}

// removePod is an effect of kind (b): it names the UID of one planned pod, so a
// repeat or a late call finds it stopping or gone and does nothing. seconds of
// -1 leaves the pod its own grace period; a delete has none and asks no budget.
func (e *Executor) removePod(ctx context.Context, t *executor.Task, what string, pod *Pod, seconds int, reserve *Device) (reply, *executor.Outcome) {
	return e.effect(ctx, t, what, "pod/"+pod.UID, pod.Key(), func(x *tx) reply {
		now := x.w.Pods[pod.UID]
		if now == nil {
			return already("the pod is gone")
		}
		if now.DeletedAt != nil && (what == DidEvict || now.Forced) {
			return already("the pod is stopping")
		}
		c := *now
		r, failed, lost := fault(&c.Faults)
		if failed {
			x.pod(c)
			return r
		}
		if n := x.w.Nodes[now.NodeUID]; n != nil && !lost {
			f := *n
			if r, failed, lost = fault(&f.Faults); failed || lost {
				x.node(f)
			}
			if failed {
				return r
			}
		}
		if what == DidEvict && !now.Completed {
			switch b := budgets(x.w, x.ix, now); {
			case len(b) > 1:
				x.e = entry{}
				return refused("two_pdbs", "%s", twoPDBs(now, b))
			case len(b) == 1 && b[0].allowed() == 0:
				x.e = entry{}
				return refused("pdb_blocked", "%s", b[0])
			}
		}
		stop, grace := c.Stop, c.Grace
		if seconds >= 0 {
			grace = time.Duration(seconds) * time.Second
		}
		if what == DidDelete {
			grace, c.Forced = 0, true
		}
		if c.Completed {
			stop = 0
		}
		if c.DeletedAt == nil {
			c.DeletedAt = x.stamp()
		}
		c.StopAt = x.in(min(stop, grace)) // past its grace period a pod is killed
		x.pod(c)
		if reserve != nil {
			if d := x.w.Devices[reserve.UID]; d != nil {
				g := *d
				g.ReservedUntil = x.in(time.Minute)
				x.device(g)
			}
		}
		r = ok("")
		r.lost = lost
		return r
	})
}

// waitGone waits until each planned pod is gone, and names what it waits for.
func (e *Executor) waitGone(ctx context.Context, t *executor.Task) executor.Outcome {
	p, err := readDrainPlan(t)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	for {
		r, err := e.look(t, p)
		if err != nil {
			return e.broken(err)
		}
		if r.code != "" {
			return executor.Permanent(r.code, r.why)
		}
		if len(r.left) == 0 {
			t.Progress(r.gone, r.total, "pods", r.String())
			t.Blocked(nil)
			return executor.Done(r.String())
		}
		if len(r.ready) > 0 || r.blocked != "" { // one came after the evictions
			if o := e.evict(ctx, t); o.Class != operation.OutcomeDone {
				return o
			}
			continue
		}
		if p.forceNow(t) {
			for _, pod := range r.left {
				if pod.Forced {
					continue
				}
				if s := executor.Halted(ctx, t); s != "" {
					return executor.Waiting(s, r.String())
				}
				_, held := e.staying(pod, r.node)
				rep, stop := e.removePod(ctx, t, DidDelete, pod, 0, nil)
				if rep.category == "ok" {
					forced(t, pod, pastRules(held))
				}
				if stop != nil {
					return *stop
				}
			}
		}
		code, why := e.staying(r.left[0], r.node)
		message := fmt.Sprintf("%s, waiting for pod %s: %s", r, r.left[0].Key(), why)
		t.Progress(r.gone, r.total, "pods", message)
		t.Blocked(e.hindrances(p, r))
		if s := wait(ctx, t, r.next); s != "" {
			if s == "interrupted" {
				s = code
			}
			o := executor.Waiting(s, message)
			if s == "finalizer" {
				o.ActionText = fmt.Sprintf("remove the finalizer %s of pod %s, then drain again", r.left[0].Finalizer, r.left[0].Key())
			}
			return o
		}
	}
}

// staying says why a pod that was told to stop is still there.
func (e *Executor) staying(p *Pod, n Node) (code, why string) {
	now := e.opts.Now()
	switch {
	case n.Unreachable && !p.Forced:
		return "node_unreachable", fmt.Sprintf("node %s is unreachable, so nobody can see it stop", n.Name)
	case p.Finalizer != "" && (p.StopAt == nil || !p.StopAt.After(now)):
		return "finalizer", fmt.Sprintf("its finalizer %s is not removed", p.Finalizer)
	case p.StopAt != nil && p.DeletedAt != nil:
		return "slow_stop", fmt.Sprintf("it has been stopping for %s, at most %s are left of its grace period",
			now.Sub(*p.DeletedAt).Round(time.Second), max(p.DeletedAt.Add(p.Grace).Sub(now), 0).Round(time.Second))
	}
	return "stopping", "it is stopping"
}
