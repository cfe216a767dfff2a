package component

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		s.Client, s.Namespace = s.client, "ops"
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
