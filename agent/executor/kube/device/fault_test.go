//go:build kubetest

package device

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// begin starts a step and returns what ends it and what it came to.
func (b *bench) begin(t *executor.Task) (stop context.CancelFunc, outcome <-chan executor.Outcome) {
	ctx, cancel := context.WithCancel(b.t.Context())
	out := make(chan executor.Outcome, 1)
	go func() { out <- b.typ.Steps[t.Step.Name].Execute(ctx, t) }()
	b.t.Cleanup(cancel)
	return cancel, out
}

// jobPod waits for the pod of a Job of the verb.
func (b *bench) jobPod(verb string) *corev1.Pod {
	b.t.Helper()
	var found *corev1.Pod
	b.r.Await("a pod of "+verb, func(ctx context.Context) (bool, error) {
		list, err := b.r.Client(kuberig.Admin).CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{LabelSelector: labelVerb + "=" + verb})
		if err != nil || len(list.Items) == 0 {
			return false, err
		}
		found = &list.Items[len(list.Items)-1]
		return true, nil
	})
	return found
}

// status writes a pod's status, as its kubelet would.
func (b *bench) status(p *corev1.Pod, s corev1.PodStatus) {
	b.t.Helper()
	p = p.DeepCopy()
	p.Status = s
	if _, err := b.r.Client(kuberig.Admin).CoreV1().Pods(p.Namespace).UpdateStatus(b.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func waitingFor(reason string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "Back-off pulling image"}}}}}
}

func ended(message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: message}}}}}
}

// letGo removes a deleted pod as the kubelet of its node does.
func (b *bench) letGo() {
	ctx, cancel := context.WithCancel(b.t.Context())
	b.t.Cleanup(cancel)
	go func() {
		c := b.r.Client(kuberig.Admin).CoreV1().Pods(b.ns)
		w, err := c.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.DeletionTimestamp != nil {
				zero := int64(0)
				_ = c.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
			}
		}
	}()
}

// TestAgentDiesAfterTheJob: the answer comes when nobody waits for it. The next
// lease reads it from the Job's pod, and resets nothing.
func TestAgentDiesAfterTheJob(t *testing.T) {
	t.Parallel()
	d := heldBy()
	d.Reset.TakesMS = 500
	b := setup(t, benchOptions{device: d})
	const op = "op_dies"
	task, _ := b.task("reset", op, 1, 1, `{}`, nil)
	stop, outcome := b.begin(task)
	b.jobPod(report.VerbReset)
	stop()
	o := <-outcome
	want(t, o, operation.OutcomeAmbiguous, "answer_lost")
	b.startKubelet()
	if f := b.probe("reset", op, 1, 2); f.Phase != operation.StepSucceeded {
		t.Errorf("probe of the next lease: %+v", f)
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestMarkTellsTheTruth: Job and pod of the reset are gone; the host remembers.
func TestMarkTellsTheTruth(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	const op = "op_mark"
	if f := b.probe("reset", op, 1, 1); f.Phase != operation.StepPending {
		t.Fatalf("before any reset: %+v", f)
	}
	o, _ := b.run("reset", op, 1, 2, `{}`)
	want(t, o, operation.OutcomeDone, "")
	// Another run of the operation has not reset, though this one's Job is there, once
	// the cluster knows that it is over.
	f := b.probe("reset", op, 2, 4)
	for end := time.Now().Add(30 * time.Second); f.ErrorCode == "in_progress" && time.Now().Before(end); {
		f = b.probe("reset", op, 2, 4)
	}
	if f.Phase != operation.StepPending {
		t.Errorf("of another run: %+v", f)
	}
	background := metav1.DeletePropagationBackground
	if err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if f := b.probe("reset", op, 1, 3); f.Phase != operation.StepSucceeded || !strings.Contains(f.Detail, "generation 2") {
		t.Errorf("afterwards: %+v", f)
	}
	if f := b.probe("reset", op, 2, 5); f.Phase != operation.StepPending {
		t.Errorf("of another run: %+v", f)
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestTwoGenerations: the older holder wakes after the newer one reset. Its Job
// is made and refused by the host; stopped before its fence it makes none.
func TestTwoGenerations(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	const op = "op_two"
	o, _ := b.run("reset", op, 1, 2, `{}`)
	want(t, o, operation.OutcomeDone, "")
	o, _ = b.run("reset", op, 1, 1, `{}`) // its fence said yes before it was stopped
	want(t, o, operation.OutcomeTransient, "fenced")
	task, _ := b.task("reset", op, 1, 1, `{}`, func() error { return executor.ErrFenced })
	task.Attempt = 2
	o = b.typ.Steps["reset"].Execute(t.Context(), task)
	want(t, o, operation.OutcomeTransient, "fenced")
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
	jobs, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{LabelSelector: labelVerb + "=reset"})
	if err != nil || len(jobs.Items) != 2 {
		t.Errorf("%d jobs: %v", len(jobs.Items), err)
	}
}

// TestPausedHolder: the older holder is stopped after its fence; meanwhile its
// lease ends and the next one resets. What it then does is refused by the host.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	paused, resume := make(chan struct{}), make(chan struct{})
	b := setup(t, benchOptions{kubelet: true, pause: func(point string, task *executor.Task) {
		if point == cluster.AfterFence && task.Assignment.Generation == 1 {
			close(paused)
			<-resume
		}
	}})
	const op = "op_paused"
	task, _ := b.task("reset", op, 1, 1, `{}`, nil)
	_, outcome := b.begin(task)
	<-paused
	o, _ := b.run("reset", op, 1, 2, `{}`)
	want(t, o, operation.OutcomeDone, "")
	close(resume)
	want(t, <-outcome, operation.OutcomeTransient, "fenced")
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestSameAttempt: the Job's name is taken by this attempt itself: it goes on
// waiting for the same answer. A Job of that name that is somebody else's is not
// believed.
func TestSameAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	for range 2 {
		o, _ := b.run("reset", "op_same", 1, 1, `{}`)
		want(t, o, operation.OutcomeDone, "")
	}
	jobs := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns)
	list, err := jobs.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || b.resets() != 1 {
		t.Fatalf("%d jobs, %d resets: %v", len(list.Items), b.resets(), err)
	}
	b.r.Await("the cluster knows that the job is over", func(ctx context.Context) (bool, error) { // the next one waits for that
		j, err := jobs.Get(ctx, list.Items[0].Name, metav1.GetOptions{})
		return err == nil && over(j), err
	})
	task, _ := b.task("reset", "op_foreign", 1, 1, `{}`, nil)
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: resetting(task), Annotations: map[string]string{cluster.AnnotationMark: "op_foreign/1/9"}}, Spec: list.Items[0].Spec}
	foreign.Spec.Selector, foreign.Spec.Template.Labels = nil, nil
	if _, err := jobs.Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := b.typ.Steps["reset"].Execute(t.Context(), task)
	want(t, o, operation.OutcomePermanent, "job_refused")
}

