//go:build kubetest

package device

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestReset: the whole way, once, with what it leaves in the cluster.
func TestReset(t *testing.T) {
	t.Parallel()
	d := recorded.Device{Device: report.Device{UUID: testUUID, PCI: "0000:3b:00.0", Health: report.HealthDegraded, Recovery: report.RecoveryReset,
		ECC: &report.ECC{Uncorrected: 2}}}
	b := setup(t, benchOptions{device: d, kubelet: true, nodeOpts: []kuberig.NodeOption{kuberig.Cordoned(), kuberig.Taint("maintenance", "x", corev1.TaintEffectNoExecute)}})
	const op = "op_01hzzzzzzzzzzzzzzzzzzzzz01"
	a := &protocol.Assignment{Operation: op, Run: 1, TargetUID: testUUID, NodeName: b.node}
	for _, step := range []string{"preflight", "reset", "verify"} {
		o, tell := b.run(step, op, 1, 1, `{}`)
		want(t, o, operation.OutcomeDone, "")
		if step == "preflight" && (len(tell.notes) != 1 || tell.notes[0] != "recorded") {
			t.Errorf("that the answers are recorded is not noted: %v", tell.notes)
		}
		a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: step, Name: step}, Phase: operation.StepSucceeded})
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
	var end executor.Ending
	b.typ.Observe(t.Context(), a, &end)
	if len(end.Observed.Devices) != 1 || end.Observed.Devices[0].Health != report.HealthOK || len(end.Verified) != 2 || !strings.Contains(strings.Join(end.NotVerified, ";"), "recorded") {
		t.Errorf("observed %+v", end)
	}
	jobs, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) != 3 {
		t.Fatalf("%d jobs: %v", len(jobs.Items), err)
	}
	for _, j := range jobs.Items {
		if len(j.Name) > 63 || j.Spec.TTLSecondsAfterFinished == nil || *j.Spec.BackoffLimit != 0 || j.Labels["opsplane.io/operation"] != op {
			t.Errorf("job %s: %+v", j.Name, j.Spec)
		}
	}
	for _, e := range b.r.Audit(b.user) {
		if e.Verb == "create" && e.Resource == "jobs" && !strings.Contains(e.UserAgent, "operation/"+op) {
			t.Errorf("user agent %q does not name the operation", e.UserAgent)
		}
	}
	events, err := b.r.Client(kuberig.Admin).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + b.node + ",reason=DeviceReset"})
	if err != nil || len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, op) {
		t.Errorf("events %v: %v", events.Items, err)
	}
	// The same run again, as a successor that knows nothing: it was done.
	if f := b.probe("reset", op, 1, 2); f.Phase != operation.StepSucceeded {
		t.Errorf("probe: %+v", f)
	}
	o, _ := b.run("reset", op, 1, 2, `{}`)
	want(t, o, operation.OutcomeDone, "")
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets in one run", n)
	}
}

