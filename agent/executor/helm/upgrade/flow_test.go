//go:build kubetest

package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// flow is a site whose agent and upgrades run for real: the Job's pod is a
// process of opsplane-upgrade under the Job's service account.
type flow struct {
	*site
	agent string // user
}

// all is what the chart's objects need.
var all = []rbacv1.PolicyRule{
	kuberig.Rule("", "secrets", []string{"get", "list", "watch", "create", "update", "delete"}),
	kuberig.Rule("", "configmaps", []string{"get", "list", "watch", "create", "patch", "delete"}),
	kuberig.Rule("", "pods", []string{"get", "list", "watch"}),
	kuberig.Rule("apps", "deployments", []string{"get", "list", "watch", "create", "patch", "delete"}),
	kuberig.Rule("apps", "replicasets", []string{"get", "list", "watch"}),
}

func (s *site) flow(rules ...rbacv1.PolicyRule) *flow {
	s.t.Helper()
	if _, err := s.admin.CoreV1().ServiceAccounts(s.ns).Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "upgrader"}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if len(rules) > 0 {
		s.rig.Grant("system:serviceaccount:"+s.ns+":upgrader", s.ns, rules...)
	}
	return &flow{s, s.rig.User("agent")}
}

// grant gives the agent its rights, but for some.
func (f *flow) grant(but ...cluster.Right) {
	f.t.Helper()
	for _, scope := range []string{"", cluster.OwnNamespace} {
		var rules []rbacv1.PolicyRule
		for _, r := range component.Rights {
			if r.Namespace == scope && !slices.Contains(but, r) {
				rules = append(rules, kuberig.Rule(r.Group, r.Resource, []string{r.Verb}))
			}
		}
		ns := ""
		if scope == cluster.OwnNamespace {
			ns = f.ns
		}
		f.rig.Grant(f.agent, ns, rules...)
	}
}

func (f *flow) typ(version string, change func(*component.Config), pause func(string, *executor.Task)) cluster.Type {
	f.t.Helper()
	c, err := cluster.Open(cluster.Options{Kubeconfig: f.rig.Kubeconfig(f.agent), Namespace: f.ns, Version: "1.2.3", Pause: pause})
	if err != nil {
		f.t.Fatal(err)
	}
	config := component.Config{Image: "opsplane-upgrade:test", ServiceAccount: "upgrader", Timeout: 20 * time.Second, Components: map[string]component.Component{
		"demo": {Release: "demo", Namespace: f.ns, Chart: "demo", Repository: repository(f.t, version)}}}
	if change != nil {
		change(&config)
	}
	if err := config.Check(); err != nil {
		f.t.Fatal(err)
	}
	return component.Upgrade(c, config)
}

// lease is one holder's right to an operation, as the loops give it.
type lease struct {
	*protocol.Assignment
	typ       cluster.Type
	remaining time.Duration
	cancelled chan struct{}
	told      chan struct{}

	mu       sync.Mutex
	commands []string
	notes    []string
	blocked  []protocol.Blocker
}

func (f *flow) lease(typ cluster.Type, version, rollback string) *lease {
	a := &protocol.Assignment{Operation: id.New(id.Operation, time.Now()), Run: 1, Generation: 1, Type: "component.upgrade", CorrelationID: "cor-1", TargetID: "clu_1",
		Payload: json.RawMessage(fmt.Sprintf(`{"component":"demo","version":%q,"rollback":%q}`, version, rollback))}
	for _, step := range []string{"preflight", "upgrade", "verify"} {
		a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + step, Name: step, Required: true, Resources: []string{"cmp_1"}}})
	}
	return &lease{Assignment: a, typ: typ, remaining: 10 * time.Minute, cancelled: make(chan struct{}), told: make(chan struct{}, 1)}
}

func (l *lease) next(typ cluster.Type) *lease {
	a := *l.Assignment
	a.Generation++
	return &lease{Assignment: &a, typ: typ, remaining: l.remaining, cancelled: make(chan struct{}), told: make(chan struct{}, 1)}
}

func (l *lease) task(step string) *executor.Task {
	i := slices.IndexFunc(l.Steps, func(s protocol.Step) bool { return s.Name == step })
	tell := func(f func()) {
		l.mu.Lock()
		f()
		l.mu.Unlock()
		select {
		case l.told <- struct{}{}:
		default:
		}
	}
	return &executor.Task{
		Assignment: l.Assignment, Step: l.Steps[i], Attempt: 1, Cancelled: l.cancelled,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			return ctx, cancel, nil
		},
		Progress:  func(int, int, string, string) { tell(func() {}) },
		Blocked:   func(now []protocol.Blocker) { tell(func() { l.blocked = append(l.blocked, now...) }) },
		Note:      func(code, detail string) { tell(func() { l.notes = append(l.notes, code+": "+detail) }) },
		Remaining: func() time.Duration { return l.remaining },
		Begin: func(name, _ string) (string, func(string, string)) {
			return "cmd_1", func(category, _ string) { tell(func() { l.commands = append(l.commands, name+": "+category) }) }
		},
	}
}

func (f *flow) ctx() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *flow) do(l *lease, step string) executor.Outcome {
	f.t.Helper()
	o := l.typ.Steps[step].Execute(f.ctx(), l.task(step))
	if strings.Contains(o.Detail, "hunter2") {
		f.t.Errorf("%s tells a value: %s", step, o.Detail)
	}
	return o
}

func (f *flow) must(l *lease, steps ...string) {
	f.t.Helper()
	for _, s := range steps {
		if o := f.do(l, s); o.Class != operation.OutcomeDone {
			f.t.Fatalf("%s: %+v; commands %v, blocked %+v", s, o, l.commands, l.blocked)
		}
	}
}

func (f *flow) jobs() []batchv1.Job {
	f.t.Helper()
	list, err := f.admin.BatchV1().Jobs(f.ns).List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return list.Items
}

func (l *lease) end(ctx context.Context, phases ...operation.StepPhase) executor.Ending {
	for i, p := range phases {
		l.Steps[i].Phase = p
	}
	var end executor.Ending
	l.typ.Observe(ctx, l.Assignment, &end)
	return end
}

// muted is the program with an upgrade's answer lost: the pod ends, and nothing
// was written.
func muted(t *testing.T, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "muted")
	text := "#!/bin/sh\n[ \"$1\" = upgrade ] && OPSPLANE_TERMINATION_LOG=/dev/null\nexport OPSPLANE_TERMINATION_LOG\nexec " + program + " \"$@\"\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

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
