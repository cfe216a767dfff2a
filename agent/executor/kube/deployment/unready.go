package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// What seen keeps of a container with a startup probe, by pod and container: that it was
// seen before that passed, and when it was first seen after. No status tells the latter.
const (
	seenStarting = "\x00starting\x00"
	seenStarted  = "\x00started\x00"
)

// fair is how long a pod whose containers run may take to get ready until that is a
// cause: the bound, or half as long again as ready pods of the object took, so that a
// rollout of slow ones that goes on is told nothing of. It is at most half of what the
// rollout may stand still for.
func (s scene) fair(by cluster.Mark, b Bounds) time.Duration {
	var before, since time.Duration
	for _, p := range s.pods {
		if !s.owned(p) || ended(p) {
			continue
		}
		took, is := startup(p)
		switch {
		case !is:
		case s.renewed(p, by):
			since = max(since, took)
		case before == 0 || took < before: // one that took more may have lost its readiness in between
			before = took
		}
	}
	took := max(before, since)
	most := cmp.Or(s.failsAfter(b), DefaultBounds.Stall) / 2
	return max(cmp.Or(b.Start, DefaultBounds.Start), min(took+took/2, most))
}

// startup is how long a ready pod took to get ready from when its containers ran.
func startup(p *corev1.Pod) (took time.Duration, is bool) {
	c := condition(p, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return 0, false
	}
	var from time.Time
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running == nil {
			return 0, false
		}
		from = latest(from, s.State.Running.StartedAt.Time)
	}
	return max(c.LastTransitionTime.Sub(from), 0), !from.IsZero()
}

// unready reads a pod whose containers run and that is not ready, and nothing else says
// why: what of it is not, since when, and when that becomes a cause (due). A container
// with a startup probe has the time of that besides, and its own from when it passed.
func unready(p *corev1.Pod, fair time.Duration, seen map[string]time.Time, now time.Time) []cause {
	if p.DeletionTimestamp != nil || ready(p) {
		return nil
	}
	var list []cause
	add := func(rule string, since, due time.Time, format string, args ...any) {
		list = append(list, cause{code: codeNotReady, resource: "pod/" + p.Namespace + "/" + p.Name, rule: rule, since: since, due: due, detail: fmt.Sprintf(format, args...)})
	}
	lost := p.CreationTimestamp.Time // when it was ready last
	word := "the pod has no Ready condition"
	if c := condition(p, corev1.PodReady); c != nil {
		lost, word = latest(lost, c.LastTransitionTime.Time), "Ready is "+said(c)
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		c := containerOf(p, s.Name)
		if c == nil || s.Ready || s.State.Running == nil {
			continue
		}
		runs := latest(lost, s.State.Running.StartedAt.Time)
		due, why := starts(p, c, s, runs, fair, seen, now)
		add("container "+s.Name, runs, due, "container %s of pod %s runs and is not ready since %s: %s (%s)", s.Name, p.Name, clock(runs), why, word)
	}
	all := condition(p, corev1.ContainersReady)
	if len(list) > 0 || all == nil || all.Status != corev1.ConditionTrue {
		return list
	}
	lost = latest(lost, all.LastTransitionTime.Time)
	for _, g := range p.Spec.ReadinessGates {
		c, says := condition(p, g.ConditionType), "nobody has set that condition"
		if c != nil && c.Status == corev1.ConditionTrue {
			continue
		}
		if c != nil {
			says = "it is " + said(c)
		}
		add("readiness gate "+string(g.ConditionType), lost, lost.Add(fair), "the containers of pod %s are ready and it is not since %s, by its readiness gate %s: %s", p.Name, clock(lost), g.ConditionType, says)
	}
	if len(list) == 0 {
		add("pod", lost, lost.Add(fair), "the containers of pod %s are ready and it is not since %s: %s", p.Name, clock(lost), word)
	}
	return list
}

// starts tells when a running container should be ready, and what it is not ready by.
func starts(p *corev1.Pod, c *corev1.Container, s corev1.ContainerStatus, runs time.Time, fair time.Duration, seen map[string]time.Time, now time.Time) (due time.Time, why string) {
	why = "it has no readiness probe"
	if r := c.ReadinessProbe; r != nil {
		why = "its readiness probe (" + probeWords(r) + ") does not succeed"
		fair += seconds(r.InitialDelaySeconds)
	}
	if c.StartupProbe == nil {
		return runs.Add(fair), why
	}
	key := string(p.UID) + "/" + s.Name
	if s.Started == nil || !*s.Started {
		seen[seenStarting+key] = now
		u := c.StartupProbe
		return runs.Add(fair + seconds(u.InitialDelaySeconds) + seconds(max(u.PeriodSeconds, u.TimeoutSeconds))*time.Duration(u.FailureThreshold)),
			"its startup probe (" + probeWords(u) + ") has not succeeded yet"
	}
	if _, was := seen[seenStarting+key]; was {
		delete(seen, seenStarting+key)
		seen[seenStarted+key] = now
	}
	return latest(runs, seen[seenStarted+key]).Add(fair), why
}

// containerOf is the container of a status that counts for the pod's readiness; nil: it
// does not, as of an init container that ends before the others start.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
func containerOf(p *corev1.Pod, name string) *corev1.Container {
	for i, c := range p.Spec.InitContainers {
		if c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return &p.Spec.InitContainers[i]
		}
	}
	for i, c := range p.Spec.Containers {
		if c.Name == name {
			return &p.Spec.Containers[i]
		}
	}
	return nil
}

// probeWords says what a probe asks.
func probeWords(p *corev1.Probe) string {
	switch {
	case p.HTTPGet != nil:
		return fmt.Sprintf("HTTP GET :%s%s", p.HTTPGet.Port.String(), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		return "TCP :" + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return fmt.Sprintf("gRPC :%d", p.GRPC.Port)
	}
	return "a command"
}

// said is a condition in words.
func said(c *corev1.PodCondition) string {
	text := string(c.Status)
	if c.Reason != "" {
		text += ", " + c.Reason
	}
	if c.Message != "" {
		text += ": " + bound(c.Message)
	}
	return text
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i, c := range p.Status.Conditions {
		if c.Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// prospect is what becomes of a rollout whose pods do not get ready.
func (s scene) prospect(b Bounds, undo bool) string {
	text := "no deadline of its own ends the rollout"
	if after := s.failsAfter(b); after > 0 {
		text = fmt.Sprintf("after %s without progress the rollout counts as failed", after)
		if undo {
			text += " and is taken back"
		}
	}
	if undo {
		return text + "; without progress it is given up and taken back before the operation's deadline"
	}
	return text + "; at the operation's deadline " + restGoesOn
}

// first is the first cause; where nothing has been one for long enough, what is not ready.
func (v verdict) first() (cause, bool) {
	for _, c := range slices.Concat(v.causes, v.unready) {
		return c, true
	}
	return cause{}, false
}
