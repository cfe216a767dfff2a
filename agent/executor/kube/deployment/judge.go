package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// maxNamed bounds how many pods one text names.
const maxNamed = 5

// scene is what is known of a rollout at one moment.
type scene struct {
	*rollout
	pods   []*corev1.Pod
	sets   map[types.UID]types.UID // of a Deployment's ReplicaSets and of others that look alike: whose each is
	events []cause                 // why the controller could not make pods
	words  map[types.UID]words     // of pods that are not started
}

// verdict is how a rollout stands.
type verdict struct {
	rolled     bool // the new replicas are all there and ready
	code, why  string
	causes     []cause
	unready    []cause       // what is not started or not ready, and need not be yet
	renewed    int           // ready pods of the restarted template
	old        []*corev1.Pod // pods of before that are still there, in the order of their replicas
	leaving    []*corev1.Pod // those of old that no partition keeps
	stopping   []*corev1.Pod // that the next one is made after
	progressed time.Time     // when it last went on
	wake       time.Time     // when time alone changes the verdict; zero: never
}

func (v *verdict) wakeAt(t time.Time) {
	if !t.IsZero() && (v.wake.IsZero() || t.Before(v.wake)) {
		v.wake = t
	}
}

// settled tells whether the controller has nothing left to do.
func (r *rollout) settled() bool {
	told := r.observed >= r.generation || r.kind == leaderWorkerSets && r.observed == 0 || r.kind == dynamoGraphs && r.observed == 0
	return told && !r.moving && !r.restart.rolling && r.updated >= r.want && r.ready >= r.desired && r.available >= r.desired &&
		(r.want < r.desired || r.total <= r.updated)
}

// owned tells whether the pod is the object's own and not one of another that
// the selector happens to match.
func (s scene) owned(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	switch s.kind {
	case deployments:
		if owner == nil {
			return false
		}
		if of, known := s.sets[owner.UID]; known {
			return of == s.object.GetUID()
		}
		// Its ReplicaSet is gone, as one is that no history keeps: the pods stop.
		return owner.Kind == "ReplicaSet" && owner.Name == setName(s.object.GetName(), p.Labels[appsv1.DefaultDeploymentUniqueLabelKey])
	case statefulSets:
		return owner != nil && owner.UID == s.object.GetUID()
	}
	return true
}

// setName is how the Deployment controller names the ReplicaSet of a template's hash.
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/controller/deployment/sync.go#L559
func setName(deployment, hash string) string {
	return deployment[:min(len(deployment), max(0, validation.DNS1123SubdomainMaxLength-1-len(hash)))] + "-" + hash
}

// ended: it was given up, and another is in its place.
func ended(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded)
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

// inPlace: a pod is made only when the one whose place it takes has gone.
func (r *rollout) inPlace() bool {
	return r.kind == statefulSets || r.kind == leaderWorkerSets || r.strategy == "Recreate"
}

// sort reads the pods: which are new, which of before, and what they say.
func (v *verdict) sort(s scene, by cluster.Mark, b Bounds, seen map[string]time.Time, now time.Time) []cause {
	var list []cause
	fair := s.fair(by, b)
	say := func(p *corev1.Pod, old bool) {
		for _, c := range v.hear(s, p, b, fair, seen, now) {
			c.old = old
			list = append(list, c)
		}
	}
	later := func(t time.Time) {
		if t.After(v.progressed) {
			v.progressed = t
		}
	}
	for _, p := range slices.SortedFunc(slices.Values(s.pods), byReplica) { // so that the same one is named each time
		if !s.owned(p) || ended(p) {
			continue
		}
		if p.DeletionTimestamp != nil && s.inPlace() {
			v.stopping = append(v.stopping, p)
			c, is, wake := stopCause(p, now)
			if is {
				list = append(list, c)
			}
			v.wakeAt(wake)
		}
		if !s.renewed(p, by) {
			if s.kind == dynamoGraphs { // told by their age, which clocks tell differently: there the operator's word counts
				continue
			}
			v.old = append(v.old, p)
			if s.kind == statefulSets && s.ordered { // the first that is not ready holds all the others up
				say(p, true)
			}
			continue
		}
		later(p.CreationTimestamp.Time)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				later(c.LastTransitionTime.Time)
				if p.DeletionTimestamp == nil {
					v.renewed++
				}
			}
		}
		say(p, false)
	}
	keeps := s.kept() * s.podsEach
	for _, p := range v.old {
		if p.DeletionTimestamp == nil && keeps > 0 { // of the lowest ordinals
			keeps--
			continue
		}
		v.leaving = append(v.leaving, p)
	}
	return list
}

