//go:build kubetest

package upgrade

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestFlows(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Audit: true})
	program := r.Program("agent/executor/helm/opsplane-upgrade")
	r.Kubelet(kuberig.KubeletOptions{Programs: map[string]string{"opsplane-upgrade": program, "muted": muted(t, program)}})
	for name, run := range map[string]func(*testing.T, *kuberig.Rig){
		"comes through": flowComesThrough, "fails and is rolled back": flowRollsBack, "refused": flowRefused,
		"another agent goes on": flowGoesOn, "the answer is lost": flowAnswerLost, "two leases": flowTwoLeases, "no account": flowNoAccount,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, r.For(t))
		})
	}
}

func flowComesThrough(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	l := f.lease(f.typ("1.6.0", nil, nil), "1.6.0", "on_failure")
	f.must(l, "preflight", "upgrade", "verify")
	if len(l.commands) != 2 || len(l.notes) != 1 || !strings.Contains(l.notes[0], "crds/things.yaml") {
		t.Errorf("commands %v, notes %v", l.commands, l.notes)
	}
	if h := f.revisions(); len(h) != 2 || h.last().Config["password"] != secret {
		t.Errorf("%d revisions, values %v", len(h), h.last().Config)
	}
	end := l.end(f.ctx(), "succeeded", "succeeded", "succeeded")
	if c := end.Observed.Components; len(c) != 1 || c[0].Name != "demo" || c[0].Version != "1.6.0" || !c[0].Healthy || len(end.Residual) > 0 || !slices.Contains(end.Verified, "demo is healthy") {
		t.Errorf("ending %+v", end)
	}
	if strings.Contains(string(end.Details), "hunter2") {
		t.Errorf("details %s", end.Details)
	}
	for _, j := range f.jobs() {
		if j.Labels[cluster.LabelOperation] != l.Operation || j.Labels[cluster.LabelJob] != cluster.JobUpgrade || len(j.Name) > 63 || j.Spec.Template.Spec.ServiceAccountName != "upgrader" {
			t.Errorf("Job %s: %v", j.Name, j.Labels)
		}
	}
	named := 0
	for _, e := range r.Audit("system:serviceaccount:" + f.ns + ":upgrader") {
		if strings.Contains(e.UserAgent, "operation/"+l.Operation) && strings.Contains(e.UserAgent, "correlation/cor-1") {
			named++
		}
	}
	if named == 0 {
		t.Error("no request of the Job names the operation")
	}
	// The same again, by another operation: there is nothing to do.
	again := f.lease(l.typ, "1.6.0", "on_failure")
	f.must(again, "preflight", "upgrade", "verify")
	if n := len(f.revisions()); n != 2 {
		t.Errorf("%d revisions", n)
	}
}

func flowRollsBack(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	l := f.lease(f.typ("1.2.0", func(c *component.Config) { c.Timeout = 3 * time.Second }, nil), "1.2.0", "on_failure")
	f.must(l, "preflight")
	o := f.do(l, "upgrade")
	if o.Class != operation.OutcomePermanent || o.ErrorCode != answer.UpgradeFailed || !strings.Contains(o.Detail, "rolled back to version 1.0.0") || !strings.Contains(o.Detail, "Deployment/"+f.ns+"/demo is not ready") {
		t.Errorf("upgrade: %+v", o)
	}
	if x := l.typ.Steps["upgrade"].Probe(f.ctx(), l.next(l.typ).task("upgrade")); x.Phase != operation.StepFailed || x.ErrorCode != answer.UpgradeFailed {
		t.Errorf("the probe finds %+v", x)
	}
	end := l.end(f.ctx(), "succeeded", "failed", "pending")
	if c := end.Observed.Components; len(c) != 1 || c[0].Version != "1.0.0" || len(end.Residual) > 0 || !slices.Contains(end.Verified, "Helm rolled release demo back to version 1.0.0") {
		t.Errorf("ending %+v", end)
	}
	never := f.lease(f.typ("1.2.0", func(c *component.Config) { c.Timeout = 3 * time.Second }, nil), "1.2.0", "never")
	if o := f.do(never, "upgrade"); o.ErrorCode != answer.UpgradeFailed || !strings.Contains(o.Detail, "not rolled back") {
		t.Errorf("upgrade without rollback: %+v", o)
	}
	end = never.end(f.ctx(), "succeeded", "failed", "pending")
	if len(end.Residual) != 2 || end.Residual[0].Step != "upgrade" || !strings.Contains(end.Residual[0].Detail, "revision") {
		t.Errorf("ending %+v", end)
	}
}

