package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// traffic counts evictions.
type traffic struct {
	mu                    sync.Mutex
	calls, cut, now, most int
	accepted              map[string]int
}

// admits makes admission take as long as takes says over the nth eviction, before its answer;
// nil: it allows.
func (b *outcomeBench) admits(takes func(n int) time.Duration, answer func(n int) error) *traffic {
	c := &traffic{accepted: map[string]int{}}
	b.e.send = func(ctx context.Context, ev *policyv1.Eviction) error {
		if len(ev.DeleteOptions.DryRun) > 0 {
			return nil
		}
		c.mu.Lock()
		n := c.calls
		c.calls, c.now = c.calls+1, c.now+1
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			c.now--
			c.mu.Unlock()
		}()
		select {
		case <-ctx.Done():
			c.mu.Lock()
			c.cut++
			c.mu.Unlock()
			return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
		case <-time.After(takes(n)):
		}
		if err := answer(n); err != nil {
			return err
		}
		c.mu.Lock()
		c.accepted[ev.Name]++
		c.mu.Unlock()
		return b.client.CoreV1().Pods(ev.Namespace).Delete(context.Background(), ev.Name, metav1.DeleteOptions{})
	}
	return c
}

func allows(int) error { return nil }

func manyPods(n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, aPod(fmt.Sprintf("p%03d", i)))
	}
	return pods
}

// begin runs the steps before the evictions.
func (b *outcomeBench) begin() {
	b.t.Helper()
	for _, step := range []string{"preflight", "cordon"} {
		if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
			b.t.Fatalf("%s: %+v", step, o)
		}
	}
}

// A webhook that takes seconds over each eviction holds no other up: the drain is no slower
// than one that asks for all at once in the places it has, and a call that only is slow is
// not cut, once that is known.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes  func(n int) time.Duration
		within time.Duration
		cut    int
	}{
		"quick":            {func(int) time.Duration { return 50 * time.Millisecond }, 2 * time.Second, 0},
		"two seconds":      {func(int) time.Duration { return 2 * time.Second }, 9 * time.Second, 0},
		"six to nine":      {func(n int) time.Duration { return time.Duration(6+n%4) * time.Second }, 24 * time.Second, perDrain / 2}, // one of eight seconds may be
		"longer than that": {func(int) time.Duration { return 20 * time.Second }, 80 * time.Second, perDrain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, manyPods(100)...)
				c := b.admits(tt.takes, allows)
				b.begin()
				begun := time.Now()
				if o := b.run(b.e, "evict"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				took := time.Since(begun)
				c.mu.Lock()
				defer c.mu.Unlock()
				if took > tt.within || c.cut > tt.cut || c.calls != 100+c.cut || c.most > perDrainMost || len(c.accepted) != 100 {
					t.Errorf("%s, %d calls, %d cut, %d at once, %d pods", took, c.calls, c.cut, c.most, len(c.accepted))
				}
				for pod, n := range c.accepted {
					if n != 1 {
						t.Errorf("%d evictions of %s were accepted", n, pod)
					}
				}
			})
		})
	}
}

// An API server that says that it is busy is asked for no more at once than it was before.
func TestBusyIsAskedForNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, manyPods(100)...)
		c := b.admits(func(n int) time.Duration {
			if n == 0 {
				return 100 * time.Millisecond
			}
			return 5 * time.Second
		}, func(n int) error {
			if n%10 == 0 {
				return apierrors.NewTooManyRequests("busy", 1)
			}
			return nil
		})
		b.begin()
		if o := b.run(b.e, "evict"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.most > perDrain {
			t.Errorf("%d calls at once", c.most)
		}
	})
}

// A webhook that only is slow is told from one that hangs: by what others took.
func TestSlowIsToldFromHanging(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first time.Duration
		says  string
	}{
		"slow":  {6 * time.Second, "an admission webhook is slow, as others were answered after up to 6s"},
		"hangs": {time.Hour, mayHang},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, manyPods(24)...)
				b.admits(func(n int) time.Duration {
					if n < 8 {
						return tt.first
					}
					return time.Hour
				}, allows)
				b.begin()
				ctx, cancel := b.until(40 * time.Second)
				defer cancel()
				synctest.Wait()
				var at12 []protocol.Blocker
				begun := time.Now()
				b.task.Blocked = func(now []protocol.Blocker) {
					if time.Since(begun) < 12*time.Second {
						at12 = now
					}
				}
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != codeUnanswered {
					t.Errorf("%+v", o)
				}
				if len(at12) < 16 {
					t.Errorf("after 12 s %d of the pods are told to be held", len(at12))
				}
				for _, h := range at12 {
					if h.Code != codeUnanswered || h.Since == nil || !strings.Contains(h.Detail, tt.says) {
						t.Errorf("told %+v", h)
					}
				}
			})
		})
	}
}
