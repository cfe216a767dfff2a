package device

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestResolve: pods that ended are no holders, and one that stops is waited for,
// whatever it is.
func TestResolve(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	ended, bare, stopping := worker("ended"), worker("bare"), worker("stopping")
	ended.Status.Phase, ended.OwnerReferences = corev1.PodFailed, nil
	bare.OwnerReferences = nil
	stopping.OwnerReferences, stopping.DeletionTimestamp = nil, &now
	e, _, _ := fakes(t, ended, bare, stopping)
	for name, c := range map[string]struct {
		pod              *corev1.Pod
		never            string
		pods, lost, uids int
	}{
		"ended": {ended, "", 0, 1, 0}, "bare": {bare, "unmanaged_pod", 1, 0, 1}, "stopping": {stopping, "", 1, 0, 1},
	} {
		h, err := e.resolve(t.Context(), target{fakeUUID, fakeNode}, &report.Answer{Device: &report.Device{UUID: fakeUUID,
			Holders: []report.Holder{{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: string(c.pod.UID)}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := h.never(); code != c.never || len(h.pods) != c.pods || h.lost != c.lost || len(h.uids) != c.uids {
			t.Errorf("%s: %s, %d pods, %d lost, %d uids", name, code, len(h.pods), h.lost, len(h.uids))
		}
	}
}

// TestNothingIsEvictedInVain: a device that something holds which eviction does not
// move is busy before any pod has gone, also when the host names pods that ended.
func TestNothingIsEvictedInVain(t *testing.T) {
	t.Parallel()
	pod := func(uid string) report.Holder {
		return report.Holder{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{Namespace: "serve", Name: "x", UID: uid}}
	}
	process := report.Holder{Kind: report.HolderProcess, Name: "python3", PIDs: []int{7}, Count: 1}
	for name, c := range map[string]struct {
		holders []report.Holder
		looks   int
	}{
		"a process":                     {[]report.Holder{pod("uid-a"), process}, 1},
		"a DaemonSet's pod":             {[]report.Holder{pod("uid-a"), pod("uid-fixed")}, 1},
		"a process, and a pod that was": {[]report.Holder{pod("uid-a"), process, pod("uid-ended")}, maxRounds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fixed := worker("fixed")
				fixed.OwnerReferences[0].Kind = "DaemonSet"
				e, client, _ := fakes(t, worker("a"), fixed)
				client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
				task := stepTask("op_a", 1, 1)
				answer := yes(task, report.VerbPreflight)
				answer.OK, answer.Code, answer.Device.Holders = false, report.CodeBusy, c.holders
				client.PrependReactor("create", "jobs", func(a ktesting.Action) (bool, runtime.Object, error) {
					j := a.(ktesting.CreateAction).GetObject().(*batchv1.Job)
					j.UID = types.UID("uid-" + j.Name)
					return false, nil, client.Tracker().Add(podOf(j, said(answer)))
				})
				o := e.drainHolders(t.Context(), task, target{fakeUUID, fakeNode})
				if o.Class != operation.OutcomePermanent || o.ErrorCode != report.CodeBusy || !strings.Contains(o.ActionText, "reset again") {
					t.Errorf("%+v", o)
				}
				if n := made(client, "pods", "eviction"); n != 0 {
					t.Errorf("%d pods were evicted", n)
				}
				if n := made(client, "jobs", ""); n != c.looks {
					t.Errorf("the host was asked %d times, want %d", n, c.looks)
				}
			})
		})
	}
}

// TestTheLastEvictionIsLookedAt: pods that come between two looks are evicted, and what the
// last of them leaves is asked of the host before the device is called held.
func TestTheLastEvictionIsLookedAt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pods  int // that come, one after the other
		class string
	}{
		"the last has gone": {maxRounds, operation.OutcomeDone},
		"one more has come": {maxRounds + 1, operation.OutcomePermanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(3 * time.Minute) // what evictions share lingers
				var pods []runtime.Object
				for i := range c.pods {
					pods = append(pods, worker(fmt.Sprint("w", i)))
				}
				e, client, _ := fakes(t, pods...)
				task := stepTask("op_a", 1, 1)
				var looks atomic.Int32
				answers(t, client, func(n int) report.Answer {
					looks.Store(int32(n))
					if n > c.pods {
						return yes(task, report.VerbPreflight)
					}
					return busy(task, report.Holder{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: fmt.Sprint("uid-w", n-1)}})
				})
				// Whoever is to be evicted goes by itself just before.
				client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
					_ = client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "serve", fmt.Sprint("w", looks.Load()-1))
					return false, nil, nil
				})
				o := e.drainHolders(t.Context(), task, target{fakeUUID, fakeNode})
				if o.Class != c.class {
					t.Errorf("%+v", o)
				}
				if last := fmt.Sprint("serve/w", maxRounds); o.Class == operation.OutcomePermanent && !strings.Contains(o.Detail, last) {
					t.Errorf("what holds it now is %s: %s", last, o.Detail)
				}
			})
		})
	}
}

