package node

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// What became of a planned pod.
const (
	outcomeGone     = "gone"
	outcomeForced   = "gone_forced" // removed past a rule
	outcomeStopping = "stopping"
	outcomeLeft     = "left"
	outcomeFinished = "finished" // had run to its end and is still there
	outcomeUnknown  = "unknown"  // its node is gone, and nobody saw it go
	// outcomeCame is of a pod that tolerates the cordon and came after the plan: it is
	// no planned one, and was left alone.
	outcomeCame = "came_after"
)

func outcomeRank(outcome string) int {
	return slices.Index([]string{outcomeLeft, outcomeStopping, outcomeUnknown, outcomeForced, outcomeFinished, outcomeCame, outcomeGone}, outcome)
}

// podOutcome is what became of one planned pod, or of one that came late.
type podOutcome struct {
	Pod     string     `json:"pod"`
	UID     string     `json:"uid"`
	Outcome string     `json:"outcome"`
	Evicted *time.Time `json:"evicted_at,omitempty"`
	Gone    *time.Time `json:"gone_at,omitempty"`
	Forced  bool       `json:"forced,omitempty"`
	// Served is when the pod was last seen as an endpoint of a service that serves.
	Served *time.Time `json:"served_until,omitempty"`
	// Dangling is a service that still names the pod as an endpoint.
	Dangling string `json:"dangling_endpoint,omitempty"`
	Detail   string `json:"detail,omitempty"`

	unseen  bool // removed without waiting for its kubelet
	unasked bool // the drain is not known to have evicted it
}

type counts struct {
	Planned  int `json:"planned"`
	Gone     int `json:"gone"`
	Forced   int `json:"forced"`
	Stopping int `json:"stopping"`
	Left     int `json:"left"`
	// Others are those that are gone or stopping and that somebody else deleted.
	Others    int `json:"deleted_by_others"`
	Finished  int `json:"finished"`
	CameAfter int `json:"came_after"`
	// Stayed are the pods on the node at the end that the drain is not about: of
	// DaemonSets, static ones and those that were not selected.
	Stayed int `json:"stayed"`
}

// earlierLeases is the stage that sums up what came before the lease that ended the
// drain: from the run's preflight on. Nobody kept the times of its steps.
const earlierLeases = "earlier_leases"

// stageTime is how long a step took under the lease that ended the drain.
type stageTime struct {
	Step  string    `json:"step"`
	Began time.Time `json:"began_at"`
	MS    int64     `json:"ms"`
}

// details is the drain's result.
type details struct {
	Pods    []podOutcome `json:"pods,omitempty"`
	Omitted int          `json:"pods_omitted,omitempty"`
	Counts  counts       `json:"counts"`
	Stages  []stageTime  `json:"stages,omitempty"`
	// Began and Planned (the cordon) are the run's, whichever lease was there.
	Began   *time.Time `json:"began_at,omitempty"`
	Planned *time.Time `json:"cordoned_at,omitempty"`
	Ended   *time.Time `json:"ended_at,omitempty"`
	// GPUs are those that the drain took out of service, as the node had them when it
	// was cordoned: 0 where it never was. Absent: nobody knows.
	GPUs *int `json:"gpus,omitempty"`
	// GPUHours is what the drain has taken out of service so far: those GPUs times the
	// hours from the node's cordon to the drain's end, or until the node was gone.
	// Absent: nobody knows.
	GPUHours *float64 `json:"gpu_hours,omitempty"`

	known bool // that these are all pods that were planned
}