// TestRefusals: each refusal of the host has its code, and nothing is reset.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	dev := func(f func(d *recorded.Device)) recorded.Device {
		d := heldBy()
		f(&d)
		return d
	}
	ds := b.r.DaemonSet(b.ns, "dcgm-exporter", kuberig.OnNode(b.node))
	exporter := b.r.Pods(b.ns, ds.Name)[0]
	for _, c := range []struct {
		name, step, code, says, act string
		device                      recorded.Device
	}{
		{"mig", "preflight", "mig_change_pending", "pending", "reboot", dev(func(d *recorded.Device) { d.MIG = &report.MIG{Current: "disabled", Pending: "enabled"} })},
		{"vgpu", "preflight", "not_supported", "vGPU", "", dev(func(d *recorded.Device) { d.Virtual = report.VirtualVGPU })},
		{"peers", "preflight", "nvlink_peers", "GPU-other", "", dev(func(d *recorded.Device) { d.Architecture, d.Peers = "volta", []string{"GPU-other"} })},
		{"reboot", "preflight", "needs_reboot", "rebooted", "reboot", dev(func(d *recorded.Device) { d.Recovery = report.RecoveryReboot })},
		{"persistence mode", "preflight", "device_busy", "persistence mode", "turn persistence mode off", dev(func(d *recorded.Device) { d.Persistence = true })},
		{"exporter", "preflight", "device_busy", "exporter", "nvidia.com/gpu.deploy.dcgm-exporter=false", func() recorded.Device {
			d := heldBy(exporter)
			d.Processes[0].Name = "dcgm-exporter"
			return d
		}()},
		{"the driver says no", "reset", "not_supported", "refuses", "", dev(func(d *recorded.Device) { d.Reset.Refuse = report.CodeNotSupported })},
		{"another device", "preflight", "device_gone", "no device", "", recorded.Device{Device: report.Device{UUID: "GPU-00000000-1111-2222-3333-444455556666", PCI: "0000:3c:00.0"}}},
	} {
		b.record(c.device)
		o, _ := b.run(c.step, "op_refused", 1, 1, `{"drain":true}`)
		if o.Class != operation.OutcomePermanent || o.ErrorCode != c.code || !strings.Contains(o.Detail, c.says) || !strings.Contains(o.ActionText, c.act) {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets", n)
	}
}

// TestBusy: a pod holds the device and the operation does not drain.
func TestBusy(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
	b.record(heldBy(b.r.Pods(ns, "decode")...))
	o, _ := b.run("preflight", "op_busy", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, "device_busy")
	if !strings.Contains(o.Detail, ns+"/decode") || !strings.Contains(o.ActionText, "reset with drain") {
		t.Errorf("%+v", o)
	}
	// A reset that finds a holder at the last moment does nothing.
	o, _ = b.run("reset", "op_busy", 1, 1, `{}`)
	want(t, o, operation.OutcomePermanent, "device_busy")
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets", n)
	}
}

// TestDrain: the pods on the device are evicted, by UID, with their scratch, the
// others stay, and then it is reset.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	other := b.r.Node("other").Name
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 2, kuberig.OnNode(b.node), kuberig.EmptyDir(), kuberig.Annotation(node.AnnotationScratch, "scratch"))
	b.r.Deployment(ns, "bystander", 1, kuberig.OnNode(b.node))
	held := b.r.Pods(ns, "decode")
	b.record(heldBy(held...))
	b.followPods(ns, "decode")
	if err := b.away(ns, "decode", other); err != nil {
		t.Fatal(err)
	}
	const op = "op_01hzzzzzzzzzzzzzzzzzzzzz02"
	for _, step := range []string{"preflight", "drain_holders", "reset", "verify"} {
		o, _ := b.run(step, op, 1, 1, `{"drain":true}`)
		want(t, o, operation.OutcomeDone, "")
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
	uids := map[string]bool{}
	for _, e := range b.r.Audit(b.user) {
		if e.Subresource == "eviction" && e.Code < 300 {
			uids[string(e.PreconditionUID())] = true
		}
	}
	if len(uids) != 2 || !uids[string(held[0].UID)] || !uids[string(held[1].UID)] {
		t.Errorf("evicted %v, want the two that held the device", uids)
	}
}

// away has a deployment's new pods placed on another node.
func (b *bench) away(namespace, name, node string) error {
	c := b.r.Client(kuberig.Admin).AppsV1().Deployments(namespace)
	d, err := c.Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	d.Spec.Paused = true // those that are there stay as they are
	if _, err = c.Update(b.t.Context(), d, metav1.UpdateOptions{}); err != nil {
		return err
	}
	sets := b.r.Client(kuberig.Admin).AppsV1().ReplicaSets(namespace)
	list, err := sets.List(b.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err
	}
	rs := &list.Items[0]
	rs.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
	_, err = sets.Update(b.t.Context(), rs, metav1.UpdateOptions{})
	return err
}

