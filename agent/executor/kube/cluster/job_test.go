package cluster_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var errHook = apierrors.NewInternalError(errors.New(`failed calling webhook "slow.example.com": failed to call webhook: Post "https://10.0.0.1/?timeout=30s": context deadline exceeded`))

// maker makes Jobs at an API server whose admission does as before says.
type maker struct {
	*cluster.Cluster
	server clustertest.Server
	task   *executor.Task
	before func(ctx context.Context, verb string) error

	mu       sync.Mutex
	commands []string
}

// theMaker is called in a bubble. A call is fenced for a second, as near the end of a lease.
func theMaker(t *testing.T) *maker {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file}) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	m := &maker{Cluster: c}
	c.Client = clustertest.BeforeJobs(fake.NewClientset(), func(ctx context.Context, verb string) error { return m.before(ctx, verb) })
	c.Pulse = m.server.Pulse()
	m.task = &executor.Task{
		Assignment: &protocol.Assignment{Operation: "op_1", Run: 1, Generation: 1}, Attempt: 1,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			return ctx, cancel, nil
		},
		Begin: func(name, _ string) (string, func(string, string)) {
			return "cmd_1", func(category, _ string) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.commands = append(m.commands, name+": "+category)
			}
		},
		Blocked: m.server.Blocked, Remaining: func() time.Duration { return time.Hour },
	}
	return m
}

// takes has admission take d and answer so, unless whoever asked has gone.
func takes(ctx context.Context, d time.Duration, err error) error {
	select {
	case <-time.After(d):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var aJob = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "j"}}

type making struct {
	made *batchv1.Job
	r    cluster.Reply
	stop *executor.Outcome
}

func (m *maker) make(ctx context.Context, looks bool) <-chan making {
	out := make(chan making, 1)
	go func() {
		made, r, stop := m.MakeJob(ctx, m.task, aJob, looks)
		out <- making{made, r, stop}
	}()
	return out
}

// eachKind runs f for a Job that only looks, and for one that has an effect.
func eachKind(t *testing.T, f func(t *testing.T, m *maker, looks bool)) {
	for name, looks := range map[string]bool{"looks": true, "acts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, theMaker(t), looks) })
		})
	}
}

// A webhook that takes longer to fail than a call is given is named as one that is not
// there. The step waits for it, shows one trouble since one time, and makes its Job once it
// answers. Of a Job that acts nothing is begun before.
func TestJobBehindAWebhookThatHangs(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, m *maker, looks bool) {
		hangs, begun := true, time.Now()
		m.before = func(ctx context.Context, _ string) error {
			if !hangs {
				return nil
			}
			return takes(ctx, 30*time.Second, errHook)
		}
		for try := range 3 {
			over := m.make(t.Context(), looks)
			time.Sleep(cluster.ShownAfter)
			synctest.Wait()
			shown := m.server.Shown()
			if try == 0 && (len(shown) != 1 || shown[0].Code != "api_error" || !strings.Contains(shown[0].Detail, "did not say within 10s whether it takes the Job ops/j")) {
				t.Errorf("shown at first: %+v", shown)
			}
			got := <-over
			o := got.stop
			if o == nil || got.made != nil || o.Class != operation.OutcomeWaiting || o.ErrorCode != cluster.CodeAdmission || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.ActionText, "what answers for admission webhook slow.example.com") {
				t.Fatalf("try %d: %+v, %+v", try, got, o)
			}
			if try == 0 { // nobody was named before
				shown = m.server.Shown()
			}
			for _, shown := range [][]protocol.Blocker{shown, m.server.Shown()} {
				if len(shown) != 1 || shown[0].Code != cluster.CodeAdmission || shown[0].Rule != "webhook/slow.example.com" || shown[0].Resource != "job/ops/j" || shown[0].Since == nil || !shown[0].Since.Equal(begun) {
					t.Errorf("try %d: shown %+v", try, shown)
				}
			}
			time.Sleep(o.After)
		}
		hangs = false
		if got := <-m.make(t.Context(), looks); got.stop != nil || got.r.Category != cluster.OK || got.made == nil {
			t.Errorf("once it answers: %+v, %+v", got, got.stop)
		}
		if n := len(m.commands); looks && n != 4 || !looks && n != 1 {
			t.Errorf("commands %q", m.commands)
		}
	})
}

