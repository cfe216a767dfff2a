package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Drains are the evictions of one agent: its drains of nodes, and those of chosen
// pods that another operation asks for. They share the budgets that they watch and
// what these allow, the evictions in flight, and whether the API server answers.
type Drains struct{ e *drainer }

// NewDrains makes an agent's one Drains.
func NewDrains(c *cluster.Cluster, o Options) *Drains { return &Drains{newDrainer(c, o)} }

// Type is node.drain.
func (x *Drains) Type() cluster.Type { return x.e.drain() }

// EvictRights are what Chosen needs of the agent's role. It deletes nothing: an
// operation that is not a drain has no window in which it goes past a rule.
var EvictRights = []cluster.Right{
	{Verb: "get", Resource: "nodes", Why: "to ask whether the API server is there"},
	{Verb: "list", Resource: "nodes", Why: "to see a node go while its pods are evicted"},
	{Verb: "watch", Resource: "nodes", Why: "to see a node go while its pods are evicted"},
	{Verb: "get", Resource: "pods", Why: "to learn what became of an eviction whose answer was lost"},
	{Verb: "list", Resource: "pods", Why: "to see chosen pods gone"},
	{Verb: "watch", Resource: "pods", Why: "to see chosen pods stop"},
	{Verb: "create", Resource: "pods/eviction", Why: "to evict"},
	{Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", Why: "to say which budget holds a pod, and to evict as soon as it allows"},
	{Verb: "watch", Group: "policy", Resource: "poddisruptionbudgets", Why: "to say which budget holds a pod, and to evict as soon as it allows"},
}

// Chosen are pods of a node that an operation has chosen to evict. The node is not
// the operation's to cordon, and pods that come are none of its business.
type Chosen struct {
	e *drainer
	s *session

	mu   sync.Mutex
	held []protocol.Blocker // what stood in the way when it was told last
}

// Chosen begins with no pod.
func (x *Drains) Chosen() *Chosen {
	return &Chosen{e: x.e, s: &session{began: x.e.c.Now(), came: map[types.UID]string{}, plan: map[types.UID]*planned{}}}
}

// chosenPayload is how chosen pods are evicted: nothing is gone past for them.
func chosenPayload() payload {
	return payload{DrainPayload: operation.DrainPayload{GracePeriodSeconds: -1, OnDeadline: "stop", Order: "none"}}
}

// Met is what an eviction of chosen pods would meet.
type Met struct {
	// Code and Why say what no eviction of them gets past; empty: nothing.
	Code, Why string
	// Blockers are everything that stands in the way, the worst first.
	Blockers []protocol.Blocker
}

// Meet tells what Evict would meet of pods of node n, as they were just read, by the
// rules and in the words of a drain of the node: what is refused for good is so of
// Evict, too. left is the time to the deadline, 0: it is not known.
func (x *Drains) Meet(ctx context.Context, n *corev1.Node, pods []*corev1.Pod, left time.Duration) (Met, error) {
	p, sv := chosenPayload(), &survey{pods: pods}
	if err := x.e.judge(ctx, p, sv); err != nil {
		return Met{}, err
	}
	for i := range sv.verdicts {
		sv.verdicts[i].returns, sv.verdicts[i].named = false, false // there is no cordon
	}
	refused, err := x.e.rehearse(ctx, p, sv)
	if err != nil {
		return Met{}, err
	}
	m := Met{Blockers: append(sv.blockers(n, x.e.c.Now, refused), sv.hurried(n, p, left)...)}
	m.Code, m.Why = sv.refusal(p)
	return m, nil
}

// Evict adds pods of node n, as they were just read, to the chosen ones, and works
// on all of them as a drain does, within their budgets, until each is gone by UID.
// It is done then; else the outcome says what it was waiting for, or what stands in
// the way for good, with the codes of a drain. The agent's own pod is the last, and
// is handed to another agent first (executor.HandBack). Pods that run to their end
// meanwhile count as gone, and are left as they are.
func (v *Chosen) Evict(ctx context.Context, t *executor.Task, n *corev1.Node, pods []*corev1.Pod) executor.Outcome {
	s := v.s
	defer s.close()
	s.node, s.nodeAt = n, v.e.c.Now()
	for _, p := range pods {
		if s.plan[p.UID] == nil {
			s.plan[p.UID] = &planned{uid: p.UID, name: key(p), pod: p, verdict: verdict{pod: p, kind: toEvict}}
		}
	}
	p, told := chosenPayload(), *t
	told.Blocked = func(now []protocol.Blocker) {
		v.mu.Lock()
		v.held = now
		v.mu.Unlock()
		if t.Blocked != nil {
			t.Blocked(now)
		}
	}
	d := v.e.newDrive(&told, s, p, true)
	d.chosen = true
	return v.e.driven(ctx, d)
}

// Kept is a chosen pod that is not gone.
type Kept struct {
	Pod      string // namespace/name
	Stopping bool   // it was told to stop
	Why      string // what kept it when that was told last; empty: nothing is known to
}

// Kept lists the chosen pods that are not gone, in the order of their names.
func (v *Chosen) Kept() (pods []Kept) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.s.plan {
		if !p.left() {
			continue
		}
		k := Kept{Pod: p.name, Stopping: p.going()}
		for _, b := range v.held { // the worst of its own, else the worst of all
			if own := b.Resource == "pod/"+p.name; own || k.Why == "" && !strings.HasPrefix(b.Resource, "pod/") {
				k.Why = b.Detail
				if own {
					break
				}
			}
		}
		pods = append(pods, k)
	}
	slices.SortFunc(pods, func(a, b Kept) int { return strings.Compare(a.Pod, b.Pod) })
	return pods
}

// Taken names the pods whose eviction the API server took from Evict, as far as that
// is known, in the order of their names.
func (v *Chosen) Taken() (pods []string) {
	for _, p := range v.s.plan {
		if p.taken {
			pods = append(pods, p.name)
		}
	}
	slices.Sort(pods)
	return pods
}

// openChosen makes the plan ready: what is not on the node any more is gone.
func (d *drive) openChosen(ctx context.Context) *executor.Outcome {
	d.budgets = d.drainer.budgets.Acquire()
	read, cancel := d.c.Read(ctx)
	defer cancel()
	if err := d.budgets.Ready(read); err != nil {
		return unsurveyed(err)
	}
	if err := d.openPods(ctx, d.s.node); err != nil {
		return unsurveyed(err)
	}
	d.waves()
	return nil
}
