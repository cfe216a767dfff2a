//go:build kubetest

package component

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Each right is taken away in turn: an upgrade that needs it fails and names it.
func TestEachRightIsNeeded(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for _, without := range Rights {
		t.Run(without.Verb+" "+without.Resource, func(t *testing.T) {
			t.Parallel()
			r := r.For(t)
			user, ns := r.User("agent"), r.Namespace()
			if _, err := r.Client(kuberig.Admin).CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "up"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			var wide, own []rbacv1.PolicyRule
			for _, right := range Rights {
				rule := kuberig.Rule(right.Group, right.Resource, []string{right.Verb})
				switch {
				case right == without:
				case right.Namespace == cluster.OwnNamespace:
					own = append(own, rule)
				default:
					wide = append(wide, rule)
				}
			}
			r.Grant(user, "", wide...)
			r.Grant(user, ns, own...)
			c, err := cluster.Open(cluster.Options{Kubeconfig: r.Kubeconfig(user), Namespace: ns})
			if err != nil {
				t.Fatal(err)
			}
			steps := []string{"preflight", "verify"}
			if without == cluster.EventRight { // events come with Jobs
				steps = steps[:1]
			}
			reads := without.Verb == "list" && without.Resource == "events"
			if reads {
				steps = steps[:1]
			}
			o := untilRefused(t, Upgrade(c, good()), steps...)
			if reads { // best effort: that there is no pod is told without
				if o.ErrorCode == "forbidden" {
					t.Errorf("%+v", o)
				}
				return
			}
			if without == cluster.EventRight { // best effort: the operation goes on, and says nothing on the object
				list, err := r.Client(kuberig.Admin).CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{LabelSelector: cluster.LabelOperation})
				if o.ErrorCode == "forbidden" || err != nil || len(list.Items) != 0 {
					t.Errorf("%+v, %v %d events", o, err, len(list.Items))
				}
				return
			}
			if named := fmt.Sprintf("cannot %s resource %q", without.Verb, without.Resource); o.ErrorCode != "forbidden" || !strings.Contains(o.Detail, named) {
				t.Errorf("%+v does not say %s", o, named)
			}
		})
	}
}

// untilRefused runs the steps until one lacks a right. No kubelet runs their pods,
// so what waits for one is stopped once it watches.
func untilRefused(t *testing.T, typ cluster.Type, steps ...string) executor.Outcome {
	t.Helper()
	a := &protocol.Assignment{Operation: id.New(id.Operation, time.Now()), Run: 1, Generation: 1, Payload: json.RawMessage(`{"component":"gpu-operator","version":"1.0.0"}`)}
	var o executor.Outcome
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		o = typ.Steps[step].Execute(ctx, &executor.Task{
			Assignment: a, Step: protocol.Step{PlanStep: operation.PlanStep{Name: step}}, Attempt: 1,
			Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				return ctx, cancel, nil
			},
			Progress: func(int, int, string, string) {}, Note: func(string, string) {}, Remaining: func() time.Duration { return time.Hour },
			Blocked: func([]protocol.Blocker) { time.AfterFunc(2*time.Second, cancel) }, // a watch that is refused is told within that
			Begin:   func(string, string) (string, func(string, string)) { return "cmd_1", func(string, string) {} },
		})
		cancel()
		if o.ErrorCode == "forbidden" {
			return o
		}
	}
	return o
}