func flowRefused(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all[0]) // it may read the release, and change nothing
	f.grant()
	tests := []struct{ chart, version, code, detail string }{
		{"1.1.0", "1.1.0", answer.Forbidden, "patch deployments.apps in namespace " + f.ns},
		{"1.1.0", "1.9.9", answer.ChartNotFound, "no version 1.9.9"},
		{"1.3.0", "1.3.0", "incompatible_version", ">=9.0.0"},
		{"1.4.0", "1.4.0", answer.ValuesInvalid, "/password"},
	}
	for _, tt := range tests {
		l := f.lease(f.typ(tt.chart, nil, nil), tt.version, "on_failure")
		if o := f.do(l, "preflight"); o.Class != operation.OutcomePermanent || o.ErrorCode != tt.code || !strings.Contains(o.Detail, tt.detail) {
			t.Errorf("%s: %+v", tt.version, o)
		}
	}
	f.store(func(r *release.Release) { r.SetStatus(common.StatusPendingInstall, "somebody's") })
	l := f.lease(f.typ("1.1.0", nil, nil), "1.1.0", "on_failure")
	for _, step := range []string{"preflight", "upgrade"} {
		if o := f.do(l, step); o.Class != operation.OutcomePermanent || o.ErrorCode != answer.ReleasePending {
			t.Errorf("%s: %+v", step, o)
		}
	}
	other := f.lease(l.typ, "1.1.0", "on_failure")
	other.Payload = json.RawMessage(`{"component":"other","version":"1.1.0"}`)
	if o := f.do(other, "preflight"); o.ErrorCode != "component_not_found" || !strings.Contains(o.Detail, "it names demo") {
		t.Errorf("%+v", o)
	}
	late := f.lease(l.typ, "1.1.0", "on_failure")
	late.remaining = 30 * time.Second
	if o := f.do(late, "preflight"); o.ErrorCode != "deadline_too_near" {
		t.Errorf("%+v", o)
	}
}

// The agent goes away in the middle, as it does when it upgrades itself: the Job
// lives on, and the next lease takes it up.
func flowGoesOn(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	typ := f.typ("1.8.0", nil, nil)
	one := f.lease(typ, "1.8.0", "on_failure")
	ctx, die := context.WithCancel(f.ctx())
	ended := make(chan executor.Outcome, 1)
	go func() { ended <- typ.Steps["upgrade"].Execute(ctx, one.task("upgrade")) }()
	r.Await("the new revision is pending", func(context.Context) (bool, error) { return f.revisions().last().Version == 2, nil })
	die()
	if o := <-ended; o.Class != operation.OutcomeAmbiguous {
		t.Errorf("the lease that ended: %+v", o)
	}
	two := one.next(typ)
	if x := typ.Steps["upgrade"].Probe(f.ctx(), two.task("upgrade")); x.Phase != operation.StepPending || !strings.Contains(x.Detail, "taken up") {
		t.Errorf("the next lease finds %+v", x)
	}
	two.Cancel = true // a cancel does not make it undone
	if x := typ.Steps["upgrade"].Probe(f.ctx(), two.task("upgrade")); x.Phase != operation.StepUnknown || x.ErrorCode != "in_progress" {
		t.Errorf("the next lease finds %+v", x)
	}
	if end := one.end(f.ctx(), "succeeded", "running", "pending"); len(end.Residual) != 1 || !strings.Contains(end.Residual[0].Detail, "has not ended") {
		t.Errorf("ending meanwhile %+v", end)
	}
	f.must(two, "upgrade", "verify")
	if len(two.commands) != 0 || len(f.revisions()) != 2 || len(f.jobs()) != 1 {
		t.Errorf("commands %v, %d revisions, %d Jobs", two.commands, len(f.revisions()), len(f.jobs()))
	}
}

