package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// slowly makes admission take so long over each eviction, before answer, and tells how
// long each may take.
func (b *outcomeBench) slowly(takes time.Duration, answer error) (limits func() []time.Duration) {
	var mu sync.Mutex
	var list []time.Duration
	b.e.send = func(ctx context.Context, ev *policyv1.Eviction) error {
		if len(ev.DeleteOptions.DryRun) > 0 {
			return nil
		}
		end, _ := ctx.Deadline()
		mu.Lock()
		list = append(list, time.Until(end))
		mu.Unlock()
		select {
		case <-ctx.Done():
			return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
		case <-time.After(takes):
		}
		if answer != nil {
			return answer
		}
		return b.client.CoreV1().Pods(ev.Namespace).Delete(context.Background(), ev.Name, metav1.DeleteOptions{})
	}
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// until gives the operation so much time.
func (b *outcomeBench) until(within time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	end := time.Now().Add(within)
	b.task.Remaining = func() time.Duration { return time.Until(end) }
	return context.WithDeadline(b.t.Context(), end)
}

// An admission webhook may take up to 30 s, which is more than a call is given: an
// eviction that went unanswered is asked for again with more time, and what is waited
// for is shown meanwhile, since the first try.
func TestEvictionsThatTakeLong(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"a default timeout that is failed open": 10 * time.Second, "slow": 12 * time.Second, "as slow as can be": 30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				limits := b.slowly(takes, nil)
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				var shown []protocol.Blocker
				b.task.Blocked = func(now []protocol.Blocker) { shown = append(shown, now...) }
				begun := time.Now()
				if o := b.run(b.e, "evict"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				if got := limits(); len(got) != 2 || got[0] != 8*time.Second || got[1] != cluster.AdmissionMost {
					t.Errorf("the evictions were given %v", got)
				}
				if took := time.Since(begun); took > 9*time.Second+takes {
					t.Errorf("it took %s", took)
				}
				if len(shown) == 0 {
					t.Fatal("nothing was shown")
				}
				for _, h := range shown {
					if h.Code != codeUnanswered || h.Resource != "pod/ns/a" || h.Since == nil || !h.Since.Equal(begun) ||
						!strings.Contains(h.Detail, "was not answered within 8s, and it is not stopping: an admission webhook may hang") {
						t.Errorf("shown %+v", h)
					}
				}
			})
		})
	}
}

// A webhook that denies after longer than a call is given is heard, and named; by an heir
// as well that has so little time left that there is no second call.
func TestEvictionDeniedLate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ takes, left time.Duration }{
		"with time enough":      {25 * time.Second, time.Minute},
		"shortly before an end": {11 * time.Second, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				b.slowly(tt.takes, status(400, `admission webhook "guard.example.com" denied the request: no`))
				for _, step := range []string{"preflight", "cordon"} {
					_ = b.run(b.e, step)
				}
				ctx, cancel := b.until(tt.left)
				defer cancel()
				synctest.Wait() // the cordon's event is told
				heir := b.agent()
				heir.send = b.e.send
				synctest.Wait() // events are told by then
				b.task.Assignment.Generation = 2
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				if o := heir.drain().Steps["evict"].Execute(ctx, b.task); o.Class != operation.OutcomeWaiting || o.ErrorCode != "eviction_refused" || !strings.Contains(o.Detail, "guard.example.com") {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}

// At the deadline a drain whose evictions are never answered knows what became of the
// last one, and says what it waited for.
func TestEvictionsThatAreNeverAnswered(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		within        time.Duration
		lease         time.Duration // ends before, as one that is not renewed; 0: it does not
		class, code   string
		says, advises string
	}{
		"after several": {90 * time.Second, 0, operation.OutcomeWaiting, codeUnanswered, "tries, and it is not stopping: an admission webhook may hang", "every admission webhook that the API server asks about evictions"},
		"after one":     {9 * time.Second, 0, operation.OutcomeWaiting, codeUnanswered, "was not answered within 7s", "every admission webhook that the API server asks about evictions"},
		"in the last":   {15 * time.Second, 0, operation.OutcomeWaiting, codeUnanswered, "was not answered within 13s", "every admission webhook that the API server asks about evictions"},
		"in the first": {time.Hour, 5 * time.Second, operation.OutcomeAmbiguous, "answer_lost",
			"what became of 1 evictions is not known; 0 of 1 pods gone; pod ns/a: its eviction was not answered within 5s: an admission webhook may hang", "every admission webhook that it asks about evictions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				limits := b.slowly(time.Hour, nil)
				for _, step := range []string{"preflight", "cordon"} {
					_ = b.run(b.e, step)
				}
				ctx, cancel := b.until(tt.within)
				defer cancel()
				if tt.lease > 0 {
					ctx, cancel = context.WithTimeout(ctx, tt.lease)
					defer cancel()
				}
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
				if o.Class != tt.class || o.ErrorCode != tt.code || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.Detail, tt.says) || !strings.Contains(o.ActionText, tt.advises) {
					t.Errorf("%+v; the evictions were given %v", o, limits())
				}
			})
		})
	}
}

// A cancel does not wait for an eviction that may take long.
func TestCancelOfAnEvictionThatTakesLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		b.slowly(time.Hour, nil)
		for _, step := range []string{"preflight", "cordon"} {
			_ = b.run(b.e, step)
		}
		cancelled := make(chan struct{})
		b.task.Cancelled = cancelled
		time.AfterFunc(15*time.Second, func() { close(cancelled) })
		begun := time.Now()
		if o := b.run(b.e, "evict"); o.ErrorCode != "cancelled" || time.Since(begun) > 16*time.Second {
			t.Errorf("%+v after %s", o, time.Since(begun))
		}
	})
}

// A drain that may force deletes what no webhook answers for once the window begins.
func TestForceWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		b.task.Assignment.Payload = []byte(`{"on_deadline":"force","force_window_seconds":30}`)
		b.slowly(time.Hour, nil)
		ctx, cancel := b.until(time.Minute)
		defer cancel()
		for _, step := range []string{"preflight", "cordon"} {
			_ = b.run(b.e, step)
		}
		begun := time.Now()
		b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
		if o := b.e.drain().Steps["evict"].Execute(ctx, b.task); o.Class != operation.OutcomeDone || time.Since(begun) > 31*time.Second {
			t.Errorf("%+v after %s", o, time.Since(begun))
		}
	})
}
