package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// look is one look at a node that is being drained.
type look struct {
	total, gone, forced int
	waiting             []*planned // not gone, in the order of eviction
	ready               []*planned // may be called for now
	force               map[*planned]int
	holds               []held
	onlyOwn             bool // what is left is the agent's own pod, untouched
	pending             bool // a pod of the plan is neither gone nor on its way
	unseen              bool // a pod of the plan is neither gone nor seen to stop
	next                time.Duration
	services            map[types.UID]string // that stopping pods still serve

	away bool // the API server does not answer

	pods, node, budgets, serving, pulse <-chan struct{}
}

// held is what keeps one pod, or the drain.
type held struct {
	hold
	resource string
	pod      *planned
}

// first is the worst that holds the drain up.
func (l *look) first() *held {
	if len(l.holds) == 0 {
		return nil
	}
	return &l.holds[0]
}

func (l *look) done(gone bool) bool {
	if gone {
		return len(l.waiting) == 0 && len(l.ready) == 0 && len(l.holds) == 0
	}
	return !l.unseen && len(l.ready) == 0
}

// look reads what has become of node and pods, and says what may be done.
func (d *drive) look(ctx context.Context) (*look, *executor.Outcome) {
	l := &look{force: map[*planned]int{}, next: heartbeat}
	if stop := d.lookNode(ctx, l); stop != nil {
		return l, stop
	}
	if stop := d.lookPods(ctx, l); stop != nil {
		return l, stop
	}
	d.feel(l)
	d.lookServing(l)
	if stop := d.lookRules(l); stop != nil {
		return l, stop
	}
	slices.SortStableFunc(l.holds, func(a, b held) int { return severity[a.code] - severity[b.code] })
	d.keepHolds(l)
	return l, nil
}

// keepHolds keeps what holds each pod that was not told to go, for its outcome.
func (d *drive) keepHolds(l *look) {
	for _, p := range l.waiting {
		p.held = ""
		if p.wave > l.waiting[0].wave {
			p.held = "its turn did not come: those before it are not gone"
		}
	}
	for _, h := range slices.Backward(l.holds) { // the worst stays
		if h.pod != nil && !h.pod.going() {
			h.pod.held = h.why
		}
	}
}

// feel says that the API server does not answer, if it does not. Nothing is known of
// any pod then.
func (d *drive) feel(l *look) {
	_, l.pulse = d.c.Pulse.State()
	if away, _ := follow.Trouble(d.c.Pulse, d.s.pods); away != nil {
		l.away = true
		b := away.Blocker()
		l.hold(b.Code, b.Resource, b.Rule, b.Detail, nil).since = b.Since
	}
}

// lookNode watches the node once the drive lasts.
func (d *drive) lookNode(ctx context.Context, l *look) *executor.Outcome {
	s := d.s
	s.mu.Lock()
	if s.nodes == nil {
		wait := watchNodeAfter - time.Since(d.begun)
		if at := d.t.Assignment.Deadline; !at.IsZero() { // what stands in its way then is told
			wait = min(wait, at.Sub(d.c.Now())-watchNodeAfter)
		}
		if wait > 0 && d.c.Now().UnixNano()-d.unwatched.Load() > int64(deniedLately) {
			s.mu.Unlock()
			l.wake(wait)
			return nil
		}
		s.nodes = follow.New(nodeNamed(d.c, s.node.Name), takeNode)
		var run context.Context
		run, s.endNodes = context.WithCancel(cluster.Operation(context.Background(), d.t.Assignment))
		go s.nodes.Run(run)
	}
	feed := s.nodes
	s.mu.Unlock()
	listed, _, _, err := feed.State()
	found, changed := feed.In("")
	l.node = changed
	if err != nil {
		if o := broken(err); o.ErrorCode == "forbidden" {
			d.unwatched.Store(d.c.Now().UnixNano())
			return &o
		}
	}
	if !listed {
		return nil
	}
	if len(found) == 0 {
		o := executor.Permanent("node_gone", fmt.Sprintf("there is no node %s (%s) any more", s.node.Name, s.node.UID))
		return &o
	}
	n := found[0]
	if n.UID != s.node.UID {
		o := executor.Permanent("node_replaced", fmt.Sprintf("node %s is another one now (%s, not %s)", n.Name, n.UID, s.node.UID))
		return &o
	}
	if on, ok := cluster.ReadMark(n.Annotations); !d.chosen && ok && on.Stale(cluster.MarkOf(d.t)) {
		o := outdated(ctx, d.t, n.Name, on)
		return &o
	}
	if !n.Spec.Unschedulable && !d.chosen {
		o := executor.Permanent("uncordoned_externally", uncordoned(n.Name))
		return &o
	}
	s.mu.Lock()
	s.node, s.nodeAt = n, d.c.Now()
	s.mu.Unlock()
	return nil
}

