package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// hangs makes the first patches of the node hang and come to nothing, as a webhook
// does that never answers.
func (b *outcomeBench) hangs(first int, answer error) {
	b.e.c.Client = clustertest.BeforeNodes(b.client, func(_ context.Context, verb string) error {
		if verb != "patch" || first == 0 {
			return nil
		}
		first--
		time.Sleep(8 * time.Second)
		return answer
	})
}

// What a cordon meets is shown from the first try on, since that one began, and taken
// back when the cordon is through. The drain counts from the try that came through.
func TestCordonThatHangs(t *testing.T) {
	t.Parallel()
	lost := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	for name, tt := range map[string]struct {
		answer error
		code   string
		rule   string
		says   string
		class  string // of each try; "": the patch is tried again within it
	}{
		"an answer that is lost": {lost, "api_error", "api_server", "a webhook may hang", ""},
		"a server that is busy":  {status(429, "busy"), "throttled", "api_server", "too busy for the cordon", ""},
		"a webhook that is away": {status(500, `failed calling webhook "guard.example.com": deadline exceeded`), "admission_refused", "webhook/guard.example.com", "deadline exceeded", operation.OutcomeWaiting},
		"an error of the server": {status(500, "etcd is sad"), "api_error", "api_server", "etcd is sad", operation.OutcomeTransient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				if o := b.run(b.e, "preflight"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				b.hangs(3, tt.answer)
				begun, told := time.Now().UTC(), [][]protocol.Blocker{}
				b.task.Blocked = func(now []protocol.Blocker) { told = append(told, now) }
				o := b.run(b.e, "cordon")
				for o.Class == tt.class {
					time.Sleep(o.After)
					if o.Class == operation.OutcomeTransient {
						b.task.Attempt++
					}
					o = b.run(b.e, "cordon")
				}
				if o.Class != operation.OutcomeDone || len(told) != 4 || len(told[3]) != 0 {
					t.Fatalf("%+v, shown %+v", o, told)
				}
				if first := told[0][0]; first.Code != tt.code || first.Rule != tt.rule || first.Resource != "node/n" || !strings.Contains(first.Detail, tt.says) || first.Since == nil || !first.Since.Equal(begun) {
					t.Errorf("shown first %+v", first)
				}
				n, err := b.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				since := CordonOf(n).Since
				if since.Sub(begun) < 24*time.Second {
					t.Errorf("the cordon is said to be there since %s, asked for at %s", since, begun)
				}
				if _, d := b.observe(b.e); d.Planned == nil || !d.Planned.Equal(since) {
					t.Errorf("the drain counts from %v, not from %s", d.Planned, since)
				}
				if rec := readAccount(o.Detail); rec == nil || !rec.Planned.Equal(since) {
					t.Errorf("the journal keeps %q", o.Detail)
				}
			})
		})
	}
}

// An admission webhook may take up to 30 s over a node, which is more than a call is
// given: the next try outlasts it.
func TestCordonBehindSlowAdmission(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{10 * time.Second, 30 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				if o := b.run(b.e, "preflight"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				var limits []time.Duration
				b.e.c.Client = clustertest.BeforeNodes(b.client, func(ctx context.Context, verb string) error {
					if verb != "patch" {
						return nil
					}
					end, _ := ctx.Deadline()
					limits = append(limits, time.Until(end))
					select {
					case <-ctx.Done():
						return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
					case <-time.After(takes):
						return nil
					}
				})
				begun, told := time.Now(), []protocol.Blocker(nil)
				b.task.Blocked = func(now []protocol.Blocker) { told = append(told, now...) }
				if o := b.run(b.e, "cordon"); o.Class != operation.OutcomeDone {
					t.Fatalf("%+v", o)
				}
				if want := []time.Duration{8 * time.Second, cluster.AdmissionMost}; !slices.Equal(limits, want) {
					t.Errorf("the tries were given %v, not %v", limits, want)
				}
				if len(told) != 1 || told[0].Code != "api_error" || told[0].Since == nil || !told[0].Since.Equal(begun) {
					t.Errorf("shown %+v", told)
				}
			})
		})
	}
}

// A cordon that hangs until the deadline leaves one thing open, whether it came
// through: no eviction was issued.
func TestCordonThatHangsToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		if o := b.run(b.e, "preflight"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		b.hangs(-1, apierrors.NewTimeoutError("request did not complete", 0))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		b.task.Step = executor.StepNamed(b.task.Assignment, "cordon")
		o := b.e.drain().Steps["cordon"].Execute(ctx, b.task)
		if o.Class != operation.OutcomeAmbiguous || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.ActionText, "every webhook that it asks about node n") {
			t.Errorf("%+v", o)
		}
		b.task.Assignment.Steps[1].Phase = operation.StepUnknown
		for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
			end, d := b.observe(e)
			if end.Message != "node is schedulable, no pod was evicted: it did not get past its step cordon" {
				t.Errorf("%s tells %q", who, end.Message)
			}
			if open := strings.Join(end.NotVerified, "\n"); d.GPUs != nil || d.GPUHours != nil || !strings.Contains(open, "how many GPUs were out of service, and for how long: whether the cordon came through is not known") {
				t.Errorf("%s tells %s, not verified %q", who, end.Details, open)
			}
		}
	})
}

// Pods that had run to their end when the plan was made are no planned ones, whoever
// counts them.
func TestFinishedPodsAreNotCountedByAnHeir(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"), aPod("done", phase("Succeeded")))
		if o := b.run(b.e, "preflight"); o.Detail != "1 pods to evict from node n" {
			t.Fatalf("%+v", o)
		}
		if o := b.run(b.e, "cordon"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		for _, name := range []string{"a", "done"} {
			if err := b.client.CoreV1().Pods("ns").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // the cordon's event is told
		b.task.Assignment.Generation = 2
		reader, heir := b.agent(), b.agent()
		if f := reader.probeGone(t.Context(), b.task); f.Detail != "1 of 1 pods gone" {
			t.Errorf("probed %+v", f)
		}
		for _, step := range []string{"evict", "wait", "confirm"} {
			if o := b.run(heir, step); o.Class != operation.OutcomeDone || !strings.HasPrefix(o.Detail, "1 of 1 pods gone") {
				t.Errorf("%s: %+v", step, o)
			}
		}
		for who, e := range map[string]*drainer{"the heir": heir, "one that reads the record": reader} {
			end, d := b.observe(e)
			if diff := cmp.Diff(counts{Planned: 1, Gone: 1}, d.Counts); diff != "" || !strings.Contains(end.Message, "1 of 1 planned pods gone") {
				t.Errorf("%s tells %q: %s", who, end.Message, diff)
			}
		}
	})
}

// A later plan adds its pods to that of an earlier lease, with all that is kept of
// them, and changes nothing of the others.
func TestRecordTakesInALaterOne(t *testing.T) {
	t.Parallel()
	gpus := 8
	r := &record{Pods: map[string]string{"a": "ns/a"}}
	r.add(&record{GPUs: &gpus, Pods: map[string]string{"a": "ns/a", "b": "ns/b", "c": "ns/c"}, NoGrace: []string{"a", "b"}, Finished: []string{"a", "c"}})
	want := &record{GPUs: &gpus, Pods: map[string]string{"a": "ns/a", "b": "ns/b", "c": "ns/c"}, NoGrace: []string{"b"}, Finished: []string{"c"}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
