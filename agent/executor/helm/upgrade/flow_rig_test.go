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

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
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