// TestDrainOfTheAgentsOwnPod: it holds the device with another pod. It goes last, and
// another agent is asked to see it go: that one goes on where this one handed over.
func TestDrainOfTheAgentsOwnPod(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 2, kuberig.OnNode(b.node))
	pods := b.r.Pods(ns, "decode")
	b.record(heldBy(pods...))
	b.followPods(ns, "decode")
	if err := b.away(ns, "decode", b.r.Node("other").Name); err != nil {
		t.Fatal(err)
	}
	evicted := func() (uids []string) {
		for _, e := range b.r.Audit(b.user) {
			if e.Subresource == "eviction" && e.Code < 300 {
				uids = append(uids, string(e.PreconditionUID()))
			}
		}
		return uids
	}
	own, other := string(pods[0].UID), string(pods[1].UID)
	b.c.PodUID = own
	o, _ := b.run("drain_holders", "op_own", 1, 1, `{"drain":true}`)
	want(t, o, executor.ClassHandBack, "own_node")
	if got := evicted(); len(got) != 1 || got[0] != other {
		t.Fatalf("evicted %v before the lease was handed back, want %s", got, other)
	}
	handed := o.Detail
	c := b.open(nil) // the other agent
	b.c, b.typ = c, Reset(c, b.cfg, node.NewDrains(c, node.Options{}))
	o, _ = b.run("drain_holders", "op_own", 1, 2, `{"drain":true}`)
	want(t, o, operation.OutcomeDone, "")
	if got := evicted(); len(got) != 2 || got[1] != own {
		t.Errorf("evicted %v, want %s and then %s", got, other, own)
	}
	// The reset fails then: what both evicted is told.
	var end executor.Ending
	b.typ.Observe(t.Context(), &protocol.Assignment{Operation: "op_own", Run: 1, Generation: 2, TargetUID: testUUID, NodeName: b.node, Steps: []protocol.Step{
		{PlanStep: operation.PlanStep{ID: "s1", Name: "drain_holders"}, Phase: operation.StepSucceeded, ErrorCode: "own_node", Detail: handed},
		{PlanStep: operation.PlanStep{ID: "s2", Name: "reset"}, Phase: operation.StepFailed},
	}}, &end)
	if len(end.Residual) != 1 || !strings.Contains(end.Residual[0].Detail, pods[0].Name) || !strings.Contains(end.Residual[0].Detail, pods[1].Name) {
		t.Errorf("residual %+v, want both %s and %s", end.Residual, pods[0].Name, pods[1].Name)
	}
}

// TestDrainBlocked: a budget holds a pod on the device: it is named while the step
// waits, and at its end.
func TestDrainBlocked(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
	b.r.PDB(ns, "decode", "decode", kuberig.MinAvailable("1"))
	b.record(heldBy(b.r.Pods(ns, "decode")...))
	task, tell := b.task("drain_holders", "op_pdb", 1, 1, `{"drain":true}`, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pdb []protocol.Blocker
	go func() {
		defer cancel()
		b.r.Await("the budget named", func(context.Context) (bool, error) {
			tell.mu.Lock()
			defer tell.mu.Unlock()
			for _, now := range tell.blockers {
				if now[0].Code == "pdb" {
					pdb = now
					return true, nil
				}
			}
			return false, nil
		})
	}()
	o := b.typ.Steps["drain_holders"].Execute(ctx, task)
	want(t, o, operation.OutcomeWaiting, "pdb_blocked")
	if len(pdb) != 1 || pdb[0].Rule != "pdb/"+ns+"/decode" || !strings.Contains(pdb[0].Resource, ns+"/decode-") || !strings.Contains(pdb[0].Detail, "allows 0 disruptions (healthy 1, needed 1)") {
		t.Errorf("blockers %+v", pdb)
	}
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets", n)
	}
}
