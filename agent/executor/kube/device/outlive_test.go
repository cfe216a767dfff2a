package device

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestOutlivesItsPod: a process that holds the device and whose pod does not run any more is
// waited for, as long as the deadline leaves time for the reset, and named.
func TestOutlivesItsPod(t *testing.T) {
	t.Parallel()
	const slow = 40 * time.Second
	process := report.Holder{Kind: report.HolderProcess, Name: "python3", PIDs: []int{7}, Count: 1, Pod: &report.Pod{Namespace: "serve", Name: "was", UID: "uid-was"}}
	for name, c := range map[string]struct {
		ends   time.Duration // 0: it never does
		cancel time.Duration
		class  string
		code   string
		took   [2]time.Duration
		looks  int // at most
	}{
		"it ends":      {slow, 0, operation.OutcomeDone, "", [2]time.Duration{slow, slow + outliveMost + 5*time.Second}, 8},
		"it never":     {0, 0, operation.OutcomePermanent, report.CodeBusy, [2]time.Duration{7 * time.Minute, 8 * time.Minute}, 40},
		"it is called": {0, 10 * time.Second, operation.OutcomeWaiting, "cancelled", [2]time.Duration{10 * time.Second, 11 * time.Second}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				begun := time.Now()
				task := stepTask("op_a", 1, 1)
				task.Remaining = before(begun.Add(10 * time.Minute))
				cancelled := make(chan struct{})
				task.Cancelled = cancelled
				b := new(blockers).of(task)
				answers(t, client, func(int) report.Answer {
					if c.ends > 0 && time.Since(begun) >= c.ends {
						return busy(task)
					}
					return busy(task, process)
				})
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, func() { close(cancelled) })
				}
				o := e.drainHolders(t.Context(), task, target{fakeUUID, fakeNode})
				if took := time.Since(begun); o.Class != c.class || o.ErrorCode != c.code || took < c.took[0] || took > c.took[1] {
					t.Errorf("after %s: %+v", took, o)
				}
				if n := made(client, "jobs", ""); n > c.looks {
					t.Errorf("the host was asked %d times", n)
				}
				const who = "process python3 (PID 7) of pod serve/was, which does not run any more"
				if c.class == operation.OutcomePermanent && (!strings.Contains(o.Detail, who) || strings.Contains(o.ActionText, "cordon") || !strings.HasSuffix(o.ActionText, "then reset again")) {
					t.Errorf("%+v", o)
				}
				if ended := c.class == operation.OutcomeDone; ended == (len(b.now) > 0) {
					t.Errorf("shown in the end: %+v", b.now)
				}
				if !b.has("holder") {
					t.Fatalf("nothing was shown: %+v", b.all)
				}
				for _, x := range b.all {
					if x.Code == "holder" && (!strings.Contains(x.Detail, who) || x.Since == nil || !x.Since.Equal(*b.all[0].Since)) {
						t.Errorf("shown: %+v", x)
					}
				}
			})
		})
	}
}

// TestHeldAgainOnACordonedNode: a node that is cordoned is not to be cordoned.
func TestHeldAgainOnACordonedNode(t *testing.T) {
	t.Parallel()
	for _, cordoned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, client, _ := fakes(t, worker("a"))
			n, err := client.CoreV1().Nodes().Get(t.Context(), fakeNode, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n.Spec.Unschedulable = cordoned
			if _, err := client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			o := e.heldAgain(t.Context(), target{fakeUUID, fakeNode}, &holders{pods: []*corev1.Pod{worker("a")}})
			if !strings.Contains(o.Detail, "serve/a") || strings.Contains(o.ActionText, "cordon the node") == cordoned || !strings.HasSuffix(o.ActionText, "then reset again") {
				t.Errorf("cordoned %t: %+v", cordoned, o)
			}
		})
	}
}