// hear is what keeps a pod from getting ready, as far as that is due.
func (v *verdict) hear(s scene, p *corev1.Pod, b Bounds, fair time.Duration, seen map[string]time.Time, now time.Time) []cause {
	if says := podCauses(p); len(says) > 0 {
		return says
	}
	list := unready(p, fair, seen, now)
	if len(list) == 0 {
		list = s.unstarted(p, b, seen, now)
	}
	return v.late(list, now)
}

// late are those that are due; the others are kept for an end that nothing else explains.
func (v *verdict) late(unready []cause, now time.Time) []cause {
	var list []cause
	for _, c := range unready {
		if c.ending || now.Before(c.due) {
			v.unready = append(v.unready, c)
			v.wakeAt(c.due) // none: never
			continue
		}
		list = append(list, c)
	}
	return list
}

// byReplica orders pods by their ordinals, where they have any.
func byReplica(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(ordinal(a), ordinal(b)), strings.Compare(a.Name, b.Name))
}

// ordinal is the label of a StatefulSet's or LeaderWorkerSet's pod, or the end of its
// name, which is all that an older controller writes.
// https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-index-label
func ordinal(p *corev1.Pod) int {
	for _, text := range []string{p.Labels[labelGroupIndex], p.Labels[appsv1.PodIndexLabel], p.Name[strings.LastIndexByte(p.Name, '-')+1:]} {
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	}
	return 0
}

// judge tells how the rollout that by began stands. seen keeps since when a cause
// is known, from one judgement to the next.
func (s scene) judge(by cluster.Mark, b Bounds, undo bool, seen map[string]time.Time, now time.Time) verdict {
	var v verdict
	if s.record != nil {
		v.progressed = s.record.At
	}
	list := v.sort(s, by, b, seen, now)
	list = append(append(append(list, s.holds()...), s.refused...), s.events...)
	v.causes, v.unready = sum(list), sum(v.unready)
	switch {
	case s.object.GetDeletionTimestamp() != nil:
		v.code, v.why = "deployment_gone", fmt.Sprintf("%s is being deleted: its controller rolls nothing (%s)", s.name(), s.rollout)
	case s.kind == dynamoGraphs:
		v.judgeGraph(s.rollout)
	default:
		v.rolled = s.settled() && s.updated >= s.target() && v.renewed >= s.target()*s.podsEach
	}
	v.rolled = v.rolled && !s.emptied()
	if !v.rolled {
		c, is, wake := s.silence(&v, b, seen, now)
		if is {
			v.causes = sum(append(v.causes, c))
		}
		v.wakeAt(wake)
	}
	for key := range seen { // what somebody wanted and wants no more
		if slices.Contains(heldCodes, key[:strings.IndexByte(key, 0)]) && !slices.ContainsFunc(v.causes, func(c cause) bool { return c.key() == key }) {
			delete(seen, key)
		}
	}
	v.date(seen, now)
	for i, c := range v.causes {
		if slices.Contains(standstills, c.code) {
			v.causes[i].next = s.prospect(b, undo)
		}
	}
	if !v.rolled && v.code == "" {
		v.fail(s, b, undo, seen, now)
	}
	return v
}

