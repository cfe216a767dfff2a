package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// maxSessions bounds how many leases are remembered, and sessionFor how long one
	// is that nobody asks for.
	maxSessions = 1_000
	sessionFor  = 10 * time.Minute
	// fresh is how long what was read may be gone by before the API server is asked
	// again: a patch is conditional, and the watch goes on from a list.
	fresh = 5 * time.Second
	// watchLingers is how long a watch stays open between two steps.
	watchLingers = 15 * time.Second
)

// planned is one pod of the plan and what became of it.
type planned struct {
	uid      types.UID
	name     string      // namespace/name
	pod      *corev1.Pod // as last seen; nil: it is gone, or was before this lease
	verdict  verdict
	wave     int
	back     bool      // it came after the plan, for one of its controller's that was told to go
	turned   bool      // it took its turn among those that came back
	evicted  time.Time // when the eviction was accepted
	gone     time.Time
	isGone   bool
	finished bool // has run to its end: it is evicted, and waited for only once it is told to stop
	// forced says past what rule it was removed, "" if past none.
	forced string
	// stage is how far the escalation went: 0 evictions, 1 deleted with grace,
	// 2 without.
	stage int

	earlier  bool // an earlier lease planned it: what that one did is not known
	taken    bool // an eviction of ours was taken, as far as is known
	unsure   bool // an answer does not tell whether one was
	accepted bool // the API server took the eviction, and the watch has not shown it yet
	inFlight bool
	lost     bool // what became of the last call is not known: the pod is read before the next
	tries    int  // refused in a row
	pushed   int  // the furthest stage that was refused
	not      time.Time
	refusal  *refusal
	doubt    *refusal // of the last call, if the pod that is read is still the planned one
	unheard  unheard  // of evictions that were not answered
	vain     vain     // of evictions that did nothing
	noted    bool     // that it was removed past a rule
	noGrace  bool     // a call was taken, or may have been, that waits for no kubelet
	held     string   // what kept it when it was looked at last
	heldBy   string   // what kept it when it was deleted
	open     forcing  // the last call past a rule, if its answer was lost
	served   time.Time
	dangling string // the service that still names it though it is gone
}

// saw takes the pod as it is now.
func (p *planned) saw(pod *corev1.Pod) {
	p.pod, p.finished = pod, hasFinished(pod)
	if p.terminating() {
		p.vain = vain{}
	}
}

// terminating tells whether the pod is seen to be told to stop.
func (p *planned) terminating() bool { return p.pod != nil && p.pod.DeletionTimestamp != nil }

// going tells whether the pod is on its way: seen to be, or by the API server's
// word, which the watch confirms a moment later. One whose word came to nothing is
// not believed again.
func (p *planned) going() bool { return p.terminating() || p.accepted && p.vain.times == 0 }

// left tells whether the pod is still waited for.
func (p *planned) left() bool { return !p.isGone && !p.finished }

// stage is how long a step took.
type stage struct {
	name  string
	began time.Time
	took  time.Duration
}

// session is what one agent keeps of one lease of a drain, from step to step.
type session struct {
	mu     sync.Mutex
	began  time.Time
	used   time.Time
	busy   int // steps under way: a budget may hold one for hours
	stages []stage

	node   *corev1.Node
	nodeAt time.Time

	pods    *follow.Feed[*corev1.Pod]
	podsAt  time.Time // when the list behind an idle feed was read
	endPods context.CancelFunc
	idle    *time.Timer

	nodes    *follow.Feed[*corev1.Node]
	endNodes context.CancelFunc

	record *record
	// inherited: an earlier lease of the run has made the record.
	inherited bool

	plan  map[types.UID]*planned
	came  map[types.UID]string   // pods that came after the plan, left alone
	late  map[types.UID]*planned // that came after the plan, and that the drain may not evict
	turns map[types.UID]*turn    // of controllers whose pods come back, by UID
	// goneAt is when the node was seen to be gone; zero: it is there.
	goneAt time.Time

	// final is what confirm read, for Observe.
	final *reading
}

// reading is a node and its pods as they were read.
type reading struct {
	node    *corev1.Node
	pods    []*corev1.Pod
	version string
	at      time.Time
}

// drainer carries drains out.
type drainer struct {
	*nodes
	budgets     *follow.Shared[*budget]
	attachments *follow.Shared[*storagev1.VolumeAttachment]
	allowances  allowances
	daemons     memo[types.UID, bool]
	admitted    memo[string, *refusal]
	slots       chan struct{} // evictions in flight, over all drains
	patient     chan struct{} // the same of those that may take long, which hold up no other
	// send is post, but for tests.
	send   func(ctx context.Context, ev *policyv1.Eviction) error
	drives atomic.Int64 // under way
	// unwatched is when the watch of a node was denied last, in Unix nanoseconds.
	unwatched atomic.Int64

	mu       sync.Mutex
	sessions map[string]*session
	order    []string
	slices   map[string]*follow.Shared[*discoveryv1.EndpointSlice]
	handed   map[string]time.Time // operations that were handed back for this agent's own pod
}

// maxInFlight bounds the evictions that are in flight at once over all drains, beside
// those that may take long, and perDrain those of one: below what an API server takes at
// once (200 changing requests by default).
const (
	maxInFlight = 64
	perDrain    = 16
)

