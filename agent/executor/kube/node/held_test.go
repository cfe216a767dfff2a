package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
)

// What is known of a budget may be old: while the API server is away that is what is
// said, and once it answers it decides. Other evictions are blamed where there are
// some.
func TestBudgetThatIsOld(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		allowed int32
		taken   bool // what it allows
		old     bool // the watch is broken
		away    bool
		force   bool
		says    string // of the hold; empty: the API server is asked
		stage   int
	}{
		"known":                             {says: "so it never allows any"},
		"known, and taken by others":        {allowed: 1, taken: true, says: "which other evictions take"},
		"free":                              {allowed: 1},
		"old, and the server is away":       {old: true, away: true, says: "when that was heard last"},
		"silent, and the server is away":    {away: true, says: "when that was heard last"},
		"old, and the server answers":       {old: true},
		"old, in the force window":          {old: true, force: true, stage: withGrace},
		"old, allowed, and taken by others": {allowed: 1, taken: true, old: true, says: "which other evictions take"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				expected := int32(1)
				if tt.allowed > 0 {
					expected = 2
				}
				b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
					Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: tt.allowed, CurrentHealthy: expected, DesiredHealthy: 1, ExpectedPods: expected}}
				f := follow.New(follow.Source{What: "the disruption budgets", Read: func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
					Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, errors.New("away") }}, takeBudget)
				f.Seed([]runtime.Object{b}, "1")
				if tt.old {
					ctx, cancel := context.WithCancel(t.Context())
					go f.Run(ctx)
					synctest.Wait()
					cancel()
					synctest.Wait()
				}
				p := &planned{name: "ns/a", pod: aPod("a")}
				l := &look{force: map[*planned]int{}, next: heartbeat, waiting: []*planned{p}, away: tt.away}
				d := &drive{drainer: newDrainer(&cluster.Cluster{Now: time.Now}, Options{}), s: &session{node: theNode(true), plan: map[types.UID]*planned{}}, budgets: f,
					t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Minute }}}
				if tt.force {
					d.p.OnDeadline, d.p.ForceWindowSeconds = onDeadlineForce, 3600
				}
				if tt.taken && !d.allowances.take(time.Now(), []*budget{newBudget(b)}, p.pod) {
					t.Fatal("not taken")
				}
				if stop := d.lookRules(l); stop != nil {
					t.Fatal(stop)
				}
				said := ""
				for _, h := range l.holds {
					said += h.why
				}
				if !strings.Contains(said, tt.says) || strings.Contains(said, "other evictions") != strings.Contains(tt.says, "other evictions") || (len(l.ready) == 1) != (tt.says == "") || l.force[p] != tt.stage {
					t.Errorf("held by %q, asked for %d at stage %d", said, len(l.ready), l.force[p])
				}
			})
		})
	}
}

// What is waited for reads as a sentence, whatever it begins with.
func TestWhatIsWaitedForReads(t *testing.T) {
	t.Parallel()
	p := &planned{name: "ns/a"}
	for why, want := range map[string]string{
		"pod ns/a is selected by two disruption budgets": "0 of 1 pods gone, waiting for pod ns/a, which is selected by two disruption budgets",
		"pod ns/a: its finalizer x is not removed":       "0 of 1 pods gone, waiting for pod ns/a: its finalizer x is not removed",
		"PDB ns/b allows 0 disruptions":                  "0 of 1 pods gone, waiting for pod ns/a: PDB ns/b allows 0 disruptions",
	} {
		d := &drive{}
		l := &look{total: 1}
		l.hold("x", "pod/ns/a", "", why, p)
		if got := d.message(l); got != want {
			t.Errorf("%s", got)
		}
	}
	l := &look{total: 1}
	l.hold("node_unreachable", "node/n", "", "node n is unreachable", nil)
	if got := (&drive{}).message(l); got != "0 of 1 pods gone, waiting: node n is unreachable" {
		t.Errorf("%s", got)
	}
}

// Of a node without pods nothing is verified about pods that were never there.
func TestNothingToEvict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t)
		for _, step := range []string{"preflight", "cordon", "evict", "wait", "confirm"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		if end, _ := b.observe(b.e); !slices.Contains(end.Verified, "there were no pods to evict") || strings.Contains(strings.Join(end.Verified, "\n"), "0 planned") {
			t.Errorf("verified %q", end.Verified)
		}
	})
}