// TestTakenAwayUnseen: a Job was taken away and no pod of it was seen. That none was
// made is only known while the pods are told of.
func TestTakenAwayUnseen(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"told of": false, "the API server went away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, pods := fakes(t)
				task := stepTask("op_a", 1, 1)
				j := asked(e, task, report.VerbReset, time.Now(), time.Time{})
				if err := client.Tracker().Add(j); err != nil {
					t.Fatal(err)
				}
				var down atomic.Bool
				client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) {
					return down.Load(), nil, errors.New("connection refused")
				})
				client.PrependReactor("delete", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
					if away {
						down.Store(true)
						pods.Stop()
					}
					return false, nil, nil
				})
				ran, stop := e.takeAway(t.Context(), task, j)
				if stop != nil || ran != away {
					t.Errorf("may have run: %v, want %v; %+v", ran, away, stop)
				}
			})
		})
	}
}

// TestEvictedUnderAnEarlierLease: what it handed over is told with what came after,
// and that more may have gone is said.
func TestEvictedUnderAnEarlierLease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		generation        int64
		code              string
		drained           []string
		residual, unknown string
	}{
		"one lease":          {1, "", []string{"serve/a"}, "not reset: serve/a", ""},
		"handed over":        {2, codeOwnNode, []string{"serve/a"}, "not reset: serve/a; under an earlier lease: 2 of 3", "beyond what it told: 2 of 3"},
		"nothing since":      {2, codeOwnNode, nil, "not reset: under an earlier lease: 2 of 3", "beyond"},
		"the lease was lost": {2, "lease_lost", []string{"serve/a"}, "not reset: serve/a", "which pods were evicted under an earlier lease"},
	} {
		e, _, _ := fakes(t)
		a := stepTask("op_a", 1, c.generation).Assignment
		a.Steps = []protocol.Step{
			{PlanStep: operation.PlanStep{ID: "s1", Name: "drain_holders"}, Phase: operation.StepSucceeded, ErrorCode: c.code, Detail: "2 of 3 pods gone"},
			{PlanStep: operation.PlanStep{ID: "s2", Name: "reset"}, Phase: operation.StepFailed},
		}
		e.note(a, func(o *outcome) { o.drained, o.device = c.drained, &report.Device{UUID: fakeUUID} })
		var end executor.Ending
		e.observe(t.Context(), a, &end)
		if len(end.Residual) != 1 || !strings.Contains(end.Residual[0].Detail, c.residual) {
			t.Errorf("%s: residual %+v, want %q", name, end.Residual, c.residual)
		}
		if all := strings.Join(end.NotVerified, ";"); !strings.Contains(all, c.unknown) || c.unknown == "" && strings.Contains(all, "earlier lease") {
			t.Errorf("%s: not verified: %s", name, all)
		}
	}
}