// TestImagePull: a Job whose image cannot be pulled is named; a reset's is taken
// away, so that it does not start when the image comes back.
func TestImagePull(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{config: func(c *Config) { c.PullPatience = time.Second }})
	b.letGo()
	for _, step := range []string{"preflight", "reset"} {
		task, _ := b.task(step, "op_pull", 1, 1, `{}`, nil)
		_, outcome := b.begin(task)
		p := b.jobPod(step)
		b.status(p, waitingFor("ImagePullBackOff"))
		o := <-outcome
		want(t, o, operation.OutcomePermanent, "image_pull_failed")
		if !strings.Contains(o.Detail, "Back-off pulling image") || !strings.Contains(o.ActionText, "image") {
			t.Errorf("%+v", o)
		}
	}
	list, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{LabelSelector: labelVerb + "=reset"})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the reset's job is left: %v", err)
	}
}

// restrict makes the agent's namespace one that takes no privileged pods.
func (b *bench) restrict() {
	b.t.Helper()
	admin := b.r.Client(kuberig.Admin).CoreV1().Namespaces()
	ns, err := admin.Get(b.t.Context(), b.ns, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	ns.Labels["pod-security.kubernetes.io/enforce"] = "baseline"
	if _, err := admin.Update(b.t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// TestNoPod: the namespace takes no privileged pods. A reset that got none by its
// Job's own count reset nothing, and is taken away.
func TestNoPod(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{config: func(c *Config) { c.LookTimeout, c.ResetTimeout = 2*time.Second, time.Second }})
	b.restrict()
	o, tell := b.run("preflight", "op_nopod", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, cluster.CodeCreateRefused)
	if named := func(now []protocol.Blocker) bool {
		return len(now) == 1 && now[0].Rule == "PodSecurity baseline:latest"
	}; !strings.Contains(o.Detail, "PodSecurity") || !slices.ContainsFunc(tell.blockers, named) {
		t.Errorf("%+v, blockers %+v", o, tell.blockers)
	}
	o, _ = b.run("reset", "op_nopod", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, cluster.CodeCreateRefused)
	if !strings.HasSuffix(o.Detail, "nothing was reset") {
		t.Errorf("%+v", o)
	}
	list, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{LabelSelector: labelVerb + "=reset"})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the reset's job is left: %v", err)
	}
}

