package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
)

// Waits of a drive beside what it is woken by.
const (
	// watchNodeAfter is when a drive begins to watch its node, and how long before its
	// deadline at the latest: most are over before, also in a wave.
	watchNodeAfter = 10 * time.Second
	// deniedLately is for how long after the watch of a node was denied drives begin
	// with it at once: a denial is believed when it is met again soon.
	deniedLately = time.Minute
	// lookServing is how long a pod has been stopping when its endpoints are looked
	// at: most are gone before.
	lookServing = time.Second
	// unseenFor is how long an accepted call may stay unseen by the watch before the
	// pod is read: a call that it does not show then came to nothing.
	unseenFor = 10 * time.Second
	// lookEvery, for each drive that is under way, is between two looks that a change
	// of what they share calls for, and lookMost the longest.
	lookEvery = 500 * time.Microsecond
	lookMost  = 300 * time.Millisecond
	// lookOthers is between two looks at budgets of several namespaces.
	lookOthers = time.Second
	// heartbeat bounds the time between two looks: what is told names times.
	heartbeat = 10 * time.Second
)

// drive is one step's work on the planned pods: it evicts, or waits too.
type drive struct {
	*drainer
	t *executor.Task
	s *session
	p payload
	// gone: until every planned pod is gone; else until each is on its way.
	gone bool
	// chosen: of pods that another operation chose; their node is not its own.
	chosen bool

	begun    time.Time
	looked   time.Time
	results  chan result
	over     chan struct{} // closed once it was decided that it ends: no call begins any more
	inFlight int
	budgets  *follow.Feed[*budget]
	waits    waits
	serving  map[string]*serving // by namespace
	halted   string
	worst    *executor.Outcome // of a call: the step cannot go on
}

// result is how one call ended.
type result struct {
	p      *planned
	stage  int
	grace  int64 // seconds that the call asked for; at 0 the API server waits for no kubelet
	issued bool
	begun  time.Time
	took   time.Duration
	// finished: the pod had run to its end when the call was made. The watch may show
	// it going, and so not finished any more, before the answer is there.
	finished bool
	until    *metav1.Time // as the call has it
	reply    cluster.Reply
	stop     *executor.Outcome
	found    *looked
}

// drive brings the planned pods as far as asked. It ends when they are there, when
// something stands in the way for good, or when the step has to stop: then with
// what it was waiting for.
func (e *drainer) drive(ctx context.Context, t *executor.Task, s *session, p payload, gone bool) executor.Outcome {
	return e.driven(ctx, e.newDrive(t, s, p, gone))
}

func (e *drainer) newDrive(t *executor.Task, s *session, p payload, gone bool) *drive {
	return &drive{drainer: e, t: t, s: s, p: p, gone: gone, begun: time.Now(),
		results: make(chan result, perDrainMost), over: make(chan struct{}), serving: map[string]*serving{}}
}

func (e *drainer) driven(ctx context.Context, d *drive) executor.Outcome {
	e.drives.Add(1)
	defer d.close()
	defer e.c.Pulse.Listen()()
	return d.orphaned(d.run(ctx))
}

func (d *drive) run(ctx context.Context) executor.Outcome {
	t, gone := d.t, d.gone
	if stop := d.open(ctx); stop != nil {
		return *stop
	}
	for {
		d.looked = time.Now()
		l, stop := d.look(ctx)
		if stop != nil {
			return d.settled(ctx, *stop)
		}
		if d.halted = executor.Halted(ctx, t); d.halted != "" || d.worst != nil {
			return d.settled(ctx, d.ended(l))
		}
		d.start(ctx, l)
		if d.inFlight == 0 && l.done(gone) {
			d.tell(l)
			return executor.Done(d.summary(l))
		}
		if l.onlyOwn && d.inFlight == 0 && d.handOver() {
			t.Progress(l.gone, l.total, "pods", d.summary(l))
			return executor.HandBack("own_node", fmt.Sprintf("%s; what is left is this agent's own pod on node %s: another agent goes on",
				d.summary(l), nodeName(t.Assignment)))
		}
		d.tell(l)
		d.rest(ctx, l)
	}
}