// lookPods takes over what the watch has brought.
func (d *drive) lookPods(ctx context.Context, l *look) *executor.Outcome {
	s := d.s
	_, _, _, err := s.pods.State()
	pods, changed := s.pods.In("")
	l.pods = changed
	if err != nil {
		if o := broken(err); o.ErrorCode == "forbidden" {
			return &o
		}
	}
	on := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		on[pod.UID] = pod
	}
	if !d.chosen && strangers(on, s) {
		// A node of this name that is not ours, or is no longer cordoned, has pods
		// that the drain is not about.
		n, code, why, err := d.read(ctx, d.t.Assignment)
		switch {
		case err != nil:
			return unsurveyed(err)
		case code != "":
			o := executor.Permanent(code, why)
			return &o
		case n.UID != s.node.UID:
			o := executor.Permanent("node_replaced", fmt.Sprintf("node %s is another one now (%s, not %s)", n.Name, n.UID, s.node.UID))
			return &o
		case !n.Spec.Unschedulable:
			o := executor.Permanent("uncordoned_externally", uncordoned(n.Name))
			return &o
		}
		if stop := d.adopt(ctx, pods, false); stop != nil { // one that came since would be taken to be gone: the next look finds it
			return stop
		}
	}
	for _, p := range s.plan {
		pod := on[p.uid]
		switch {
		case pod == nil && !p.isGone:
			p.isGone, p.gone, p.taken = true, d.c.Now(), p.taken || p.unsure
		case pod != nil && (p.pod == nil || p.pod.ResourceVersion != pod.ResourceVersion):
			if p.terminating() && pod.DeletionTimestamp == nil {
				break // the read after a lost answer was newer
			}
			p.saw(pod)
			if p.terminating() {
				if p.accepted {
					p.accepted, p.not = false, time.Time{}
				}
				p.taken, p.lost = p.taken || p.unsure, false
				d.noteOpen(p)
				if p.evicted.IsZero() {
					p.evicted = askedAt(pod)
				}
			}
		}
	}
	for _, p := range sorted(s.plan, d.p) {
		if p.finished && !d.chosen {
			continue
		}
		l.total++
		if p.isGone || p.finished {
			l.gone++
			if p.wasForced() != "" {
				l.forced++
			}
			continue
		}
		l.waiting = append(l.waiting, p)
	}
	return nil
}

// strangers tells whether there are pods that no look has judged yet.
func strangers(on map[types.UID]*corev1.Pod, s *session) bool {
	for uid := range on {
		if s.plan[uid] == nil && s.came[uid] == "" {
			return true
		}
	}
	return false
}

// sorted is the plan in the order of eviction.
func sorted(plan map[types.UID]*planned, p payload) []*planned {
	list := make([]*planned, 0, len(plan))
	for _, x := range plan {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *planned) int {
		if a.wave != b.wave {
			return a.wave - b.wave
		}
		return strings.Compare(a.name, b.name)
	})
	return list
}

func (l *look) wake(d time.Duration) { l.next = min(l.next, max(d, 0)) }

func (l *look) hold(code, resource, rule, why string, p *planned) *held {
	l.holds = append(l.holds, held{hold{code: code, rule: rule, why: why}, resource, p})
	return &l.holds[len(l.holds)-1]
}

// ahead adds to blockers what will become of them at the deadline.
func ahead(t *executor.Task, p payload, list []protocol.Blocker) []protocol.Blocker {
	out := make([]protocol.Blocker, len(list))
	for i, b := range list {
		out[i] = b
		out[i].Detail += atDeadline(t, p)
		if b.Code == "finalizer" && p.OnDeadline == onDeadlineForce && !t.Assignment.Deadline.IsZero() {
			out[i].Detail += ", which a finalizer outlasts: the drain ends with the pod still there"
		}
		if b.Code == codeReturns && p.OnDeadline == onDeadlineForce && !t.Assignment.Deadline.IsZero() {
			out[i].Detail += ", and such pods come back all the same"
		}
	}
	return out
}

func atDeadline(t *executor.Task, p payload) string {
	if t.Assignment.Deadline.IsZero() {
		return ""
	}
	at := t.Assignment.Deadline.UTC()
	if p.OnDeadline == onDeadlineForce {
		return fmt.Sprintf("; from %s on what is left is deleted past its rules", at.Add(-p.window()).Format(time.RFC3339))
	}
	return fmt.Sprintf("; at the deadline, %s, the drain stops and leaves it as it is", at.Format(time.RFC3339))
}