// TestEvicted: the Job's pod ends without its container's word, having run or not.
func TestEvicted(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	b.letGo()
	failed := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}
	ran := failed
	ran.ContainerStatuses = []corev1.ContainerStatus{{Name: container, ContainerID: "containerd://1", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}}}
	full := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Node didn't have enough resource: pods"}
	for i, c := range []struct {
		step        string
		status      corev1.PodStatus
		class, code string
	}{
		{"preflight", failed, operation.OutcomeTransient, "job_evicted"},
		{"preflight", full, operation.OutcomePermanent, "unschedulable"},
		{"reset", failed, operation.OutcomeTransient, "job_evicted"}, // never started: it may be tried
		{"reset", ran, operation.OutcomeAmbiguous, "answer_lost"},
	} {
		task, _ := b.task(c.step, fmt.Sprintf("op_evicted%d", i), 1, 1, `{}`, nil)
		_, outcome := b.begin(task)
		var p *corev1.Pod
		b.r.Await("its pod", func(ctx context.Context) (bool, error) {
			list, err := b.r.Client(kuberig.Admin).CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{LabelSelector: cluster.LabelOperation + "=" + task.Assignment.Operation})
			if err != nil || len(list.Items) == 0 {
				return false, err
			}
			p = &list.Items[0]
			return true, nil
		})
		b.status(p, c.status)
		if o := <-outcome; o.Class != c.class || o.ErrorCode != c.code {
			t.Errorf("%d: %+v", i, o)
		}
	}
}

// TestForgedAnswers: what a container says is believed only as an answer to what
// was asked.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	good := report.Answer{Verb: report.VerbReset, Operation: "op_forged", Run: 1, Generation: 1, OK: true, Detail: "reset", Source: report.SourceRecorded, At: time.Now(),
		Node: b.node, Device: &report.Device{UUID: testUUID, Health: report.HealthOK}}
	forge := func(f func(a *report.Answer)) string {
		a := good
		f(&a)
		return string(a.Message())
	}
	other := &report.Device{UUID: "GPU-00000000-1111-2222-3333-444455556666", Health: report.HealthOK}
	for i, message := range []string{
		"", "ok", strings.Repeat("x", 4000), `{"version":1,"verb":"reset","ok":false}`, `{"version":99,"verb":"reset","ok":true}`,
		forge(func(a *report.Answer) { a.Verb = report.VerbMark }),
		forge(func(a *report.Answer) { a.Operation = "op_other" }),
		forge(func(a *report.Answer) { a.Run = 2 }),
		forge(func(a *report.Answer) { a.Generation = 7 }),
		forge(func(a *report.Answer) { a.Device = other }),
		forge(func(a *report.Answer) { a.Device = nil }),
		forge(func(a *report.Answer) { a.Node = "another" }),
		forge(func(a *report.Answer) { a.Node = "" }),
	} {
		task, _ := b.task("reset", "op_forged", 1, 1, `{}`, nil)
		task.Attempt = i + 1
		_, outcome := b.begin(task)
		var p *corev1.Pod
		b.r.Await("its pod", func(ctx context.Context) (bool, error) {
			list, err := b.r.Client(kuberig.Admin).CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{LabelSelector: labelJobName + "=" + resetting(task)})
			if err != nil || len(list.Items) == 0 {
				return false, err
			}
			p = &list.Items[0]
			return true, nil
		})
		b.status(p, ended(message))
		if o := <-outcome; o.Class != operation.OutcomeAmbiguous {
			t.Errorf("%q: %+v", message[:min(len(message), 60)], o)
		}
	}
}

// TestNodeReplaced: the node's name is another host's now: the device is not
// there. A node that is gone has no devices.
func TestNodeReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	o, _ := b.run("preflight", "op_node", 1, 1, `{}`)
	want(t, o, operation.OutcomeDone, "")
	b.record(recorded.Device{Device: report.Device{UUID: "GPU-00000000-1111-2222-3333-444455556666", PCI: "0000:3b:00.0"}})
	o, _ = b.run("reset", "op_node", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, "device_gone")
	if err := b.r.Client(kuberig.Admin).CoreV1().Nodes().Delete(t.Context(), b.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o, _ = b.run("verify", "op_node", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, "device_gone")
	if f := b.probe("reset", "op_node", 1, 2); f.Phase != operation.StepPending && f.Phase != operation.StepUnknown {
		t.Errorf("probe: %+v", f)
	}
}