func flowAnswerLost(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	typ := f.typ("1.1.0", func(c *component.Config) { c.Command = []string{"muted"} }, nil)
	one := f.lease(typ, "1.1.0", "on_failure")
	o := f.do(one, "upgrade")
	if o.Class != operation.OutcomeAmbiguous || !strings.Contains(o.Detail, "left no answer") {
		t.Fatalf("upgrade: %+v", o)
	}
	two := one.next(typ)
	if x := typ.Steps["upgrade"].Probe(f.ctx(), two.task("upgrade")); x.Phase != operation.StepSucceeded {
		t.Errorf("the probe finds %+v", x)
	}
	f.must(two, "verify")
	if len(f.revisions()) != 2 || len(two.commands) != 0 {
		t.Errorf("%d revisions, commands %v", len(f.revisions()), two.commands)
	}
	// Cut off before it was done: it is begun again, past what was left pending.
	three := f.lease(typ, "1.8.0", "on_failure")
	three.typ = f.typ("1.8.0", func(c *component.Config) { c.Command = []string{"muted"} }, nil)
	ctx, die := context.WithCancel(f.ctx())
	ended := make(chan executor.Outcome, 1)
	go func() { ended <- three.typ.Steps["upgrade"].Execute(ctx, three.task("upgrade")) }()
	r.Await("the new revision is pending", func(context.Context) (bool, error) { return f.revisions().last().Version == 3, nil })
	die()
	<-ended
	none := int64(0)
	for _, j := range f.jobs() {
		if j.Labels[cluster.LabelOperation] == three.Operation { // its node dies, with all on it
			pods, err := f.admin.CoreV1().Pods(f.ns).List(f.ctx(), metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=" + j.Name})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				if err := f.admin.CoreV1().Pods(f.ns).Delete(f.ctx(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	four := three.next(three.typ)
	r.Await("the Job has ended", func(ctx context.Context) (bool, error) {
		x := four.typ.Steps["upgrade"].Probe(ctx, four.task("upgrade"))
		return x.Phase == operation.StepPending && strings.Contains(x.Detail, "cut off"), nil
	})
	four.typ = f.typ("1.8.0", nil, nil)
	f.must(four, "upgrade", "verify")
	h := f.revisions()
	if h.last().Version != 4 || h.last().Info.Status != common.StatusDeployed || h[2].Info.Status != common.StatusFailed {
		t.Errorf("revision %d is %s, the one before %s", h.last().Version, h.last().Info.Status, h[2].Info.Status)
	}
}

// The older lease is stopped after its fence, the newer upgrades, the older wakes:
// its Job changes nothing.
func flowTwoLeases(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	reached, wake := make(chan struct{}), make(chan struct{})
	typ := f.typ("1.1.0", nil, func(at string, task *executor.Task) {
		if at == cluster.AfterFence && task.Assignment.Generation == 1 {
			close(reached)
			<-wake
		}
	})
	one := f.lease(typ, "1.1.0", "on_failure")
	ended := make(chan executor.Outcome, 1)
	go func() { ended <- typ.Steps["upgrade"].Execute(f.ctx(), one.task("upgrade")) }()
	<-reached
	two := one.next(typ)
	if x := typ.Steps["upgrade"].Probe(f.ctx(), two.task("upgrade")); x.Phase != operation.StepPending {
		t.Errorf("the newer lease finds %+v", x)
	}
	f.must(two, "upgrade")
	close(wake)
	if o := <-ended; o.Class != operation.OutcomeDone && o.ErrorCode != "fenced" {
		t.Errorf("the older lease: %+v", o)
	}
	if n := len(f.revisions()); n != 2 {
		t.Errorf("%d revisions", n)
	}
}

func flowNoAccount(t *testing.T, r *kuberig.Rig) {
	f := setupOn(t, r).flow(all...)
	f.grant()
	typ := f.typ("1.1.0", func(c *component.Config) { c.ServiceAccount = "nobody" }, nil)
	l := f.lease(typ, "1.1.0", "on_failure")
	if o := f.do(l, "preflight"); o.ErrorCode != "account_missing" || !strings.Contains(o.Detail, "no service account nobody") {
		t.Errorf("%+v", o)
	}
	list, err := typ.Preview(f.ctx(), protocol.PreviewRequest{Payload: l.Payload})
	if err != nil || len(list) != 1 || list[0].Code != "account_missing" {
		t.Errorf("preview %+v %v", list, err)
	}
}