// One that names nobody is no API server that is away either.
func TestJobThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, m *maker, looks bool) {
		m.before = func(ctx context.Context, _ string) error {
			return takes(ctx, 34*time.Second, apierrors.NewTimeoutError("request did not complete within 34s", 0))
		}
		got := <-m.make(t.Context(), looks)
		if o := got.stop; o == nil || o.Class != operation.OutcomeWaiting || o.ErrorCode != "api_error" || !strings.Contains(o.Detail, "a webhook may hang") || !strings.Contains(o.ActionText, "every webhook that it asks about Jobs in namespace ops") {
			t.Errorf("%+v, %+v", got, o)
		}
		if shown := m.server.Shown(); len(shown) != 1 || shown[0].Resource != "job/ops/j" {
			t.Errorf("shown %+v", shown)
		}
	})
}

// The step's end finds nothing begun, and says what it waited for.
func TestJobThatIsNotAnsweredToTheEnd(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, m *maker, looks bool) {
		m.before = func(ctx context.Context, verb string) error {
			if verb == "create" && !looks {
				t.Error("it was begun")
			}
			return takes(ctx, 30*time.Second, errHook)
		}
		for _, patient := range []bool{false, true} { // then it is known who hangs
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			got := <-m.make(ctx, looks)
			cancel()
			if o := got.stop; o == nil || o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" || strings.Contains(o.Detail, "slow.example.com") != patient || !patient && !strings.Contains(o.Detail, "a webhook may hang") {
				t.Errorf("%+v, %+v", got, o)
			}
			if !patient {
				<-m.make(t.Context(), looks)
			}
		}
	})
}

// Admission that is slow and lets it through is waited for, past what a call is given; so
// is a webhook that takes no dry run, so that nobody can ask how slow it is.
func TestJobBehindSlowAdmission(t *testing.T) {
	t.Parallel()
	for name, rehearsal := range map[string]error{"it is slow": nil, "it takes no dry run": apierrors.NewBadRequest(`admission webhook "effects.example.com" does not support dry run`)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, m *maker, looks bool) {
				m.before = func(ctx context.Context, verb string) error {
					switch {
					case verb == "create" || rehearsal == nil:
						return takes(ctx, 20*time.Second, nil)
					}
					return rehearsal
				}
				if got := <-m.make(t.Context(), looks); got.stop != nil || got.r.Category != cluster.OK {
					t.Errorf("%+v, %+v", got, got.stop)
				}
			})
		})
	}
}

// An API server that answers nothing is no webhook's fault.
func TestJobAtASilentServer(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, m *maker, looks bool) {
		m.server.Hang(true)
		m.before = func(ctx context.Context, _ string) error { return takes(ctx, time.Hour, nil) }
		over := m.make(t.Context(), looks)
		time.Sleep(clustertest.Missed)
		synctest.Wait()
		if shown := m.server.Shown(); len(shown) != 1 || shown[0].Code != cluster.CodeUnavailable {
			t.Errorf("shown %+v", shown)
		}
		got := <-over
		if o := got.stop; o == nil || o.Class != operation.OutcomeWaiting || o.ErrorCode != cluster.CodeUnavailable {
			t.Errorf("%+v, %+v", got, o)
		}
	})
}

// A probe may be shorter than admission takes: what it asked for goes on, and the next one
// has what became of it.
func TestJobThatAProbeAsksFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := theMaker(t)
		asked := 0
		answers := []error{errHook, nil}
		m.before = func(ctx context.Context, _ string) error {
			asked++
			return takes(ctx, 20*time.Second, answers[asked-1])
		}
		ask := func() (*batchv1.Job, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return m.AskJob(ctx, "mark", aJob)
		}
		for _, want := range []string{"a webhook may hang", "cannot call admission webhook slow.example.com"} {
			_, err := ask()
			f := cluster.Unread(err)
			if f.Phase != operation.StepUnknown || f.ErrorCode != cluster.CodeAdmission || f.Blocker == nil || !strings.Contains(f.Detail, want) {
				t.Errorf("%v: %+v", err, f)
			}
			time.Sleep(11 * time.Second)
		}
		if _, err := ask(); cluster.Unread(err).ErrorCode != cluster.CodeAdmission {
			t.Error(err)
		}
		time.Sleep(11 * time.Second)
		if made, err := ask(); err != nil || made.Name != "j" || asked != 2 {
			t.Errorf("%v, asked %d times", err, asked)
		}
	})
}