// TestNodeDies: a node whose kubelet is dead runs no Job: named, bounded, and what
// was begun there stays unknown.
func TestNodeDies(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{NodeGrace: 4 * time.Second})
	b := setup(t, benchOptions{rig: r, config: func(c *Config) {
		c.LookTimeout, c.ResetTimeout, c.NodePatience = 8*time.Second, time.Second, time.Nanosecond
	}})
	task, tell := b.task("reset", "op_dead", 1, 1, `{}`, nil)
	_, outcome := b.begin(task)
	b.jobPod(report.VerbReset)
	b.r.KillKubelet(b.node)
	o := <-outcome
	want(t, o, operation.OutcomeAmbiguous, "answer_lost")
	if !slices.ContainsFunc(tell.blockers, func(now []protocol.Blocker) bool { return now[0].Code == "node_unreachable" }) {
		t.Errorf("blockers %+v", tell.blockers)
	}
	o, _ = b.run("preflight", "op_dead", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, "node_unreachable")
	next, _ := b.task("reset", "op_dead", 1, 2, `{}`, func() error { return executor.ErrFenced })
	next.Step.Attempts = 1 // the plane has it since before the Job was made
	if f := b.typ.Steps["reset"].Probe(t.Context(), next); f.Phase != operation.StepUnknown {
		t.Errorf("probe: %+v", f)
	}
}

// TestUnknownDevice: a device that the cluster only counts, and a cluster that
// does not allow resets.
func TestUnknownDevice(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	task, _ := b.task("preflight", "op_x", 1, 1, `{}`, nil)
	task.Assignment.TargetUID, task.Assignment.TargetName = "node-uid/gpu-3", "device:gpu-1/3"
	want(t, b.typ.Steps["preflight"].Execute(t.Context(), task), operation.OutcomePermanent, "not_supported")
	off := Reset(b.c, Config{}, nil)
	task, _ = b.task("preflight", "op_x", 1, 1, `{}`, nil)
	want(t, off.Steps["preflight"].Execute(t.Context(), task), operation.OutcomePermanent, "not_supported")
	if len(off.Capabilities) != 0 || len(b.typ.Capabilities) != 1 {
		t.Errorf("capabilities %v, %v", off.Capabilities, b.typ.Capabilities)
	}
}

// TestPreview: from what the host reports of itself, and nothing is made.
func TestPreview(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
	ask := func(payload string) ([]protocol.Blocker, error) {
		return b.typ.Preview(t.Context(), protocol.PreviewRequest{Type: "device.reset", TargetUID: testUUID, NodeName: b.node, Payload: json.RawMessage(payload)})
	}
	if _, err := ask(`{}`); err == nil || !strings.Contains(err.Error(), "reports nothing") {
		t.Errorf("without a report: %v", err)
	}
	d := heldBy(b.r.Pods(ns, "decode")...)
	dev := d.Device
	dev.Health = report.HealthOK
	p := d.Processes[0]
	dev.Holders = []report.Holder{{Kind: report.HolderProcess, Name: p.Name, PIDs: []int{p.PID}, Count: 1, Pod: p.Pod}}
	h := report.Host{Node: b.node, Source: report.SourceRecorded, Devices: []report.Device{dev}, At: time.Now().UTC()}
	_, err := b.r.Client(kuberig.Admin).CoreV1().ConfigMaps(b.ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: report.Name(b.node), Labels: map[string]string{report.Label: report.Hash(b.node)}}, Data: map[string]string{report.Key: string(h.Data())}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ask(`{}`)
	if err != nil || len(got) != 1 || got[0].Code != "holder" || !strings.Contains(got[0].Detail, ns+"/decode") {
		t.Errorf("held: %+v, %v", got, err)
	}
	if got, err = ask(`{"drain":true}`); err != nil || len(got) != 0 {
		t.Errorf("held by what can be drained: %+v, %v", got, err)
	}
	jobs, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) != 0 {
		t.Errorf("%d jobs were made: %v", len(jobs.Items), err)
	}
	on, reason, err := (&devices{c: b.c}).podsOn(t.Context(), b.node, b.node+"/00000000:3B:00.0")
	if err != nil || reason != "" || len(on) != 1 || string(on[0]) != p.Pod.UID {
		t.Errorf("pods on the device by its bus id: %v %q %v", on, reason, err)
	}
}
