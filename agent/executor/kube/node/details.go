package node

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
)

func outcomeRank(outcome string) int {
	return slices.Index([]string{outcomeLeft, outcomeStopping, outcomeUnknown, outcomeForced, outcomeFinished, outcomeGone}, outcome)
}

// podOutcome is what became of one planned pod.
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

	unseen bool // removed without waiting for its kubelet
}

type counts struct {
	Planned   int `json:"planned"`
	Gone      int `json:"gone"`
	Forced    int `json:"forced"`
	Stopping  int `json:"stopping"`
	Left      int `json:"left"`
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
	GPUs    int        `json:"gpus"`
	// GPUHours is what the drain has taken out of service so far: the node's GPUs
	// times the hours from its cordon to its end.
	GPUHours float64 `json:"gpu_hours"`

	known bool // that these are all pods that were planned
}

// details sums up what is known: from this lease's memory, from the record on the
// node, and from what is on it now.
func (e *drainer) details(s *session, rec *record, r *reading, a *protocol.Assignment) *details {
	d := &details{}
	var plan map[types.UID]*planned
	if s != nil {
		s.mu.Lock()
		plan = s.plan
		for _, st := range s.stages {
			d.Stages = append(d.Stages, stageTime{st.name, st.began.UTC(), st.took.Milliseconds()})
		}
		if rec == nil {
			rec = s.record
		}
		s.mu.Unlock()
	}
	if r == nil { // the node is gone: what this lease saw is all there is
		for _, p := range plan {
			if p.finished {
				continue
			}
			o := podOutcome{Pod: p.name, UID: string(p.uid), Outcome: outcomeUnknown, Forced: p.forced != "" && p.isGone, Detail: p.forced, Evicted: moment(p.evicted), Gone: moment(p.gone)}
			d.Counts.Planned++
			switch {
			case o.Forced:
				o.Outcome = outcomeForced
				d.Counts.Forced++
				d.Counts.Gone++
			case p.isGone:
				o.Outcome = outcomeGone
				d.Counts.Gone++
			}
			d.Pods = append(d.Pods, o)
		}
		slices.SortFunc(d.Pods, byName)
		return d
	}
	on := make(map[types.UID]*corev1.Pod, len(r.pods))
	for _, p := range r.pods {
		on[p.UID] = p
	}
	if plan == nil && rec != nil { // an earlier lease did the work
		plan = map[types.UID]*planned{}
		for uid, name := range rec.Pods {
			plan[types.UID(uid)] = &planned{uid: types.UID(uid), name: name}
		}
	}
	d.known = plan != nil
	for uid, p := range plan {
		d.add(s, p, on[uid], r)
	}
	slices.SortFunc(d.Pods, byName)
	d.Counts.CameAfter = e.cameAfter(plan, r, a)
	d.Counts.Stayed = len(on) - d.Counts.Left - d.Counts.Stopping - d.Counts.Finished - d.Counts.CameAfter
	d.GPUs = e.gpus(r.node)
	if rec != nil {
		end := r.at.UTC()
		if s != nil && rec.Began.Before(s.began.Add(-time.Second)) {
			before := stageTime{earlierLeases, rec.Began, s.began.Sub(rec.Began).Milliseconds()}
			d.Stages = append([]stageTime{before}, d.Stages...)
		}
		d.Began, d.Ended = &rec.Began, &end
		if !rec.Planned.IsZero() {
			d.Planned = &rec.Planned
			d.GPUHours = math.Round(float64(d.GPUs)*end.Sub(rec.Planned).Hours()*1e6) / 1e6
		}
	}
	return d
}

// cameAfter counts the pods that a drain of everything would be about and that are
// not in the plan.
func (e *drainer) cameAfter(plan map[types.UID]*planned, r *reading, a *protocol.Assignment) (n int) {
	p, err := readPayload(a)
	if err != nil || plan == nil || p.Device != "" {
		return 0
	}
	for _, v := range p.judge(r.pods, nil) {
		if plan[v.pod.UID] == nil && v.kind != finished && toleratesCordon(v.pod) {
			n++
		}
	}
	return n
}

func (d *details) add(s *session, p *planned, now *corev1.Pod, r *reading) {
	o := podOutcome{Pod: p.name, UID: string(p.uid), Outcome: outcomeGone, Detail: p.forced, Dangling: p.dangling}
	o.Evicted, o.Gone, o.Served = moment(p.evicted), moment(p.gone), moment(p.served)
	// A pod that was told to go past a rule and is still there was not removed.
	o.Forced = p.forced != "" && now == nil
	o.unseen = o.Forced && p.stage == withoutGrace
	over := now != nil && hasFinished(now) || now == nil && p.finished
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
		o.Outcome = outcomeLeft
		if p.refusal != nil {
			o.Detail = p.refusal.why
		}
	}
	switch {
	case over:
		if now != nil {
			d.Counts.Finished++
		}
	case o.Outcome == outcomeStopping:
		d.Counts.Stopping++
	case o.Outcome == outcomeLeft:
		d.Counts.Left++
	default:
		d.Counts.Gone++
	}
	d.Pods = append(d.Pods, o)
}

func byName(a, b podOutcome) int { return strings.Compare(a.Pod+a.UID, b.Pod+b.UID) }

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
