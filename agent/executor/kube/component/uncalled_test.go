package component

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
)

// opened is a cluster at which nobody listens: a test gives it a client.
func opened(t *testing.T) *cluster.Cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	c.Pulse = nil
	return c
}

// TestWebhookThatIsNotThere: the API server cannot call a webhook about the upgrade's Job.
// The step names it and waits, and makes its Job once it is back.
func TestWebhookThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"preflight", "upgrade"} {
		s := setup(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: good().account(good().Components["gpu-operator"])}})
		s.Cluster = opened(t)
		s.Client, s.Namespace = clustertest.BeforeJobs(s.client, nil), "ops"
		s.reply = func(*batchv1.Job) (answer.Answer, string) { return answer.Answer{}, "" }
		away := true
		s.client.PrependReactor("create", "jobs", func(kubetesting.Action) (bool, runtime.Object, error) {
			return away, nil, apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": EOF`))
		})
		var server clustertest.Server
		task := s.task(1, 1)
		task.Blocked = server.Blocked
		run := func() executor.Outcome {
			if step == "preflight" {
				return s.preflight(t.Context(), task)
			}
			return s.upgrade(t.Context(), task)
		}
		o := run()
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || o.CommandID != "cmd_1" || !strings.Contains(o.ActionText, "what answers for admission webhook guard.example.com") {
			t.Errorf("%s: %+v", step, o)
		}
		if shown := server.Shown(); len(shown) != 1 || shown[0].Rule != "webhook/guard.example.com" || !strings.HasPrefix(shown[0].Resource, "job/ops/") {
			t.Errorf("%s: shown %+v", step, shown)
		}
		away = false
		if o := run(); o.Class != operation.OutcomeDone || len(s.asked) != 1 || len(server.Shown()) > 0 {
			t.Errorf("%s, once it is back: %+v, asked %v, shown %+v", step, o, s.asked, server.Shown())
		}
	}
}

// A probe that has to ask Helm what became of an upgrade says what keeps it from that, so
// that the step waits for it: nothing is said to be in progress.
func TestProbeThatMayNotAsk(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err     error
		code    string
		blocker bool
	}{
		"a webhook that cannot be called": {apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": EOF`)), cluster.CodeAdmission, true},
		"an API server that is away":      {apierrors.NewServiceUnavailable("starting"), cluster.CodeUnavailable, false},
		"a right that is missing":         {apierrors.NewForbidden(batchv1.Resource("jobs"), "", errors.New("no")), "forbidden", false},
	} {
		s := setup(t)
		s.Client, s.Namespace = s.client, "ops"
		s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
		s.reply = func(*batchv1.Job) (answer.Answer, string) {
			return answer.Answer{Detail: "revision 2 is deployed", Own: &answer.Release{Revision: 2, Status: "deployed"}}, ""
		}
		refused := true
		s.client.PrependReactor("create", "jobs", func(kubetesting.Action) (bool, runtime.Object, error) { return refused, nil, tt.err })
		f := s.probe(t.Context(), s.task(2, 1))
		if f.Phase != operation.StepUnknown || f.ErrorCode != tt.code || !strings.HasPrefix(f.Detail, "the upgrade's answer is lost") || (f.Blocker != nil) != tt.blocker {
			t.Errorf("%s: %+v", name, f)
		}
		refused = false
		if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != operation.StepSucceeded {
			t.Errorf("%s, once it is over: %+v", name, f)
		}
	}
}

// TestWebhookThatHangs: one that takes longer to fail than a call is given is waited for
// in the same way, and no upgrade is begun behind it. A probe that has to make a Job names
// it as well.
func TestWebhookThatHangs(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"preflight", "upgrade", "the probe", "verify"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := setup(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "up"}})
				s.Cluster = opened(t)
				s.reply = func(*batchv1.Job) (answer.Answer, string) {
					return answer.Answer{Own: &answer.Release{Status: "deployed"}, Release: &answer.Release{Status: "deployed", Chart: "1.1.0"}}, ""
				}
				hangs := true
				s.Client, s.Namespace = clustertest.BeforeJobs(s.client, func(ctx context.Context, verb string) error {
					if !hangs {
						return nil
					}
					if step == "upgrade" && verb == "create" {
						t.Error("it was begun")
					}
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(20 * time.Second):
						return apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": context deadline exceeded`))
					}
				}), "ops"
				task := s.task(2, 1)
				if step == "the probe" {
					s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "mute")
				}
				run := func() (code, detail string, done bool) {
					var o executor.Outcome
					switch step {
					case "preflight":
						o = s.preflight(t.Context(), task)
					case "upgrade":
						o = s.upgrade(t.Context(), task)
					case "verify":
						o = s.verify(t.Context(), task)
					default:
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						f := s.probe(ctx, task)
						return f.ErrorCode, f.Detail, f.Phase == operation.StepSucceeded
					}
					return o.ErrorCode, o.Detail, o.Class == operation.OutcomeDone
				}
				code, detail, _ := run()
				if step == "the probe" { // the first is too short to hear more
					if code != "admission_refused" || !strings.Contains(detail, "a webhook may hang") {
						t.Errorf("%s: %s", code, detail)
					}
					time.Sleep(15 * time.Second)
					code, detail, _ = run()
				}
				if code != "admission_refused" || !strings.Contains(detail, "guard.example.com") {
					t.Errorf("%s: %s", code, detail)
				}
				hangs = false
				if code, detail, done := run(); !done {
					t.Errorf("once it answers: %s: %s", code, detail)
				}
			})
		})
	}
}
