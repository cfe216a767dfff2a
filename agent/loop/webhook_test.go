package loop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// guarded is a cluster of one node whose changes a webhook has to see.
type guarded struct {
	b      *bench
	client *fake.Clientset
	away   atomic.Int64 // how many more changes cannot be told to the webhook; below 0: all
	asked  atomic.Int64 // the changes that could not be
}

// guard has the steps of the bench change a node of Kubernetes.
func (b *bench) guard(t *testing.T, unschedulable bool, annotations map[string]string) *guarded {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{b: b, client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1", Annotations: annotations}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}})}
	c.Pulse, c.Client = nil, clustertest.BeforeNodes(g.client, func(_ context.Context, verb string) error {
		if verb != "patch" || g.away.Load() == 0 {
			return nil
		}
		g.away.Add(-1)
		g.asked.Add(1)
		return apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": failed to call webhook: connection refused`))
	})
	for name, do := range map[string]cluster.Step{
		"cordon":   node.Cordon(c, node.Options{}).Steps["cordon"],
		"uncordon": node.Uncordon(c, node.Options{}).Steps["uncordon"],
		"restore":  node.NewDrains(c, node.Options{}).Type().Steps["restore"],
	} {
		b.exec.execute[name] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			a, on := *task.Assignment, *task
			a.NodeName, on.Assignment = "n1", &a
			return do.Execute(ctx, &on)
		}
	}
	return g
}

// closed tells whether the node is.
func (g *guarded) closed(t *testing.T) bool {
	t.Helper()
	n, err := g.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Spec.Unschedulable
}

// TestNodeChangesOutwaitTheirWebhook: a webhook that cannot be called, as while its only pod
// moves off a node that is drained, costs no attempt of a change of the node. It is shown
// meanwhile and no longer, and a cancel need not wait for it.
func TestNodeChangesOutwaitTheirWebhook(t *testing.T) {
	const cordoned = `{"owner":"opsplane","operation":"op_earlier","since":"2026-01-02T03:04:05Z"}`
	for name, tc := range map[string]struct {
		plan    []operation.PlanStep
		before  bool // the node is cordoned
		cancel  bool
		phase   operation.Phase
		cleanup string
		closed  bool // at the end
	}{
		"cordon":              {plan: []operation.PlanStep{step("cordon", effect)}, phase: operation.Succeeded, closed: true},
		"cordon, cancelled":   {plan: []operation.PlanStep{step("cordon", effect)}, cancel: true, phase: operation.Cancelled},
		"cordon, never back":  {plan: []operation.PlanStep{step("cordon", effect)}, phase: operation.TimedOut},
		"uncordon":            {plan: []operation.PlanStep{step("uncordon", effect)}, before: true, phase: operation.Succeeded},
		"restore":             {plan: drainPlan(), phase: operation.Failed, cleanup: operation.CleanupDone},
		"restore, never back": {plan: drainPlan(), phase: operation.Failed, cleanup: operation.CleanupAbandoned, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				away := int64(6)
				if tc.cancel || tc.phase == operation.TimedOut || tc.cleanup == operation.CleanupAbandoned {
					away = -1
				}
				annotations := map[string]string{}
				if tc.before {
					annotations[cluster.AnnotationCordon] = cordoned
				}
				g := b.guard(t, tc.before, annotations)
				begun := time.Now()
				if tc.cleanup == "" {
					g.away.Store(away)
				}
				b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
					g.away.Store(away)
					return executor.Permanent("pdb_blocked", "a budget")
				}
				b.start()
				op := b.plane.submit("guarded", 3*time.Minute, tc.plan...)
				b.plane.wait(t, 5*time.Second, "the webhook is shown", func() bool {
					x := standing(b.plane.ops[op].State)
					return x != nil && x.Code == codeAdmission && x.Rule == "webhook/guard.example.com" && x.Resource == "node/n1" && x.Since.Sub(begun) < 3*time.Second
				})
				if tc.cancel {
					time.Sleep(30 * time.Second) // the bubble's time
					b.plane.cancel(t, op)
					b.plane.ring(op, protocol.KindAttention)
				}
				s := b.plane.ended(t, op, 3*time.Minute+2*time.Second)
				if s.Phase != tc.phase || tc.cleanup != "" && (s.Result.Cleanup.State != tc.cleanup || s.Result.Cause.ErrorCode != "pdb_blocked") || s.Generation != 1 || g.closed(t) != tc.closed {
					t.Errorf("ended %s, cause %+v, cleanup %+v, generation %d; the node is closed: %t", s.Phase, s.Result.Cause, s.Result.Cleanup, s.Generation, g.closed(t))
				}
				if x := s.Result; tc.phase == operation.TimedOut && (!strings.Contains(x.Cause.Detail, "guard.example.com") || !strings.HasPrefix(x.NextAction.Text, "bring back what answers for admission webhook guard.example.com")) {
					t.Errorf("cause %+v, next %+v", x.Cause, x.NextAction)
				}
				for i, st := range s.Steps {
					if n := len(st.Attempts); n > 1 {
						t.Errorf("step %s had %d attempts", b.plane.ops[op].Spec.Steps[i].Name, n)
					}
				}
				switch took, asked := time.Since(begun), g.asked.Load(); {
				case tc.cancel && (took > 36*time.Second || asked > 8):
					t.Errorf("cancelled after %s, asked %d times", took, asked)
				case away > 0 && (asked != away || took > 40*time.Second || standing(s) != nil):
					t.Errorf("it took %s, asked %d times, shown %+v", took, asked, standing(s))
				case away < 0 && asked > 3*60/5+1:
					t.Errorf("asked %d times", asked)
				}
			})
		})
	}
}
