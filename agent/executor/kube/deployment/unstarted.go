package deployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// reread is how long what a node and a pod's events say is taken to be so, while a pod of
// that node is not started.
const reread = 30 * time.Second

// seenUngated is since when a pod is seen without the gates that it was made with.
const seenUngated = "\x00ungated\x00"

// words are what the cluster says of a pod that is not started, and when it was asked.
type words struct {
	text string
	at   time.Time
}

// unstarted reads a pod that no scheduler has said anything of, or none of whose
// containers was begun: nothing happens to it, and so nothing tells of it but the time.
func (s scene) unstarted(p *corev1.Pod, b Bounds, seen map[string]time.Time, now time.Time) []cause {
	if p.DeletionTimestamp != nil || ready(p) {
		return nil
	}
	quiet, start := cmp.Or(b.Silence, DefaultBounds.Silence), cmp.Or(b.Start, DefaultBounds.Start)
	c := cause{resource: "pod/" + p.Namespace + "/" + p.Name, uid: p.UID, since: p.CreationTimestamp.Time}
	placed := condition(p, corev1.PodScheduled)
	if placed != nil {
		c.since = latest(c.since, placed.LastTransitionTime.Time)
	}
	switch {
	case p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) > 0:
		seen[seenUngated+string(p.UID)] = time.Time{}
		c.code, c.rule, c.due = codeGated, "scheduling gate "+gates(p), c.since.Add(quiet)
		c.detail = fmt.Sprintf("pod %s is held by its scheduling gate %s since %s: no scheduler looks at it until that is taken away", p.Name, gates(p), clock(c.since))
		c.rest = "the cluster rolls on when that is taken away"
	case p.Spec.NodeName == "" && (placed == nil || placed.Reason == corev1.PodReasonSchedulingGated):
		if at, was := seen[seenUngated+string(p.UID)]; was && at.IsZero() {
			seen[seenUngated+string(p.UID)] = now
		}
		c.since = latest(c.since, seen[seenUngated+string(p.UID)])
		name := cmp.Or(p.Spec.SchedulerName, corev1.DefaultSchedulerName)
		c.code, c.rule, c.due = codeNoScheduler, "scheduler "+name, c.since.Add(quiet)
		c.detail = fmt.Sprintf("scheduler %s has said nothing of pod %s since %s: it does not run, or is behind", name, p.Name, clock(c.since))
		c.rest = "the cluster rolls on once that scheduler runs"
	case p.Spec.NodeName == "":
		return nil
	case len(p.Status.ContainerStatuses)+len(p.Status.InitContainerStatuses) == 0:
		c.code, c.rule, c.due = codeNotStarted, "node "+p.Spec.NodeName, c.since.Add(start)
		c.detail = fmt.Sprintf("pod %s was placed on node %s at %s, and its kubelet has begun nothing of it", p.Name, p.Spec.NodeName, clock(c.since))
	default:
		if !s.waits(p, &c, start) {
			return nil
		}
	}
	if text := s.words[p.UID].text; text != "" && c.code == codeNotStarted {
		c.detail += "; " + text
	}
	return []cause{c}
}

