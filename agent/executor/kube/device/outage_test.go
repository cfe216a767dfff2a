package device

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
)

// How an API server does not do what it is asked for.
var (
	refusedDial = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	busyServer  = apierrors.NewTooManyRequests("busy", 1)
	deadHook    = apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": EOF`))
	startingUp  = apierrors.NewUnauthorized("it has not read its tokens yet")
)

// outage fails some calls of a kind, from the first one that is counted on.
func outage(client *fake.Clientset, verb, resource, namespace string, from, calls int, err error) {
	n := 0
	client.PrependReactor(verb, resource, func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != namespace {
			return false, nil, nil
		}
		n++
		return n >= from && n < from+calls, nil, err
	})
}

// likeTheLoop executes a step until its outcome is another than waiting for the API
// server, or for a webhook that it cannot call, all in one attempt, and counts how often it waited.
func likeTheLoop(t *testing.T, task *executor.Task, f func(ctx context.Context, t *executor.Task) executor.Outcome) (o executor.Outcome, waited int) {
	t.Helper()
	for waited < 100 {
		o = f(t.Context(), task)
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != cluster.CodeUnavailable && o.ErrorCode != cluster.CodeAdmission {
			break
		}
		if o.After < lookAgain || o.After > askMost {
			t.Errorf("it asks again after %s", o.After)
		}
		waited++
		time.Sleep(o.After)
	}
	return o, waited
}

// answers has each Job that is made answer at once, by how many there were.
func answers(t *testing.T, client *fake.Clientset, answer func(n int) report.Answer) {
	t.Helper()
	client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
	n := 0
	client.PrependReactor("create", "jobs", func(a ktesting.Action) (bool, runtime.Object, error) {
		j := a.(ktesting.CreateAction).GetObject().(*batchv1.Job)
		j.UID = types.UID("uid-" + j.Name)
		n++
		return false, nil, client.Tracker().Add(podOf(j, said(answer(n))))
	})
}

// TestDrainOutlastsAnOutage: a drain of a device waits for an API server that is away,
// whatever it was about to ask, and goes on: its pods may be gone already.
func TestDrainOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb, resource, namespace string
		from                      int
		err                       error
	}{
		"before the first look":    {"get", "nodes", "", 1, refusedDial},
		"the first look's Job":     {"create", "jobs", fakeNS, 1, refusedDial},
		"when the pods are found":  {"list", "pods", "", 1, refusedDial},
		"before the second look":   {"get", "nodes", "", 2, refusedDial},
		"the second look's Job":    {"create", "jobs", fakeNS, 2, refusedDial},
		"it is busy":               {"create", "jobs", fakeNS, 2, busyServer},
		"a webhook is not there":   {"create", "jobs", fakeNS, 2, deadHook},
		"it has just begun to run": {"create", "jobs", fakeNS, 2, startingUp},
		"it is shutting down":      {"get", "nodes", "", 2, apierrors.NewServiceUnavailable("shutting down")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(3 * time.Minute) // what evictions share lingers
				e, client, _ := fakes(t)
				task := stepTask("op_a", 1, 1)
				answers(t, client, func(n int) report.Answer {
					a := yes(task, report.VerbPreflight)
					if n == 1 { // a pod that has ended since
						a.OK, a.Code, a.Device.Holders = false, report.CodeBusy, []report.Holder{{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: "uid-ended"}}}
					}
					return a
				})
				const calls = 10 // more than the step has attempts
				outage(client, c.verb, c.resource, c.namespace, c.from, calls, c.err)
				if o, waited := likeTheLoop(t, task, e.step(e.drainHolders)); o.Class != operation.OutcomeDone || waited == 0 {
					t.Errorf("after %d waits: %+v", waited, o)
				}
			})
		})
	}
}

