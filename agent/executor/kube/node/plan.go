package node

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// open reads node and pods as far as they are not known, fences older leases off,
// and makes the plan.
func (d *drive) open(ctx context.Context) *executor.Outcome {
	if d.chosen {
		return d.openChosen(ctx)
	}
	s, a := d.s, d.t.Assignment
	s.mu.Lock()
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	n, at := s.node, s.nodeAt
	s.mu.Unlock()
	if n == nil || d.c.Now().Sub(at) > fresh {
		var code, why string
		var err error
		if n, code, why, err = d.read(ctx, a); err != nil {
			return unsurveyed(err)
		}
		if code != "" {
			o := executor.Permanent(code, why)
			return &o
		}
	}
	if !n.Spec.Unschedulable {
		o := executor.Permanent("uncordoned_externally", uncordoned(n.Name))
		return &o
	}
	if code, why, err := d.narrow(ctx, a, &d.p, n); err != nil {
		return unsurveyed(err)
	} else if code != "" {
		o := executor.Permanent(code, why)
		return &o
	}
	if err := d.openPods(ctx, n); err != nil {
		return unsurveyed(err)
	}
	if s.plan == nil {
		if stop := d.makePlan(ctx, n); stop != nil {
			return stop
		}
	}
	n, stop := d.rely(ctx, d.t, n, func(n *corev1.Node) map[string]*string {
		if readRecord(n, a) != nil {
			return nil
		}
		s.record.Planned = d.c.Now().UTC()
		text := s.record.encode()
		return map[string]*string{annotationDrain: &text}
	})
	if stop != nil {
		return stop
	}
	if !n.Spec.Unschedulable {
		o := executor.Permanent("uncordoned_externally", uncordoned(n.Name))
		return &o
	}
	s.mu.Lock()
	s.node, s.nodeAt = n, d.c.Now()
	s.mu.Unlock()
	return nil
}

func uncordoned(name string) string {
	return fmt.Sprintf("node %s was uncordoned by somebody else during the drain", name)
}

// openPods makes sure that the node's pods are watched, from a list that is at hand
// if it is fresh.
func (d *drive) openPods(ctx context.Context, n *corev1.Node) error {
	s := d.s
	s.mu.Lock()
	running := s.pods != nil && s.endPods != nil
	seeded := s.pods != nil && s.endPods == nil && d.c.Now().Sub(s.podsAt) < fresh
	s.mu.Unlock()
	if running {
		return nil
	}
	var items []runtime.Object
	var version string
	if !seeded {
		var err error
		if items, version, err = d.list(ctx, n.Name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !seeded {
		s.pods = follow.New(podsOf(d.c, n.Name), takePod)
		s.pods.Seed(items, version)
	}
	run, end := context.WithCancel(cluster.Operation(context.Background(), d.t.Assignment))
	s.endPods = end
	go s.pods.Run(run)
	return nil
}

// makePlan decides which pods the drain is about. What an earlier lease of the run
// left on the node comes first: a pod of it that is no longer there is gone.
func (d *drive) makePlan(ctx context.Context, n *corev1.Node) *executor.Outcome {
	s := d.s
	plan := map[types.UID]*planned{}
	old := readRecord(n, d.t.Assignment)
	if old != nil {
		plan = old.plan()
	}
	if old != nil && (s.record == nil || s.record.Planned.IsZero()) {
		s.record, s.inherited = old, true
	}
	s.plan = plan
	pods, _ := s.pods.In("")
	if stop := d.adopt(ctx, pods, old == nil || old.Cut); stop != nil {
		s.plan = nil
		return stop
	}
	for _, p := range plan {
		p.earlier = s.inherited // else this lease has written the record, at its cordon
		if p.pod == nil {
			p.isGone = true // before this lease looked
		}
	}
	if s.record == nil {
		verdicts := make([]verdict, 0, len(plan))
		for _, p := range plan {
			verdicts = append(verdicts, p.verdict)
		}
		s.record = d.newRecord(d.t.Assignment, s.began, n, verdicts)
		s.record.Planned = d.c.Now().UTC()
	}
	return nil
}

// adopt takes pods that are on the node into the plan: all of them, or those
// that could only come by the cordon's being late. A pod that tolerates the cordon
// and came after the plan is left alone: its replacement would come as well.
func (d *drive) adopt(ctx context.Context, pods []*corev1.Pod, all bool) *executor.Outcome {
	s := d.s
	news, on := false, make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		on[pod.UID] = pod
		if p := s.plan[pod.UID]; p == nil || p.pod == nil {
			if _, came := s.came[pod.UID]; !came {
				news = true
			}
		}
	}
	if !news {
		return nil
	}
	sv := &survey{pods: pods}
	if err := d.judge(ctx, d.p, sv); err != nil {
		return unsurveyed(err)
	}
	var refused *executor.Outcome
	for _, v := range sv.verdicts {
		p := s.plan[v.pod.UID]
		switch {
		case p != nil && p.pod != nil:
			continue
		case p == nil && s.came[v.pod.UID] != "":
			continue
		case p == nil && !all && (v.kind == finished || toleratesCordon(v.pod)):
			s.came[v.pod.UID] = key(v.pod)
			if v.kind != finished {
				d.t.Note("came_after", fmt.Sprintf("pod %s (%s) tolerates the cordon and came after the plan: it is left alone", key(v.pod), v.pod.UID))
			}
			continue
		}
		if code, why := v.refuses(); code != "" { // it came after preflight
			if refused == nil {
				o := executor.Permanent(code, why)
				refused = &o
			}
			s.keepLate(&planned{uid: v.pod.UID, name: key(v.pod), pod: v.pod, verdict: v, held: v.late()})
			continue
		}
		if p == nil {
			p = &planned{uid: v.pod.UID, back: !all && s.cameBack(v.pod, on)}
			s.plan[v.pod.UID] = p
		}
		p.name, p.pod, p.verdict, p.finished, p.isGone = key(v.pod), v.pod, v, v.kind == finished, false
	}
	if refused != nil {
		return refused
	}
	for _, pod := range pods { // what the drain is not about is not looked at again
		if s.plan[pod.UID] == nil && s.came[pod.UID] == "" {
			s.came[pod.UID] = key(pod)
		}
	}
	d.waves()
	return nil
}

// waves numbers the pods by the order in which they go: by priority if the payload
// asks for it, the agent's own pod after all others.
func (d *drive) waves() {
	var levels []int32
	for _, p := range d.s.plan {
		if p.pod != nil && p.left() && !slices.Contains(levels, priority(p.pod)) {
			levels = append(levels, priority(p.pod))
		}
	}
	slices.Sort(levels)
	for _, p := range d.s.plan {
		if p.pod == nil {
			continue
		}
		p.wave = 0
		if d.p.Order == orderPriority {
			p.wave, _ = slices.BinarySearch(levels, priority(p.pod))
		}
		if d.isOwn(p.pod) {
			p.wave = len(levels) + 1
		}
	}
}