// details sums up what is known: from this lease's memory, from the record on the
// node, from what is on it now, and of a node that is gone (r is nil) from the
// journal.
func (e *drainer) details(s *session, rec *record, r *reading, a *protocol.Assignment) *details {
	d := &details{}
	var plan, late map[types.UID]*planned
	var goneAt, began time.Time
	if s != nil {
		s.mu.Lock()
		plan, late, goneAt, began = s.plan, s.late, s.goneAt, s.began
		for _, st := range s.stages {
			d.Stages = append(d.Stages, stageTime{st.name, st.began.UTC(), st.took.Milliseconds()})
		}
		if rec == nil {
			rec = s.record
		}
		s.mu.Unlock()
	}
	cordon := executor.StepNamed(a, "cordon")
	if !rec.cordoned() && cordon.Phase == operation.StepSucceeded {
		rec = readAccount(cordon.Detail)
	}
	touched := plan != nil || rec.cordoned()
	switch cordon.Phase {
	case operation.StepPending, operation.StepFailed, operation.StepSkipped:
		d.known = !touched // nothing was begun
	}
	p, err := readPayload(a)
	if err != nil { // then there is no plan
		p.GracePeriodSeconds = -1
	}
	if r == nil {
		d.account(rec, e.c.Now(), goneAt)
		for _, x := range plan {
			d.lost(x, rec.abrupt(p, x.uid))
		}
		for _, x := range late {
			d.lost(x, false)
		}
		slices.SortFunc(d.Pods, inOrder)
		return d
	}
	on := make(map[types.UID]*corev1.Pod, len(r.pods))
	for _, pod := range r.pods {
		on[pod.UID] = pod
	}
	if plan == nil && rec.cordoned() && rec.Pods != nil { // an earlier lease did the work
		plan = rec.plan()
	}
	d.known = d.known || plan != nil
	for uid, x := range plan {
		d.add(x, on[uid], r, rec.abrupt(p, uid))
	}
	for uid, x := range late {
		if plan[uid] == nil {
			d.add(x, on[uid], r, false)
		}
	}
	if plan != nil && err == nil && p.Device == "" {
		d.strays(p, plan, late, r, a)
	}
	slices.SortFunc(d.Pods, inOrder)
	d.Counts.Stayed = len(on) - d.Counts.Left - d.Counts.Stopping - d.Counts.Finished - d.Counts.CameAfter
	if rec.cordoned() && rec.GPUs == nil {
		gpus, known := e.gpus(r.node), *rec
		known.GPUs = &gpus
		rec = &known
	}
	d.account(rec, r.at, r.at)
	if s != nil && rec != nil && !rec.Began.IsZero() && rec.Began.Before(began.Add(-time.Second)) {
		before := stageTime{earlierLeases, rec.Began, began.Sub(rec.Began).Milliseconds()}
		d.Stages = append([]stageTime{before}, d.Stages...)
	}
	return d
}

// account says when the drain began and ended, and what it took out of service until
// when; zero: nobody knows.
func (d *details) account(rec *record, ended, until time.Time) {
	if d.known && !rec.cordoned() { // it never came to the cordon
		d.GPUs, d.GPUHours = new(int), new(float64)
	}
	if rec == nil {
		return
	}
	d.Began, d.Planned, d.Ended = moment(rec.Began), moment(rec.Planned), moment(ended)
	if !rec.cordoned() || rec.GPUs == nil {
		return
	}
	d.GPUs = rec.GPUs
	if !until.IsZero() {
		hours := max(until.Sub(rec.Planned).Hours(), 0)
		d.GPUHours = ptr.To(math.Round(float64(*rec.GPUs)*hours*1e6) / 1e6)
	}
}

// strays adds the pods that a drain of everything would be about and that nobody
// planned: those that tolerate the cordon were left alone; any other on a node that is
// still cordoned came too late for a drain that had to end.
func (d *details) strays(p payload, plan, late map[types.UID]*planned, r *reading, a *protocol.Assignment) {
	for _, v := range p.judge(r.pods, nil) {
		switch x := (&planned{uid: v.pod.UID, name: key(v.pod), pod: v.pod}); {
		case plan[x.uid] != nil || late[x.uid] != nil || v.kind == finished:
		case toleratesCordon(v.pod):
			d.Counts.CameAfter++
			d.Pods = append(d.Pods, podOutcome{Pod: x.name, UID: string(x.uid), Outcome: outcomeCame, Detail: "it tolerates the cordon and came after the plan: it was left alone"})
		case r.node.Spec.Unschedulable && !executor.CameThrough(a):
			x.held = v.late()
			d.add(x, v.pod, r, false)
		}
	}
}

// told is the pod's outcome as far as it does not depend on where the pod is.
func (p *planned) told() podOutcome {
	evicted := p.evicted
	if p.deletedBy() != "" { // that is when somebody else told it to go
		evicted = time.Time{}
	}
	if !p.gone.IsZero() && evicted.After(p.gone) { // seen to go before the answer was there, or by another clock
		evicted = p.gone
	}
	return podOutcome{Pod: p.name, UID: string(p.uid), Outcome: outcomeGone, Detail: p.forced, Dangling: p.dangling,
		Evicted: moment(evicted), Gone: moment(p.gone), Served: moment(p.served)}
}

// deletedBy words who told the pod to go, of one that is gone or stopping; empty: the
// drain did, or may have, by a call whose answer was lost.
func (p *planned) deletedBy() string {
	switch {
	case p.taken || p.unsure:
		return ""
	case p.earlier:
		return "whether the drain evicted it is not known: an earlier lease planned it"
	case p.wasForced() != "":
		return "somebody else had told it to stop before"
	}
	return "deleted by somebody else"
}

