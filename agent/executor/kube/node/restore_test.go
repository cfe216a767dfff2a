package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// versioned has the fake take patches of the node as an API server does: under the
// resourceVersion that they name, which it then moves on, with what admission makes of
// them, and dry runs without keeping them.
func (b *outcomeBench) versioned(admission ...func(n *corev1.Node)) {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	b.client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
		o, err := b.client.Tracker().Get(nodes, "", "n")
		if err != nil {
			return true, nil, err
		}
		n, err := patched(o.(*corev1.Node), a.(ktesting.PatchAction).GetPatch())
		if err != nil {
			return true, nil, err
		}
		for _, mutate := range admission {
			mutate(n)
		}
		if dryRuns(a) {
			return true, n, nil
		}
		version, err := strconv.Atoi(cmp.Or(n.ResourceVersion, "0"))
		if err != nil {
			return true, nil, err
		}
		n.ResourceVersion = strconv.Itoa(version + 1)
		return true, n, b.client.Tracker().Update(nodes, n, "", metav1.UpdateOptions{FieldManager: fieldManager})
	})
}

// patched is the node as a patch of the agent's makes it.
func patched(on *corev1.Node, patch []byte) (*corev1.Node, error) {
	var set struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]*string
		}
		Spec *struct{ Unschedulable *bool }
	}
	if err := json.Unmarshal(patch, &set); err != nil {
		return nil, err
	}
	if on.ResourceVersion != set.Metadata.ResourceVersion {
		return nil, apierrors.NewConflict(nodeResource, "n", errors.New("the object has been modified"))
	}
	n := on.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	for k, v := range set.Metadata.Annotations {
		delete(n.Annotations, k)
		if v != nil {
			n.Annotations[k] = *v
		}
	}
	if set.Spec != nil {
		n.Spec.Unschedulable = set.Spec.Unschedulable != nil && *set.Spec.Unschedulable
	}
	return n, nil
}

// A cordon whose holder died may be with a webhook yet. Who takes over says that no cordon
// of the operation is on the node only once that one cannot land any more.
func TestRestoreOutlastsACordonThatIsHeld(t *testing.T) {
	t.Parallel()
	mark := func(a *protocol.Assignment) string { return markOf(a).String() }
	for name, tt := range map[string]struct {
		generation int64
		prepare    func(n *corev1.Node, a *protocol.Assignment) // once the cordon is on its way
		lands      string                                       // the held cordon, before this call of the restore: "patch"; "": after all
		deny       error                                        // to each patch of the restore
		probed     operation.StepPhase
		patches    int    // of the restore
		class      string // of the restore
		taken      bool   // the held cordon
	}{
		"after it":               {2, nil, "", nil, operation.StepPending, 1, operation.OutcomeDone, false},
		"meanwhile":              {2, nil, "patch", nil, operation.StepPending, 3, operation.OutcomeDone, true},
		"by its own lease alone": {1, nil, "none", nil, operation.StepSucceeded, 0, operation.OutcomeDone, false},
		"another lease's mark": {3, func(n *corev1.Node, a *protocol.Assignment) {
			a.Generation = 2
			n.Annotations = map[string]string{cluster.AnnotationMark: mark(a)}
		}, "", nil, operation.StepSucceeded, 0, operation.OutcomeDone, false},
		"an earlier run's mark": {3, func(n *corev1.Node, a *protocol.Assignment) {
			a.Run = 0
			n.Annotations = map[string]string{cluster.AnnotationMark: mark(a)}
		}, "", nil, operation.StepPending, 1, operation.OutcomeDone, false},
		"a person's cordon":   {2, func(n *corev1.Node, _ *protocol.Assignment) { n.Spec.Unschedulable = true }, "", nil, operation.StepSucceeded, 0, operation.OutcomeDone, false},
		"the mark is refused": {2, nil, "none", status(400, `admission webhook "guard.example.com" denied the request: no`), operation.StepPending, 1, operation.OutcomePermanent, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t)
				b.versioned()
				n, err := b.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				n.ResourceVersion = "1"
				held, err := b.e.toCordon(b.task.Assignment, n, &placing{}).set.body(n, markOf(b.task.Assignment))
				if err != nil {
					t.Fatal(err)
				}
				if tt.prepare != nil {
					a := *b.task.Assignment
					tt.prepare(n, &a)
					n.ResourceVersion = "2"
				}
				if _, err = b.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				taken := false
				land := func() {
					_, err := b.client.CoreV1().Nodes().Patch(t.Context(), "n", types.MergePatchType, held, metav1.PatchOptions{})
					if taken = err == nil; err != nil && !apierrors.IsConflict(err) {
						t.Error(err)
					}
				}
				patches := 0
				b.e.c.Client = clustertest.BeforeNodes(b.client, func(_ context.Context, verb string) error {
					if verb != "patch" {
						return nil
					}
					if patches++; patches == 1 && tt.lands == verb {
						land()
					}
					return tt.deny
				})
				synctest.Wait() // events are told by then
				b.task.Assignment.Generation = tt.generation
				b.task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Cleanup: true}}
				restore := b.e.drain().Steps["restore"]
				if f := restore.Probe(t.Context(), b.task); f.Phase != tt.probed {
					t.Errorf("found before %+v", f)
				}
				if o := restore.Execute(t.Context(), b.task); o.Class != tt.class || patches != tt.patches {
					t.Errorf("%d patches: %+v", patches, o)
				}
				if f := restore.Probe(t.Context(), b.task); tt.class == operation.OutcomeDone && f.Phase != operation.StepSucceeded {
					t.Errorf("found after %+v", f)
				}
				if tt.lands == "" {
					land()
				}
				now, err := b.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if taken != tt.taken || ours(CordonOf(now), "op_1") {
					t.Errorf("the held cordon was taken: %t; the node is %+v, annotations %q", taken, now.Spec, slices.Sorted(maps.Values(now.Annotations)))
				}
			})
		})
	}
}
