package deployment

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "web-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "registry.example/server:9"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func TestPodCauses(t *testing.T) {
	t.Parallel()
	ended := &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "out of\nmemory", FinishedAt: metav1.NewTime(noon)}
	tests := []struct {
		name string
		pod  *corev1.Pod
		want []cause
	}{
		{"starting", pod(waiting("ContainerCreating", "")), nil},
		{"image that is not there", pod(waiting("ErrImagePull", "manifest unknown")), []cause{{
			code: codeImagePull, resource: "pod/llm/web-1", rule: "image registry.example/server:9",
			detail: "image registry.example/server:9 cannot be pulled (ErrImagePull): manifest unknown"}}},
		{"image in back-off", pod(waiting("ImagePullBackOff", `Back-off pulling image "x"`)), []cause{{
			code: codeImagePull, resource: "pod/llm/web-1", rule: "image registry.example/server:9",
			detail: `image registry.example/server:9 cannot be pulled (ImagePullBackOff): Back-off pulling image "x"`}}},
		{"missing secret", pod(waiting("CreateContainerConfigError", `secret "hub" not found`)), []cause{{
			code: codeConfig, resource: "pod/llm/web-1", rule: "container server",
			detail: `container server of pod web-1 cannot be started (CreateContainerConfigError): secret "hub" not found`}}},
		{"crash loop", pod(func(p *corev1.Pod) {
			waiting("CrashLoopBackOff", "back-off 10s")(p)
			p.Status.ContainerStatuses[0].RestartCount = 2
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = ended
		}), []cause{{code: codeCrashLoop, resource: "pod/llm/web-1", rule: "container server", since: noon,
			detail: "container server of pod web-1 crashes, 2 restarts; last it ended with exit code 137 (OOMKilled): out of memory"}}},
		{"init container crashes", pod(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "fetch", Image: "fetch:1"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "fetch", RestartCount: 1,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: metav1.NewTime(noon)}}}}
		}), []cause{{code: codeCrashLoop, resource: "pod/llm/web-1", rule: "container fetch", since: noon,
			detail: "container fetch of pod web-1 crashes, 1 restarts; last it ended with exit code 1 (Error)"}}},
		{"runs between two crashes", pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", RestartCount: slowCrashes,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: corev1.ContainerState{Terminated: ended}}}
		}), []cause{{code: codeCrashLoop, resource: "pod/llm/web-1", rule: "container server", since: noon,
			detail: "container server of pod web-1 crashes, 3 restarts; last it ended with exit code 137 (OOMKilled): out of memory"}}},
		{"crashed once", pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", RestartCount: 1,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: corev1.ContainerState{Terminated: ended}}}
		}), nil},
		{"no room", pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", LastTransitionTime: metav1.NewTime(noon)}}
		}), []cause{{code: codeUnschedulable, resource: "pod/llm/web-1", rule: "scheduler", since: noon,
			detail: "pod web-1 cannot be placed: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}}},
		{"ready after crashes", pod(func(p *corev1.Pod) {
			waiting("CrashLoopBackOff", "")(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}), nil},
		{"stopping", pod(func(p *corev1.Pod) {
			waiting("ErrImagePull", "")(p)
			p.DeletionTimestamp = &metav1.Time{Time: noon}
		}), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, podCauses(tt.pod), cmp.AllowUnexported(cause{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefusedPods(t *testing.T) {
	t.Parallel()
	tests := []struct{ message, code, rule string }{
		{`pods "web-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 16, limited: 16`, codeQuota, "quota gpus"},
		{`admission webhook "policy.example" denied the request: no`, codeCreateRefused, "webhook/policy.example"},
		{`pods "web-x" is forbidden: violates PodSecurity "restricted:latest"`, codeCreateRefused, "PodSecurity restricted:latest"},
		{`Error creating: pods "web-x" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: no`, codeCreateRefused, "policy/frozen"},
		{`Error creating: pods "web-x" is forbidden: failed quota: cpu: must specify limits.cpu for: host`, codeQuota, "quota cpu"},
		{`Error creating: pods "web-x" is forbidden: maximum memory usage per Container is 1Mi, but limit is 256Mi`, codeCreateRefused, "admission"},
	}
	for _, tt := range tests {
		c := refusedPods("deployment/llm/web", tt.message, noon)
		if c.code != tt.code || c.rule != tt.rule {
			t.Errorf("%s: %s by %q, want %s by %q", tt.message, c.code, c.rule, tt.code, tt.rule)
		}
	}
}

func TestSumPutsTheFirstCauseFirst(t *testing.T) {
	t.Parallel()
	got := sum([]cause{
		{code: codeUnschedulable, rule: "scheduler", detail: "no room"},
		{code: codeQuota, rule: "quota a", detail: "full"},
		{code: codeImagePull, rule: "image x", detail: "x is missing", since: noon},
		{code: codeImagePull, rule: "image x", detail: "x is missing", since: noon.Add(-time.Minute)},
	})
	want := []cause{
		{code: codeImagePull, rule: "image x", detail: "x is missing (2 pods)", since: noon.Add(-time.Minute), pods: 2},
		{code: codeQuota, rule: "quota a", detail: "full", pods: 1},
		{code: codeUnschedulable, rule: "scheduler", detail: "no room", pods: 1},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cause{})); diff != "" {
		t.Error(diff)
	}
}

func TestBound(t *testing.T) {
	t.Parallel()
	if got := bound("a \n b\t c"); got != "a b c" {
		t.Errorf("got %q", got)
	}
	got := bound(strings.Repeat("é", 300))
	if len(got) > 303 || !strings.HasSuffix(got, "é...") {
		t.Errorf("cut to %d bytes, ending %q", len(got), got[len(got)-6:])
	}
}
