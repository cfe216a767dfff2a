//go:build kubetest

package kuberig_test

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// job makes a Job whose one pod is a kubelet's, with a shell script as its command.
func job(t *testing.T, r *kuberig.Rig, ns, node, name, script string, change func(*batchv1.JobSpec)) {
	t.Helper()
	none := int32(0)
	spec := batchv1.JobSpec{BackoffLimit: &none, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{kuberig.LabelJob: "host", "app": name}},
		Spec: corev1.PodSpec{NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "opsplane-host:1", Command: []string{"/bin/sh", "-c", script}}}},
	}}
	if change != nil {
		change(&spec)
	}
	if _, err := r.Client(kuberig.Admin).BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod waits for a Job's one pod to be as ok says.
func pod(t *testing.T, r *kuberig.Rig, ns, app, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var name string
	r.Await("a pod of "+app, func(ctx context.Context) (bool, error) {
		if pods := r.Pods(ns, app); len(pods) == 1 {
			name = pods[0].Name
		}
		return name != "", nil
	})
	return r.AwaitPod(ns, name, what, ok)
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// TestKubelet: what a Job's program is given, and what becomes of how it ends.
func TestKubelet(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns, node := r.Namespace(), r.Node("gpu").Name
	admin := r.Client(kuberig.Admin)
	k := r.Kubelet(kuberig.KubeletOptions{Nodes: []string{node}, Programs: map[string]string{"opsplane-host": "/bin/echo"}, Env: []string{"EXTRA=more"}})
	for _, m := range []*corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "given"}, Data: map[string]string{"key": "from-map", "file.txt": "content"}}} {
		if _, err := admin.CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reset"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Grant("system:serviceaccount:"+ns+":reset", ns, kuberig.Rule("", "configmaps", []string{"get"}, "given"))

	t.Run("environment, volumes, account and message", func(t *testing.T) {
		t.Parallel()
		r := r.For(t)
		job(t, r, ns, node, "given", `
			test "$EXTRA" = more || exit 10
			kubectl get configmap given -o 'jsonpath={.data.key}' > got || exit 11
			kubectl get configmap other 2> denied && exit 12
			grep -q 'cannot get resource' denied || exit 13
			printf '%s %s %s %s %s' "$NODE" "$KEY" "$BOTH" "$(cat /etc/given/file.txt)" "$(cat got)" > "$OPSPLANE_TERMINATION_LOG"`,
			func(s *batchv1.JobSpec) {
				s.Template.Spec.ServiceAccountName = "reset"
				s.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "given"}}}}}
				c := &s.Template.Spec.Containers[0]
				c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/etc/given"}}
				c.Command[2] = "PATH=" + kuberig.Bin(t) + ":$PATH\n" + strings.ReplaceAll(c.Command[2], "cat /etc/given/file.txt", "cat \"$FILE\"")
				c.Env = []corev1.EnvVar{
					{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
					{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "given"}, Key: "key"}}},
					{Name: "BOTH", Value: "$(NODE)/$(KEY)/$$(KEY)/$(NONE)"},
					{Name: "FILE", Value: "/etc/given/file.txt"},
				}
			})
		p := pod(t, r, ns, "given", "ended", ended)
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || p.Status.Phase != corev1.PodSucceeded || end.ExitCode != 0 {
			t.Fatalf("the pod ended %s, %+v: %s", p.Status.Phase, end, k.Output(ns, p.Name))
		}
		if want := node + " from-map " + node + "/from-map/$(KEY)/$(NONE) content from-map"; end.Message != want {
			t.Errorf("the message is\n%q, want\n%q", end.Message, want)
		}
		r.Await("the job is complete", func(ctx context.Context) (bool, error) {
			j, err := admin.BatchV1().Jobs(ns).Get(ctx, "given", metav1.GetOptions{})
			return err == nil && j.Status.Succeeded == 1, err
		})
	})
	t.Run("a program of the project by its image", func(t *testing.T) {
		t.Parallel()
		r := r.For(t)
		job(t, r, ns, node, "image", "", func(s *batchv1.JobSpec) {
			c := &s.Template.Spec.Containers[0]
			c.Image, c.Command, c.Args = "opsplane-host", nil, []string{"hello", "there"}
		})
		p := pod(t, r, ns, "image", "ended", ended)
		if got := k.Output(ns, p.Name); got != "hello there\n" {
			t.Errorf("it wrote %q", got)
		}
	})
	for _, c := range []struct {
		name, script string
		change       func(*batchv1.JobSpec)
		code         int32
		reason       string // of the pod
		message      string // of the container
	}{
		{name: "code", script: "exit 3", code: 3},
		{name: "signal", script: "kill -9 $$$$", code: 137},
		{name: "fallback", script: "echo broken; exit 1", code: 1, message: "broken\n", change: func(s *batchv1.JobSpec) {
			s.Template.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}},
		{name: "deadline", script: "exec sleep 60", code: 143, reason: "DeadlineExceeded", change: func(s *batchv1.JobSpec) {
			one := int64(1)
			s.Template.Spec.ActiveDeadlineSeconds = &one
		}},
		{name: "none", code: 128, message: `failed to create containerd task: exec: "/no/such": stat /no/such: no such file or directory`, change: func(s *batchv1.JobSpec) {
			s.Template.Spec.Containers[0].Command = []string{"/no/such"}
		}},
	} {
		t.Run("ends by "+c.name, func(t *testing.T) {
			t.Parallel()
			r := r.For(t)
			job(t, r, ns, node, c.name, c.script, c.change)
			p := pod(t, r, ns, c.name, "ended", ended)
			end := p.Status.ContainerStatuses[0].State.Terminated
			if p.Status.Phase != corev1.PodFailed || end == nil || end.ExitCode != c.code || p.Status.Reason != c.reason || end.Message != c.message {
				t.Errorf("the pod ended %s %q with %+v", p.Status.Phase, p.Status.Reason, end)
			}
		})
	}
	t.Run("a deletion is SIGTERM, the grace, and SIGKILL", func(t *testing.T) {
		t.Parallel()
		r := r.For(t)
		job(t, r, ns, node, "stubborn", `trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done`, func(s *batchv1.JobSpec) {
			grace := int64(1)
			s.Template.Spec.TerminationGracePeriodSeconds = &grace
		})
		p := pod(t, r, ns, "stubborn", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		r.Await("its output", func(context.Context) (bool, error) { return k.Output(ns, p.Name) == "up\n", nil })
		began := time.Now()
		if err := admin.BatchV1().Jobs(ns).Delete(t.Context(), "stubborn", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
			t.Fatal(err)
		}
		r.AwaitPodGone(ns, p.Name, string(p.UID))
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("it was gone after %s, before its grace of 1 s", took)
		}
		if got := k.Output(ns, p.Name); got != "up\nasked\n" {
			t.Errorf("it wrote %q", got)
		}
	})
}

// TestKubeletLost: a node that loses power says nothing, and its next kubelet does
// not know how the containers ended.
func TestKubeletLost(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns, node := r.Namespace(), r.Node("gpu").Name
	k := r.Kubelet(kuberig.KubeletOptions{Nodes: []string{node}})
	job(t, r, ns, node, "cut-off", "exec sleep 600", nil)
	runs := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }
	p := pod(t, r, ns, "cut-off", "runs", runs)
	if got := k.Running(); len(got) != 1 || got[0] != ns+"/"+p.Name {
		t.Errorf("running are %v", got)
	}
	k.Close()
	if p = r.AwaitPod(ns, p.Name, "runs", runs); p.Status.ContainerStatuses[0].State.Terminated != nil {
		t.Error("a node without power reported an end")
	}
	r.Kubelet(kuberig.KubeletOptions{Nodes: []string{node}})
	p = r.AwaitPod(ns, p.Name, "ended", ended)
	if end := p.Status.ContainerStatuses[0].State.Terminated; p.Status.Phase != corev1.PodFailed || end == nil || end.ExitCode != 137 || end.Reason != "ContainerStatusUnknown" {
		t.Errorf("the pod ended %s with %+v", p.Status.Phase, end)
	}
}
