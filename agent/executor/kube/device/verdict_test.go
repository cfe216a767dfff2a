//go:build kubetest

package device

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// reported has the node's host report that the pods hold the device.
func (b *bench) reported(pods ...corev1.Pod) {
	b.t.Helper()
	d := heldBy(pods...)
	dev := d.Device
	dev.Health = report.HealthOK
	for _, p := range d.Processes {
		dev.Holders = append(dev.Holders, report.Holder{Kind: report.HolderProcess, Name: p.Name, PIDs: []int{p.PID}, Count: 1, Pod: p.Pod})
	}
	h := report.Host{Node: b.node, Source: report.SourceRecorded, Devices: []report.Device{dev}, At: time.Now().UTC()}
	_, err := b.r.Client(kuberig.Admin).CoreV1().ConfigMaps(b.ns).Create(b.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: report.Name(b.node), Labels: map[string]string{report.Label: report.Hash(b.node)}}, Data: map[string]string{report.Key: string(h.Data())}}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.record(d)
}

// TestPreviewIsTheDrainsVerdict: a dry run of a reset that drains says of the pods on
// the device what the dry run of a drain of that device says, word for word.
func TestPreviewIsTheDrainsVerdict(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{rights: slices.Concat(Rights, node.Rights, PodsRights)})
	ns := b.r.Namespace()
	on := kuberig.OnNode(b.node)
	for _, app := range []string{"free", "guarded", "twice"} {
		b.r.Deployment(ns, app, 1, on)
	}
	b.r.Deployment(ns, "data", 1, on, kuberig.EmptyDir())
	b.r.Deployment(ns, "scratch", 1, on, kuberig.EmptyDir(), kuberig.Annotation(node.AnnotationScratch, "scratch,data,tmp,cache"))
	b.r.Deployment(ns, "slow", 1, on, kuberig.Grace(300))
	b.r.Pod(ns, "bare", on)
	b.r.Pod(ns, "held", on, kuberig.Finalizer("example.com/hold"))
	b.r.PDB(ns, "guard", "guarded", kuberig.MinAvailable("1"))
	b.r.PDB(ns, "one", "twice", kuberig.MaxUnavailable("1"))
	b.r.PDB(ns, "two", "twice", kuberig.MaxUnavailable("1"))
	b.reported(b.r.PodsOn(b.node)...)

	drains := node.NewDrains(b.c, node.Options{PodsOn: PodsOn(b.c, func(context.Context, types.UID) (string, error) { return b.node, nil })})
	drain, err := drains.Type().Preview(t.Context(), protocol.PreviewRequest{Type: "node.drain", TargetName: "node:" + b.node, NodeName: b.node,
		Payload: json.RawMessage(`{"device":"` + testUUID + `"}`), DeadlineMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	reset, err := b.typ.Preview(t.Context(), protocol.PreviewRequest{Type: "device.reset", TargetUID: testUUID, NodeName: b.node, Payload: json.RawMessage(`{"drain":true}`), DeadlineMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	words := func(list []protocol.Blocker) (out []string) {
		for _, x := range list {
			if x.Code != "tolerates_cordon" { // a reset does not cordon
				out = append(out, x.Code+" "+x.Resource+" "+x.Rule+": "+x.Detail)
			}
		}
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff(words(drain), words(reset)); diff != "" {
		t.Errorf("a drain's verdict and a reset's differ:\n%s", diff)
	}
	codes := map[string]bool{}
	for _, x := range reset {
		codes[x.Code] = true
	}
	for _, want := range []string{"pdb", "two_pdbs", "unmanaged_pod", "local_data", "finalizer", "deadline_short"} {
		if !codes[want] {
			t.Errorf("nothing is said of %s: %q", want, words(reset))
		}
	}
}

// TestDrainThatNeverEnds: a disruption budget allows no eviction. The dry run and the
// preflight say so, and what is told at the deadline is true: the drain did not end,
// the pod is there, the device was not reset.
func TestDrainThatNeverEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
	b.r.PDB(ns, "decode", "decode", kuberig.MinAvailable("1"))
	b.reported(b.r.Pods(ns, "decode")...)
	shown, err := b.typ.Preview(t.Context(), protocol.PreviewRequest{Type: "device.reset", TargetUID: testUUID, NodeName: b.node, Payload: json.RawMessage(`{"drain":true}`)})
	if err != nil || len(shown) != 1 || shown[0].Code != "pdb" || !strings.Contains(shown[0].Detail, "never allows any") {
		t.Errorf("the dry run: %+v, %v", shown, err)
	}
	const op = "op_01hzzzzzzzzzzzzzzzzzzzzz07"
	o, tell := b.run("preflight", op, 1, 1, `{"drain":true}`)
	want(t, o, operation.OutcomeDone, "")
	if !slices.ContainsFunc(tell.blockers, func(now []protocol.Blocker) bool { return now[0].Code == "pdb" }) || !slices.Contains(tell.notes, "blocker") {
		t.Errorf("the preflight shows %+v and notes %v", tell.blockers, tell.notes)
	}
	task, _ := b.task("drain_holders", op, 1, 1, `{"drain":true}`, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	task.Blocked = func(now []protocol.Blocker) { // the deadline comes once the budget is told
		if len(now) > 0 && now[0].Code == "pdb" {
			cancel()
		}
	}
	o = b.typ.Steps["drain_holders"].Execute(ctx, task)
	if o.Class != operation.OutcomeWaiting || o.ErrorCode != "pdb_blocked" || !strings.HasSuffix(o.ActionText, "then reset again") {
		t.Fatalf("the drain: %+v", o)
	}
	a := task.Assignment
	for _, s := range []protocol.Step{{PlanStep: operation.PlanStep{Name: "preflight"}, Phase: operation.StepSucceeded}, {PlanStep: operation.PlanStep{Name: "drain_holders"}, Phase: operation.StepFailed},
		{PlanStep: operation.PlanStep{Name: "reset"}, Phase: operation.StepSkipped}, {PlanStep: operation.PlanStep{Name: "verify"}, Phase: operation.StepSkipped}} {
		s.ID, s.Required = "stp_"+s.Name, true
		a.Steps = append(a.Steps, s)
	}
	var end executor.Ending
	b.typ.Observe(t.Context(), a, &end)
	pod := ns + "/" + b.r.Pods(ns, "decode")[0].Name
	if !strings.HasPrefix(end.Message, "GPU "+testUUID+" was not reset: the drain of its pods did not end, pod "+pod+" is left") || len(end.Verified) != 0 {
		t.Errorf("message %q, verified %q", end.Message, end.Verified)
	}
	if len(end.Residual) != 1 || end.Residual[0].Step != "drain_holders" || !strings.HasPrefix(end.Residual[0].Detail, "not evicted: pod "+pod+" (PDB "+ns+"/decode allows 0") {
		t.Errorf("residual %+v", end.Residual)
	}
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets", n)
	}
}

// TestPreviewNamesMissingRights: of what a reset makes, and what its drain does.
func TestPreviewNamesMissingRights(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{rights: slices.DeleteFunc(slices.Clone(Rights), func(r cluster.Right) bool { return r.Verb == "create" })})
	ns := b.r.Namespace()
	b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
	b.reported(b.r.Pods(ns, "decode")...)
	for payload, want := range map[string][]string{`{}`: {"create jobs.batch", "holder"}, `{"drain":true}`: {"create jobs.batch", "create pods/eviction"}} {
		got, err := b.typ.Preview(t.Context(), protocol.PreviewRequest{Type: "device.reset", TargetUID: testUUID, NodeName: b.node, Payload: json.RawMessage(payload)})
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: %+v, %v", payload, got, err)
			continue
		}
		for i, w := range want {
			if text := got[i].Code + " " + got[i].Detail; !strings.Contains(text, w) {
				t.Errorf("%s: %q, want %q", payload, text, w)
			}
		}
	}
}