func (d *drive) close() {
	d.drives.Add(-1)
	if d.budgets != nil {
		d.drainer.budgets.Release()
	}
	for _, s := range d.serving {
		s.shared.Release()
	}
}

// settled waits for the calls that are in flight, each of which ends by itself: no
// step ends with one, and those that wait for their turn are not made. What is not
// known of one at the end makes it ambiguous.
func (d *drive) settled(ctx context.Context, o executor.Outcome) executor.Outcome {
	close(d.over)
	lost := 0
	for d.inFlight > 0 {
		d.take(<-d.results)
	}
	for _, p := range d.s.plan {
		if p.lost && !p.isGone && !p.terminating() {
			lost++
		}
	}
	if d.worst != nil && o.Class != operation.OutcomePermanent {
		o = *d.worst
	}
	if lost > 0 && ctx.Err() != nil {
		return d.openEnd(lost, o)
	}
	return o
}

// ended words why the step stops before its end.
func (d *drive) ended(l *look) executor.Outcome {
	if d.worst != nil {
		return *d.worst
	}
	message := d.message(l)
	h := l.first()
	if h == nil || d.halted != "interrupted" {
		return executor.Waiting(d.halted, message)
	}
	if h.code == cluster.CodeUnavailable && h.since != nil {
		message += ", since " + h.since.Format(time.RFC3339)
	}
	o := executor.Waiting(outcomeCode(h.code), message)
	if h.act != "" {
		o.ActionCode, o.ActionText = operation.ActRestoreDependency, h.act
	}
	return o
}

// outcomeCode is the outcome's code of a blocker.
func outcomeCode(code string) string {
	switch code {
	case "pdb":
		return "pdb_blocked"
	case "terminating", "still_serving":
		return "slow_stop"
	}
	return code
}

// start issues what may be issued now.
func (d *drive) start(ctx context.Context, l *look) {
	for _, p := range l.ready {
		if d.inFlight >= perDrainMost {
			return
		}
		k := call{p: p, uid: p.uid, stage: l.force[p], lost: p.lost, finished: p.finished}
		if p.terminating() {
			k.until = p.pod.DeletionTimestamp
		}
		if d.isPatient(p, k.stage) {
			k.within = d.patience(k.stage)
		}
		d.inFlight++
		p.inFlight = true
		l.wake(yieldsAfter)
		k.namespace, k.name, _ = strings.Cut(p.name, "/")
		switch {
		case k.stage == withGrace:
			k.grace = d.p.mercy(ownGrace(p.pod), d.t.Remaining())
		case k.stage == 0 && d.p.GracePeriodSeconds >= 0:
			k.grace = int64(d.p.GracePeriodSeconds)
		case k.stage == 0:
			k.grace = ownGrace(p.pod)
		}
		go d.issue(ctx, k)
	}
}

// issue makes one call. It runs beside the others.
func (d *drive) issue(ctx context.Context, k call) {
	r := result{p: k.p, stage: k.stage, grace: k.grace, finished: k.finished, until: k.until}
	defer func() { d.results <- r }()
	if k.lost { // what became of the last call comes first
		r.found = d.lookAt(ctx, k)
		return
	}
	slots := d.slots
	if k.within > 0 {
		var stop context.CancelFunc
		ctx, stop = d.untilOver(ctx)
		defer stop()
		slots = d.patient
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-d.over:
		return
	case <-ctx.Done():
		return
	case <-d.t.Cancelled:
		return
	}
	select {
	case <-d.over: // while there were slots as well
		return
	default:
	}
	r.begun = d.c.Now()
	d.waits.begin(k.p, k.stage, r.begun)
	defer func() { r.took = d.c.Now().Sub(r.begun) }()
	switch {
	case executor.Halted(ctx, d.t) != "":
	case k.stage == 0:
		r.issued = true
		r.reply, r.stop = d.evictPod(ctx, k)
	default:
		r.issued = true
		r.reply, r.stop = d.deletePod(ctx, k)
	}
}