// bookDeleted books who told a pod to go that is gone or stopping.
func (d *details) bookDeleted(o *podOutcome, p *planned) {
	by := p.deletedBy()
	if by == "" {
		return
	}
	o.unasked = true
	if o.Detail != "" {
		by = o.Detail + "; " + by
	}
	o.Detail = by
	if !p.earlier {
		d.Counts.Others++
	}
}

// unseen tells whether the pod, which is gone, went without its kubelet's word.
// abrupt: the drain asks for that.
func (p *planned) unseen(abrupt bool) bool {
	return p.noGrace && (p.taken || p.wasForced() != "") || p.forced != "" && p.stage == withoutGrace || p.pod == nil && abrupt
}

// lost books a pod whose node is gone: what this lease saw is all there is.
func (d *details) lost(p *planned, abrupt bool) {
	if p.finished {
		return
	}
	o := p.told()
	o.Outcome = outcomeUnknown
	d.Counts.Planned++
	switch forced := p.wasForced(); {
	case p.isGone:
		o.Outcome, o.Detail = outcomeGone, forced
		if forced != "" {
			o.Outcome, o.Forced = outcomeForced, true
			d.Counts.Forced++
		}
		d.Counts.Gone++
		d.bookDeleted(&o, p)
	default:
		o.Detail, o.unasked = "its node is gone, and nobody saw it stop", p.deletedBy() != ""
	}
	o.unseen = p.isGone && p.unseen(abrupt)
	d.Pods = append(d.Pods, o)
}

func (d *details) add(p *planned, now *corev1.Pod, r *reading, abrupt bool) {
	o := p.told()
	// A pod that was told to go past a rule and is still there was not removed.
	if forced := p.wasForced(); now == nil && forced != "" {
		o.Forced, o.Detail = true, forced
	}
	over := now != nil && hasFinished(now) || now == nil && p.finished
	o.unseen = now == nil && !over && p.unseen(abrupt)
	if !over {
		d.Counts.Planned++
		if o.Forced {
			d.Counts.Forced++
		}
	}
	switch {
	case now == nil && o.Forced:
		o.Outcome = outcomeForced
	case now == nil:
	case over:
		o.Outcome = outcomeFinished
	case now.DeletionTimestamp != nil:
		o.Outcome = outcomeStopping
		_, _, o.Detail = staying(&session{node: r.node}, &planned{pod: now}, r.at)
		if p.stage > 0 {
			o.Detail += ", though it was " + p.forced
		}
	default:
		o.Outcome, o.Detail = outcomeLeft, p.held
		if o.Detail == "" && p.refusal != nil {
			o.Detail = p.refusal.why
		}
		if o.Detail == "" && p.accepted {
			o.Detail = "its eviction was accepted, and it was not seen to be told to stop"
		}
		o.Detail = strings.TrimPrefix(strings.TrimPrefix(o.Detail, "pod "+p.name+": "), "pod "+p.name+" ")
	}
	switch {
	case over:
		if now != nil {
			d.Counts.Finished++
		}
	case o.Outcome == outcomeStopping:
		d.Counts.Stopping++
		d.bookDeleted(&o, p)
	case o.Outcome == outcomeLeft:
		d.Counts.Left++
	default:
		d.Counts.Gone++
		d.bookDeleted(&o, p)
	}
	d.Pods = append(d.Pods, o)
}

// explainFor bounds how long an outcome waits for the reasons: after a deadline there
// is little time to tell anything.
const explainFor = time.Second

// explain says of the pods that are left why they are, as far as that is not known:
// by the rules, as they are now.
func (e *drainer) explain(ctx context.Context, d *details, r *reading, a *protocol.Assignment) {
	open := func(o podOutcome) bool { return o.Outcome == outcomeLeft && o.Detail == "" }
	if !slices.ContainsFunc(d.Pods, open) {
		return
	}
	within := explainFor
	if end, bounded := ctx.Deadline(); bounded {
		within = min(within, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	why := map[string]string{}
	sv := &survey{pods: r.pods}
	p, err := readPayload(a)
	if err == nil {
		err = e.judge(ctx, p, sv)
	}
	for _, v := range sv.verdicts {
		_, said := v.refuses()
		if h := rule(sv.budgets, v.pod); said == "" && h != nil {
			said = h.why
		}
		why[string(v.pod.UID)] = strings.TrimPrefix(said, "pod "+key(v.pod)+" ")
	}
	for i, o := range d.Pods {
		if !open(o) {
			continue
		}
		d.Pods[i].Detail = cmp.Or(why[o.UID], "no eviction of it was taken before the drain ended")
		if err != nil {
			d.Pods[i].Detail += ", and what holds it cannot be told: " + err.Error()
		}
	}
}

func inOrder(a, b podOutcome) int { return strings.Compare(a.Pod+a.UID, b.Pod+b.UID) }

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