// date keeps since when each cause is known.
func (v *verdict) date(seen map[string]time.Time, now time.Time) {
	for i, c := range v.causes {
		// A crash loop's container runs now and then: what was seen stays seen until
		// the rollout goes on.
		if at, known := seen[c.key()]; !known || !c.held && at.Before(v.progressed) {
			seen[c.key()] = now
		}
		if c.since.IsZero() {
			v.causes[i].since = seen[c.key()]
		}
	}
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
	stuck := ""
	// A Deployment's controller judges its rollout by what is wanted now: of one that
	// was scaled to nothing it says that it came through.
	if most := s.failsAfter(b); s.exceeded != "" {
		stuck = fmt.Sprintf("%s: no replica got ready within its progress deadline (%s)", s.name(), s.rollout)
	} else if most > 0 && (!s.kind.ownDeadline || s.emptied()) {
		from := v.progressed
		for _, c := range v.causes { // what somebody holds begins to be late when they took hold of it
			if at := seen[c.key()]; c.held && at.After(from) {
				from = at
			}
		}
		if end := from.Add(most); now.Before(end) {
			v.wakeAt(end)
		} else {
			stuck = fmt.Sprintf("%s: no new pod was made or got ready for %s (%s)", s.name(), most, s.rollout)
		}
	}
	if stuck != "" {
		v.code, v.why = codeDeadline, stuck
		if first, is := v.first(); is {
			v.code, v.why = first.code, fmt.Sprintf("%s: %s; no progress for its whole deadline (%s)", s.name(), first.detail, s.rollout)
		}
		return
	}
	for _, c := range v.causes {
		if !undo || !c.hopeless() {
			continue
		}
		if end := seen[c.key()].Add(b.Patience); now.Before(end) {
			v.wakeAt(end)
		} else if v.code == "" {
			v.code, v.why = c.code, fmt.Sprintf("%s: %s (%s)", s.name(), c.detail, s.rollout)
		}
	}
}

// blockers words what holds the rollout up now, the worst first; where nothing does,
// the pods whose end the next ones are made after.
func (v verdict) blockers(now time.Time) []protocol.Blocker {
	if len(v.causes) == 0 {
		return stopping(v.stopping, now)
	}
	var list []protocol.Blocker
	for _, c := range v.causes {
		if c.next != "" && v.code == "" {
			c.detail += "; " + c.next
		}
		list = append(list, blocker(c))
	}
	return list
}

func blocker(c cause) protocol.Blocker {
	b := protocol.Blocker{Code: c.code, Resource: c.resource, Rule: c.rule, Detail: c.detail}
	if !c.since.IsZero() {
		since := c.since.UTC()
		b.Since = &since
	}
	return b
}

// stopping words pods that have not gone, those first that will not by themselves.
func stopping(pods []*corev1.Pod, now time.Time) []protocol.Blocker {
	var stuck, list []protocol.Blocker
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			list = append(list, protocol.Blocker{Code: codeTerminating, Resource: "pod/" + p.Namespace + "/" + p.Name, Rule: "grace period",
				Detail: fmt.Sprintf("old pod %s on node %s is not asked to stop yet", p.Name, p.Spec.NodeName)})
			continue
		}
		c, late, _ := stopCause(p, now)
		if late || c.code == codeFinalizer {
			stuck = append(stuck, blocker(c))
			continue
		}
		c.code, c.detail = codeTerminating, fmt.Sprintf("pod %s on node %s is stopping, %s of its grace period left", p.Name, p.Spec.NodeName, max(p.DeletionTimestamp.Sub(now).Round(time.Second), 0))
		list = append(list, blocker(c))
	}
	slices.SortStableFunc(stuck, func(a, b protocol.Blocker) int { return strings.Compare(a.Code, b.Code) }) // a finalizer before a kubelet
	list = append(stuck, list...)
	return list[:min(len(list), maxNamed)]
}