// take books how a call ended.
func (d *drive) take(r result) {
	now := d.c.Now()
	p := r.p
	d.inFlight--
	p.inFlight = false
	away, _ := d.c.Pulse.State()
	d.waits.ended(r, away == nil, r.stop == nil && r.reply.Category != cluster.Timeout)
	if r.found != nil {
		d.found(p, r.found)
		return
	}
	if !r.issued {
		return
	}
	if r.reply.MayHaveLanded { // the pod is read before anything is repeated
		d.noAnswer(p, r)
	}
	if r.grace == 0 && !r.finished && (r.reply.MayHaveLanded || r.stop == nil && r.reply.Category == cluster.OK) {
		p.noGrace = true
	}
	if r.stop != nil {
		if r.stop.ErrorCode == "api_unavailable" {
			d.waits.pressed = now
			p.refused(&refusal{stage: r.stage, code: "api_unavailable", rule: "api_server", why: r.stop.Detail}, now, 0)
			return
		}
		d.worst = r.stop
		return
	}
	switch r.reply.Category {
	case cluster.OK:
		d.accepted(p, r, now)
	case cluster.Timeout, cluster.Conflict:
		p.lost = true
		p.not = now.Add(paceLeast)
		if r.reply.Category == cluster.Timeout {
			d.notAnswered(p, r)
		} else { // it may be another's pod
			p.doubt = conflicting(p.name, r)
		}
	default:
		if r.reply.NotFound() {
			p.isGone, p.gone, p.taken = true, now, p.taken || p.unsure
			return
		}
		if p.finished { // it never stands in the way
			p.not = now.Add(time.Hour)
			return
		}
		var all []*budget
		if d.budgets != nil {
			all, _ = d.budgets.In(p.pod.Namespace)
		}
		why := refusalOf(r.reply.Err, p.pod, all)
		why.stage = r.stage
		if why.code == "throttled" {
			d.waits.pressed = now
		}
		for _, b := range all {
			if b.key() == why.budget {
				d.allowances.empty(now, b)
			}
		}
		p.unheard.of(r.stage).needs = r.took
		p.refused(why, now, r.reply.RetryAfter)
	}
}

// refused books a refusal and when the pod is asked for again. How often its evictions
// were refused does not slow its deletions down.
func (p *planned) refused(why *refusal, now time.Time, after time.Duration) {
	if p.refusal == nil || p.refusal.code != why.code || p.refusal.version != why.version || why.stage > p.pushed {
		p.tries = 0
	}
	p.pushed = max(p.pushed, why.stage)
	p.tries++
	p.refusal = why
	p.not = now.Add(jitter(pace(why.code, p.tries, after)))
}

// rest waits until something may have changed.
func (d *drive) rest(ctx context.Context, l *look) {
	timer := time.NewTimer(max(l.next, time.Millisecond))
	defer timer.Stop()
	cancelled := d.t.Cancelled
	if d.t.Step.Cleanup {
		cancelled = nil
	}
	select {
	case r := <-d.results:
		d.take(r)
		for len(d.results) > 0 {
			d.take(<-d.results)
		}
	case <-l.pods:
	case <-l.node:
	case <-l.pulse:
	case <-l.budgets:
		d.breathe(ctx)
	case <-l.serving:
		d.breathe(ctx)
	case <-timer.C:
	case <-ctx.Done():
	case <-cancelled:
	}
}

// breathe keeps drives that share a namespace from looking at each of its changes
// all at once: the more of them there are, the longer each waits for the next one.
func (d *drive) breathe(ctx context.Context) {
	wait := min(time.Duration(d.drives.Load())*lookEvery, lookMost) - time.Since(d.looked)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(jitter(wait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case r := <-d.results:
		d.take(r)
	case <-ctx.Done():
	case <-d.t.Cancelled:
	}
}