// waits reads a pod that its kubelet has begun with, and no container of which runs that
// counts for its readiness. Where its sandbox, network and volumes are there, an image
// may be on its way: that stands in no way, and is only what it ended with.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-conditions
func (s scene) waits(p *corev1.Pod, c *cause, start time.Duration) bool {
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	ran := slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool {
		return s.RestartCount > 0 || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
	})
	c.code = codeNotStarted
	base := condition(p, corev1.PodReadyToStartContainers)
	if base != nil {
		c.since = latest(c.since, base.LastTransitionTime.Time)
	}
	if base != nil && base.Status != corev1.ConditionTrue && !ran {
		c.rule, c.due = "pod sandbox", c.since.Add(2*start)
		c.detail = fmt.Sprintf("pod %s on node %s is without its sandbox, network or volumes since %s: no container can begin", p.Name, p.Spec.NodeName, clock(c.since))
		return true
	}
	for _, s := range all {
		is := ""
		switch w := s.State.Waiting; {
		case s.State.Running != nil && slices.ContainsFunc(p.Spec.InitContainers, func(k corev1.Container) bool { return k.Name == s.Name && k.RestartPolicy == nil }):
			c.since = latest(c.since, s.State.Running.StartedAt.Time)
			is = "runs since " + clock(c.since) + ", and the others begin when it has ended"
		case w != nil && (w.Reason == "ContainerCreating" || w.Reason == "PodInitializing") && s.RestartCount == 0:
			is = "is not started since " + clock(c.since) + ": its image may be on its way"
		default:
			continue
		}
		c.rule, c.ending = "container "+s.Name, true
		c.detail = fmt.Sprintf("container %s of pod %s on node %s %s", s.Name, p.Name, p.Spec.NodeName, is)
		return true
	}
	return false
}

// gates names the scheduling gates of a pod.
func gates(p *corev1.Pod) string {
	var list []string
	for _, g := range p.Spec.SchedulingGates {
		list = append(list, g.Name)
	}
	if len(list) > maxNamed {
		list = append(list[:maxNamed], "...")
	}
	return strings.Join(list, ", ")
}

// weigh is judge with what nodes and events say of pods that are not started.
func (r *roller) weigh(ctx context.Context, s *scene, known map[types.UID]words, judge func() verdict) verdict {
	s.words = known
	v := judge()
	asked := false
	for i, c := range v.causes {
		if c.code != codeNotStarted || i >= maxNamed {
			continue
		}
		if w, is := known[c.uid]; !is || r.Now().Sub(w.at) >= reread {
			j := slices.IndexFunc(s.pods, func(p *corev1.Pod) bool { return p.UID == c.uid })
			known[c.uid], asked = words{r.account(ctx, s.pods[j]), r.Now()}, true
		}
	}
	if asked {
		v = judge()
	}
	for _, c := range v.causes {
		if w, is := known[c.uid]; is && c.code == codeNotStarted {
			v.wakeAt(w.at.Add(reread))
		}
	}
	return v
}

// account is what is known of why a pod is not started: whether its node is ready, and
// the last that its kubelet or a controller of volumes warned of. What the agent's role
// may not read is not said.
func (r *roller) account(ctx context.Context, p *corev1.Pod) string {
	read, cancel := r.Read(ctx)
	defer cancel()
	node, text := p.Spec.NodeName, ""
	n, err := r.Client.CoreV1().Nodes().Get(read, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		text = "node " + node + " is gone"
	case err != nil:
		text = "whether node " + node + " is ready is not known"
	default:
		text = "node " + node + " " + readiness(n)
	}
	list, err := r.Client.CoreV1().Events(p.Namespace).List(read, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(p.UID)).String()})
	if err != nil {
		return text
	}
	var last *corev1.Event
	for i, e := range list.Items {
		if e.InvolvedObject.UID == p.UID && e.Type == corev1.EventTypeWarning && (last == nil || !heard(&e).Before(heard(last))) {
			last = &list.Items[i]
		}
	}
	if last != nil {
		text += fmt.Sprintf("; the last warning of it is %s: %s", bound(last.Reason), bound(last.Message))
	}
	return text
}

// readiness says whether a node is ready.
func readiness(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady:
		case c.Status == corev1.ConditionTrue:
			return "is ready"
		default:
			return fmt.Sprintf("is not ready since %s (%s: %s)", clock(c.LastTransitionTime.Time), cmp.Or(c.Reason, string(c.Status)), bound(c.Message))
		}
	}
	return "does not say whether it is ready"
}

// heard is when an event was last seen.
func heard(e *corev1.Event) time.Time {
	at := latest(e.LastTimestamp.Time, e.EventTime.Time)
	if e.Series != nil {
		at = latest(at, e.Series.LastObservedTime.Time)
	}
	return at
}
