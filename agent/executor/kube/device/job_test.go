package device

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

func task(op string, generation int64) *executor.Task {
	return &executor.Task{Assignment: &protocol.Assignment{Operation: op, Run: 1, Generation: generation}, Attempt: 1,
		Remaining: func() time.Duration { return 90 * time.Second }}
}

// TestJobNames: they fit a label, and no two leases, verbs or attempts share one.
func TestJobNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, op := range []string{"op_01hzzzzzzzzzzzzzzzzzzzzzzz", "op_" + strings.Repeat("z", 60), "OP/../x", "op_a"} {
		for _, generation := range []int64{1, 2, 1 << 40} {
			for _, verb := range []string{report.VerbPreflight, report.VerbReset, report.VerbVerify, report.VerbMark} {
				for _, ending := range []string{"a1", "a2"} {
					name := jobName(cluster.Mark{Operation: op, Run: 1, Generation: generation}, verb, ending)
					if len(name) > maxName || seen[name] || strings.ToLower(name) != name || strings.ContainsAny(name, "/_. ") {
						t.Errorf("%s (%d bytes), there before: %v", name, len(name), seen[name])
					}
					seen[name] = true
				}
			}
		}
	}
	if a, b := looking(cluster.Mark{Operation: "op_a"}, "verify"), looking(cluster.Mark{Operation: "op_a"}, "verify"); a == b {
		t.Errorf("two looks are both %s", a)
	}
}

// TestJob: pinned, bounded, privileged and without a token.
func TestJob(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Enabled: true, Image: "host:1", DriverRoot: "/run/nvidia/driver", ReleasePersistence: true, RuntimeClass: "nvidia", ImagePullSecrets: []string{"pull"}}.check()
	if err != nil {
		t.Fatal(err)
	}
	e := &devices{c: &cluster.Cluster{Namespace: "ops"}, cfg: cfg}
	j := e.job(task("op_a", 7), target{"GPU-x", "gpu-1"}, report.VerbReset, "n")
	p := j.Spec.Template.Spec
	c := p.Containers[0]
	switch {
	case p.NodeName != "gpu-1" || len(p.Tolerations) != 1 || p.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}):
		t.Errorf("placed by %q, %v", p.NodeName, p.Tolerations)
	case *j.Spec.BackoffLimit != 0 || *j.Spec.ActiveDeadlineSeconds != 90 || *j.Spec.TTLSecondsAfterFinished == 0 || p.RestartPolicy != corev1.RestartPolicyNever:
		t.Errorf("bounds %+v", j.Spec)
	case *p.AutomountServiceAccountToken || !p.HostPID || !*c.SecurityContext.Privileged || p.HostNetwork:
		t.Errorf("rights %+v", p)
	case *p.TerminationGracePeriodSeconds < int64(DefaultResetTimeout/time.Second):
		t.Errorf("a reset is stopped after %d s", *p.TerminationGracePeriodSeconds)
	}
	for _, want := range []string{"reset", "--device=GPU-x", "--operation=op_a", "--run=1", "--generation=7", "--timeout=2m0s", "--release-persistence", "--driver-root=/run/nvidia/driver"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%s is not among %v", want, c.Args)
		}
	}
	for _, m := range c.VolumeMounts {
		if strings.HasPrefix(m.Name, "pod-") != m.ReadOnly {
			t.Errorf("%+v", m)
		}
	}
	if on, ok := cluster.ReadMark(j.Annotations); !ok || on.Generation != 7 || j.Spec.Template.Labels[cluster.LabelJob] != cluster.JobHost {
		t.Errorf("marks %v %v", j.Annotations, j.Spec.Template.Labels)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]Config{
		"not enabled":        {Image: "x"},
		"image":              {Enabled: true},
		"do not go together": {Enabled: true, Image: "x", DriverRoot: "/a", Recorded: "/b"},
	} {
		if _, err := c.check(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestStuck: what a pod's status says of why it does not start.
func TestStuck(t *testing.T) {
	t.Parallel()
	waiting := func(reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: container,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}}}
	}
	unplaced := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}}}
	for _, c := range []struct {
		pod   *corev1.Pod
		code  string
		final bool
	}{
		{waiting("ContainerCreating"), "", false}, {waiting("ErrImagePull"), "image_pull_failed", false}, {waiting("ImagePullBackOff"), "image_pull_failed", false},
		{waiting("InvalidImageName"), "image_pull_failed", true}, {waiting("CreateContainerConfigError"), "config_error", true}, {unplaced, "unschedulable", false},
	} {
		code, why, final := stuck(c.pod)
		if code != c.code || final != c.final || (why == "") != (code == "") {
			t.Errorf("%s %v %s, want %s %v", code, final, why, c.code, c.final)
		}
	}
	for reason, code := range map[string]string{"Evicted": "job_evicted", "OutOfpods": "unschedulable", "OutOfcpu": "unschedulable", "DeadlineExceeded": "job_late", "NodeLost": "node_unreachable", "": "job_failed"} {
		if got := failureCode(&corev1.Pod{Status: corev1.PodStatus{Reason: reason}}); got != code {
			t.Errorf("%s: %s, want %s", reason, got, code)
		}
	}
}

// TestHolders: which pods may be evicted for a device, and what else there is to
// do.
func TestHolders(t *testing.T) {
	t.Parallel()
	yes := true
	pod := func(name string, f func(p *corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name = "ns", name
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Kind: "ReplicaSet", Name: "rs", Controller: &yes})
		f(p)
		return p
	}
	emptyDir := func(medium corev1.StorageMedium) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}}
		}
	}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		fixed bool
		never string
	}{
		"owned":     {pod("a", func(*corev1.Pod) {}), false, ""},
		"shm":       {pod("a", emptyDir(corev1.StorageMediumMemory)), false, ""},
		"scratch":   {pod("a", emptyDir("")), false, "local_data"},
		"bare":      {pod("a", func(p *corev1.Pod) { p.OwnerReferences = nil }), false, "unmanaged_pod"},
		"daemonset": {pod("a", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }), true, ""},
		"static":    {pod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), true, ""},
	} {
		h := &holders{}
		h.add(c.pod)
		code, why := h.never()
		if code != c.never || (len(h.fixed) == 1) != c.fixed || h.drainable() == c.fixed || code != "" && !strings.Contains(why, "ns/a") {
			t.Errorf("%s: %q %v", name, code, h.fixed)
		}
	}
}