// TestResetIsBegunOnce: a reset waits for an API server that does not make its Job, or
// does not tell of it, within its attempt: it makes one Job, of whose answer it lives.
func TestResetIsBegunOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb string
		err  error
		made bool // by an earlier try, whose answer nobody read
	}{
		"nobody listens":           {"create", refusedDial, false},
		"it is busy":               {"create", busyServer, false},
		"a webhook is not there":   {"create", deadHook, false},
		"it has just begun to run": {"create", startingUp, false},
		"it is there already":      {"get", refusedDial, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				task := stepTask("op_a", 1, 1)
				answers(t, client, func(int) report.Answer { return yes(task, report.VerbReset) })
				if c.made {
					j := e.job(task, target{fakeUUID, fakeNode}, report.VerbReset, resetting(task))
					if _, err := client.BatchV1().Jobs(fakeNS).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				const calls = 10
				outage(client, c.verb, "jobs", fakeNS, 1, calls, c.err)
				if o, waited := likeTheLoop(t, task, e.step(e.reset)); o.Class != operation.OutcomeDone || waited != calls {
					t.Errorf("after %d waits: %+v", waited, o)
				}
				list, err := client.BatchV1().Jobs(fakeNS).List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 || list.Items[0].Name != resetting(task) {
					t.Errorf("%d jobs: %v", len(list.Items), err)
				}
			})
		})
	}
}

// TestResetIsTakenUpBehindAWebhookThatHangs: a reset that is carried out once more, as after
// a wait, lives of the answer of the Job that it has made, whatever admission does to others.
func TestResetIsTakenUpBehindAWebhookThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, client, _ := fakes(t)
		task := stepTask("op_a", 1, 1)
		answers(t, client, func(int) report.Answer { return yes(task, report.VerbReset) })
		j := e.job(task, target{fakeUUID, fakeNode}, report.VerbReset, resetting(task))
		if _, err := client.BatchV1().Jobs(fakeNS).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		client.PrependReactor("create", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Minute)
			return true, nil, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		})
		begun := time.Now()
		o := e.step(e.reset)(t.Context(), task)
		if took := time.Since(begun); o.Class != operation.OutcomeDone || took > 5*time.Second {
			t.Errorf("after %s: %+v", took, o)
		}
	})
}

// TestWebhookThatIsNotThere: the API server cannot call a webhook about a reset's Jobs. The
// step that meets it names it and waits, and goes on once it is back; so does the probe.
func TestWebhookThatIsNotThere(t *testing.T) {
	t.Parallel()
	for verb, step := range map[string]func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome{
		report.VerbPreflight: func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome { return e.preflight },
		report.VerbReset:     func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome { return e.reset },
		report.VerbVerify:    func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome { return e.verify },
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			e, client, _ := fakes(t)
			task := stepTask("op_a", 1, 1)
			var server clustertest.Server
			task.Blocked = server.Blocked
			answers(t, client, func(int) report.Answer { return yes(task, verb) })
			outage(client, "create", "jobs", fakeNS, 1, 2, deadHook)
			f := e.probeReset(t.Context(), task)
			if f.Phase != operation.StepUnknown || f.ErrorCode != "admission_refused" || f.Blocker == nil || f.Blocker.Rule != "webhook/guard.example.com" {
				t.Errorf("the probe: %+v", f)
			}
			o := e.step(step(e))(t.Context(), task)
			if o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || o.CommandID != "cmd" || !strings.Contains(o.ActionText, "what answers for admission webhook guard.example.com") {
				t.Errorf("%+v", o)
			}
			if shown := server.Shown(); len(shown) != 1 || shown[0].Code != "admission_refused" || shown[0].Rule != "webhook/guard.example.com" || !strings.HasPrefix(shown[0].Resource, "job/"+fakeNS+"/") {
				t.Errorf("shown %+v", shown)
			}
			if o := e.step(step(e))(t.Context(), task); o.Class != operation.OutcomeDone || len(server.Shown()) > 0 {
				t.Errorf("once it is back: %+v, shown %+v", o, server.Shown())
			}
		})
	}
}