func newDrainer(c *cluster.Cluster, o Options) *drainer {
	e := &drainer{
		nodes:       &nodes{c: c, o: o},
		budgets:     budgetsOf(c),
		attachments: attachmentsOf(c),
		slots:       make(chan struct{}, maxInFlight),
		patient:     make(chan struct{}, maxPatient),
		sessions:    map[string]*session{},
		slices:      map[string]*follow.Shared[*discoveryv1.EndpointSlice]{},
		handed:      map[string]time.Time{},
	}
	e.send = e.post
	return e
}

func sessionKey(a *protocol.Assignment) string {
	return fmt.Sprintf("%s/%d/%d", a.Operation, a.Run, a.Generation)
}

// session returns what is kept of the lease. begins: a step of it begins, and ends
// with spent; else nil if it is nothing.
func (e *drainer) session(a *protocol.Assignment, begins bool) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	k, now := sessionKey(a), e.c.Now()
	s := e.sessions[k]
	if !begins {
		return s
	}
	if s == nil {
		over := len(e.order) + 1 - maxSessions
		e.order = slices.DeleteFunc(e.order, func(k string) bool { // the oldest first
			old := e.sessions[k]
			if !old.forgotten(now, over > 0) {
				return false
			}
			over--
			old.close()
			delete(e.sessions, k)
			return true
		})
		s = &session{began: now, used: now, came: map[types.UID]string{}}
		e.sessions[k], e.order = s, append(e.order, k)
	}
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
	return s
}

// forgotten tells whether the session may go. One with a step under way may not.
func (s *session) forgotten(now time.Time, crowded bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy == 0 && (crowded || now.Sub(s.used) > sessionFor)
}

// slim lets go of the objects, once the operation is over: what became of the pods
// stays for a while.
func (s *session) slim() {
	s.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, plan := range []map[types.UID]*planned{s.plan, s.late} {
		for _, p := range plan {
			p.pod, p.verdict = nil, verdict{}
		}
	}
	s.node, s.final = nil, nil
}

// close lets go of everything but what Observe tells.
func (s *session) close() {
	s.closeNode()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closePods()
}

func (s *session) closePods() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	if s.endPods != nil {
		s.endPods()
	}
	s.pods, s.endPods = nil, nil
}

func (s *session) closeNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endNodes != nil {
		s.endNodes()
	}
	s.nodes, s.endNodes = nil, nil
}

// rest lets the pods' watch stay open for the next step, for a while.
func (s *session) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil || s.idle != nil {
		return
	}
	var mine *time.Timer
	mine = time.AfterFunc(watchLingers, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.idle == mine { // else the next step has begun just now
			s.closePods()
		}
	})
	s.idle = mine
}

// timed wraps a step: it counts its time and closes what must not outlive it.
func (e *drainer) timed(f func(ctx context.Context, t *executor.Task, s *session) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.lenient(func(ctx context.Context, t *executor.Task) executor.Outcome {
		s := e.session(t.Assignment, true)
		begin := e.c.Now()
		defer func() { s.spent(t.Step.Name, begin, e.c.Now().Sub(begin)) }()
		o := f(ctx, t, s)
		s.closeNode()
		if nodeLost(o.ErrorCode) {
			s.lost(e.c.Now())
		}
		if o.Class == operation.OutcomeDone && t.Step.Name != "confirm" && !t.Step.Cleanup {
			s.rest()
		} else {
			s.close()
		}
		return o
	})
}

// lost books when a node that was there is gone.
func (s *session) lost(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node != nil && s.goneAt.IsZero() {
		s.goneAt = now
	}
}

func (s *session) keepLate(p *planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late == nil {
		s.late = map[types.UID]*planned{}
	}
	s.late[p.uid] = p
}

func (s *session) spent(name string, began time.Time, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.used = s.busy-1, began.Add(d)
	for i := range s.stages {
		if s.stages[i].name == name {
			s.stages[i].took += d
			return
		}
	}
	s.stages = append(s.stages, stage{name, began, d})
}

// memo keeps answers for a while.
type memo[K comparable, V any] struct {
	mu   sync.Mutex
	kept map[K]memoized[V]
}

type memoized[V any] struct {
	v     V
	until time.Time
}

// maxMemo bounds a memo; what would be over first is dropped when it is full.
const maxMemo = 10_000

func (m *memo[K, V]) get(now time.Time, k K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x, ok := m.kept[k]
	if !ok || now.After(x.until) {
		return v, false
	}
	return x.v, true
}

func (m *memo[K, V]) put(now time.Time, k K, v V, keep time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[K]memoized[V]{}
	}
	if _, known := m.kept[k]; !known && len(m.kept) >= maxMemo {
		m.drop(now)
	}
	m.kept[k] = memoized[V]{v, now.Add(keep)}
}

// drop makes room: for what is over, else for what would be first. The caller holds m.mu.
func (m *memo[K, V]) drop(now time.Time) {
	maps.DeleteFunc(m.kept, func(_ K, x memoized[V]) bool { return now.After(x.until) })
	if len(m.kept) < maxMemo {
		return
	}
	var first K
	var until time.Time
	for k, x := range m.kept {
		if until.IsZero() || x.until.Before(until) {
			first, until = k, x.until
		}
	}
	delete(m.kept, first)
}