// TestNotReset: what is told at the end of a device that was not reset is what kept it,
// also where its host calls it well.
func TestNotReset(t *testing.T) {
	t.Parallel()
	const ok, failed, skipped = operation.StepSucceeded, operation.StepFailed, operation.StepSkipped
	guarded := node.Kept{Pod: "serve/a", Why: "PDB serve/a allows 0 disruptions"}
	for name, c := range map[string]struct {
		drains            bool
		phases            []operation.StepPhase // preflight, drain_holders where it drains, reset, verify
		kept              []node.Kept
		drained           []string
		message, residual string
	}{
		"reset":                    {phases: []operation.StepPhase{ok, ok, ok}, message: "GPU " + fakeUUID + " is ok"},
		"reset after a drain":      {drains: true, phases: []operation.StepPhase{ok, ok, ok, ok}, drained: []string{"serve/a"}, message: "GPU " + fakeUUID + " is ok"},
		"nobody knows":             {phases: []operation.StepPhase{ok, operation.StepUnknown, skipped}, message: "was reset is not known; by its host's last word it is ok"},
		"refused by the preflight": {phases: []operation.StepPhase{failed, skipped, skipped}, message: "was not reset: it did not get past its step preflight; by its host's last word it is ok"},
		"refused by the driver":    {phases: []operation.StepPhase{ok, failed, skipped}, message: "was not reset: it did not get past its step reset; by"},
		"a budget": {drains: true, phases: []operation.StepPhase{ok, failed, skipped, skipped}, kept: []node.Kept{guarded},
			message: "was not reset: the drain of its pods did not end, pod serve/a is left; by its host's last word it is ok", residual: "not evicted: pod serve/a (PDB serve/a allows 0 disruptions)"},
		"one gone, one that stops, one that stays": {drains: true, phases: []operation.StepPhase{ok, failed, skipped, skipped}, drained: []string{"serve/b", "serve/c"},
			kept:     []node.Kept{guarded, {Pod: "serve/c", Stopping: true}},
			message:  "the drain of its pods did not end, 2 of them are left",
			residual: "not evicted: pod serve/a (PDB serve/a allows 0 disruptions); evicted and still there: pod serve/c; pods were evicted and the device was not reset: serve/b, serve/c"},
		"held by what no eviction moves": {drains: true, phases: []operation.StepPhase{ok, failed, skipped, skipped}, message: "was not reset: it did not get past its step drain_holders; by"},
		"drained and not reset": {drains: true, phases: []operation.StepPhase{ok, ok, failed, skipped}, kept: []node.Kept{guarded}, drained: []string{"serve/a"},
			message: "it did not get past its step reset", residual: "pods were evicted and the device was not reset: serve/a"},
	} {
		e, _, _ := fakes(t)
		a := stepTask("op_a", 1, 1).Assignment
		names := []string{"preflight", "reset", "verify"}
		if c.drains {
			names = []string{"preflight", "drain_holders", "reset", "verify"}
		}
		for i, n := range names {
			a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: n, Name: n, Required: true}, Phase: c.phases[i]})
		}
		e.note(a, func(o *outcome) {
			o.drained, o.kept, o.device = c.drained, c.kept, &report.Device{UUID: fakeUUID, Health: report.HealthOK}
		})
		var end executor.Ending
		e.observe(t.Context(), a, &end)
		var residual string
		for _, r := range end.Residual {
			residual += r.Detail
		}
		if !strings.Contains(end.Message, c.message) || residual != c.residual || len(end.Residual) > 1 {
			t.Errorf("%s: message %q, residual %+v", name, end.Message, end.Residual)
		}
	}
}

// TestAdvice: what a person can do about the pods of a device ends with a reset, and
// with nothing that a reset does not take.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"pdb_blocked", "eviction_refused", "eviction_without_effect", "namespace_terminating", "finalizer", "node_unreachable", "node_not_ready", "slow_stop", "stopping", "interrupted",
		"local_data", "unmanaged_pod", "two_pdbs"} {
		o := again(executor.Permanent(code, "x"))
		if !strings.Contains(o.ActionText, "reset again") || strings.Contains(o.ActionText, "drain again") || strings.Contains(o.ActionText, "grace") {
			t.Errorf("%s: %q", code, o.ActionText)
		}
	}
}
