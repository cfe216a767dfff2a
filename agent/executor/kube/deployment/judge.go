package deployment

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// maxNamed bounds how many pods one text names.
const maxNamed = 5

// scene is what is known of a rollout at one moment.
type scene struct {
	*rollout
	pods   []*corev1.Pod
	events []cause // why the controller could not make pods
}

// verdict is how a rollout stands.
type verdict struct {
	rolled     bool // the new replicas are all there and ready
	code, why  string
	causes     []cause
	old        []*corev1.Pod // pods of before that are still there
	progressed time.Time     // when it last went on
	wake       time.Time     // when time alone changes the verdict; zero: never
}

// settled tells whether the controller has nothing left to do.
func (r *rollout) settled() bool {
	told := r.observed >= r.generation || r.kind == leaderWorkerSets && r.observed == 0 || r.kind == dynamoGraphs && r.observed == 0
	return told && !r.moving && !r.restart.rolling && r.updated >= r.want && r.ready >= r.desired && r.available >= r.desired &&
		(r.want < r.desired || r.total <= r.updated)
}

// owned tells whether the pod is the object's own and not one of another that
// the selector happens to match.
func (r *rollout) owned(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	switch r.kind {
	case deployments:
		return owner != nil && owner.Kind == "ReplicaSet" && owner.Name == r.object.GetName()+"-"+p.Labels["pod-template-hash"]
	case statefulSets:
		return owner != nil && owner.UID == r.object.GetUID()
	}
	return true
}

// renewed tells whether the pod was made from the restarted template. A
// DynamoGraphDeployment's pods carry no mark: they are told by their age.
func (r *rollout) renewed(p *corev1.Pod, by cluster.Mark) bool {
	if r.kind == dynamoGraphs {
		return r.record != nil && !p.CreationTimestamp.Time.Before(r.record.At)
	}
	on, marked := cluster.ReadMark(p.Annotations)
	return marked && on.SameRun(by)
}

// judge tells how the rollout that by began stands. seen keeps since when a cause
// is known, from one judgement to the next.
func (s scene) judge(by cluster.Mark, b Bounds, undo bool, seen map[string]time.Time, now time.Time) verdict {
	var v verdict
	var list []cause
	renewed := 0
	if s.record != nil {
		v.progressed = s.record.At
	}
	later := func(t time.Time) {
		if t.After(v.progressed) {
			v.progressed = t
		}
	}
	for _, p := range s.pods {
		if !s.owned(p) || p.DeletionTimestamp == nil && (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded) {
			continue
		}
		if !s.renewed(p, by) {
			if s.kind != dynamoGraphs { // told by their age, which clocks tell differently: there the operator's word counts
				v.old = append(v.old, p)
			}
			continue
		}
		later(p.CreationTimestamp.Time)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				later(c.LastTransitionTime.Time)
				renewed++
			}
		}
		list = append(list, podCauses(p)...)
	}
	slices.SortFunc(v.old, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	if s.paused {
		list = append(list, pausedCause(s.rollout))
	}
	list = append(append(list, s.refused...), s.events...)
	v.causes = sum(list)
	for i, c := range v.causes {
		// A crash loop's container runs now and then: what was seen stays seen until
		// the rollout goes on.
		if at, known := seen[c.key()]; !known || at.Before(v.progressed) {
			seen[c.key()] = now
		}
		if c.since.IsZero() {
			v.causes[i].since = seen[c.key()]
		}
	}
	switch {
	case s.kind == dynamoGraphs:
		v.judgeGraph(s.rollout)
	default:
		v.rolled = s.settled() && renewed >= s.want*s.podsEach
	}
	if !v.rolled && v.code == "" {
		v.fail(s, b, undo, seen, now)
	}
	return v
}

// judgeGraph goes by the operator's own word.
func (v *verdict) judgeGraph(r *rollout) {
	if r.record == nil || r.restart.observed != r.record.ID {
		return // not seen by the operator yet
	}
	switch r.restart.phase {
	case "Completed":
		v.rolled = r.settled()
	case "Failed":
		v.code, v.why = "restart_failed", fmt.Sprintf("%s: its operator says that the restart failed (%s)", r.name(), r)
	case "Superseded":
		v.code, v.why = "superseded", fmt.Sprintf("%s: its operator dropped the restart for a change that it rolls out", r.name())
	}
}

// fail tells whether the rollout has failed, and when it will have.
func (v *verdict) fail(s scene, b Bounds, undo bool, seen map[string]time.Time, now time.Time) {
	wake := func(t time.Time) {
		if v.wake.IsZero() || t.Before(v.wake) {
			v.wake = t
		}
	}
	stuck := ""
	switch {
	case s.exceeded != "":
		stuck = fmt.Sprintf("%s: no replica got ready within its progress deadline (%s)", s.name(), s.rollout)
	case !s.kind.ownDeadline:
		most := s.bounded(b.Stall)
		if end := v.progressed.Add(most); now.Before(end) {
			wake(end)
		} else {
			stuck = fmt.Sprintf("%s: no new pod was made or got ready for %s (%s)", s.name(), most, s.rollout)
		}
	}
	if stuck != "" {
		v.code, v.why = codeDeadline, stuck
		if len(v.causes) > 0 {
			first := v.causes[0]
			v.code, v.why = first.code, fmt.Sprintf("%s: %s; no progress for its whole deadline (%s)", s.name(), first.detail, s.rollout)
		}
		return
	}
	for _, c := range v.causes {
		if !undo || !c.hopeless() {
			continue
		}
		if end := seen[c.key()].Add(b.Patience); now.Before(end) {
			wake(end)
		} else if v.code == "" {
			v.code, v.why = c.code, fmt.Sprintf("%s: %s (%s)", s.name(), c.detail, s.rollout)
		}
	}
}

// blockers words what holds the rollout up now, the worst first.
func (v verdict) blockers() []protocol.Blocker {
	var list []protocol.Blocker
	for _, c := range v.causes {
		b := protocol.Blocker{Code: c.code, Resource: c.resource, Rule: c.rule, Detail: c.detail}
		if !c.since.IsZero() {
			since := c.since.UTC()
			b.Since = &since
		}
		list = append(list, b)
	}
	return list
}

// stopping words the old pods that have not gone.
func (v verdict) stopping(now time.Time) []protocol.Blocker {
	var list []protocol.Blocker
	for _, p := range v.old[:min(len(v.old), maxNamed)] {
		b := protocol.Blocker{Code: codeTerminating, Resource: "pod/" + p.Namespace + "/" + p.Name, Rule: "grace period",
			Detail: fmt.Sprintf("old pod %s on node %s is not asked to stop yet", p.Name, p.Spec.NodeName)}
		if p.DeletionTimestamp != nil {
			left := p.DeletionTimestamp.Sub(now).Round(time.Second)
			b.Detail = fmt.Sprintf("old pod %s on node %s is stopping, %s of its grace period left", p.Name, p.Spec.NodeName, max(left, 0))
			if len(p.Finalizers) > 0 {
				b.Code, b.Rule = "finalizer", "finalizer "+p.Finalizers[0]
				b.Detail = fmt.Sprintf("old pod %s is held by finalizer %s", p.Name, p.Finalizers[0])
			}
		}
		list = append(list, b)
	}
	return list
}
