package node

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/shared/protocol"
)

// TestMeetIsTheDryRun: what an eviction of chosen pods would meet is what the dry run
// of a drain of them says, but for what a cordon alone brings.
func TestMeetIsTheDryRun(t *testing.T) {
	t.Parallel()
	dead := apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": connection refused`))
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	for name, tt := range map[string]struct {
		pod      func(p *corev1.Pod)
		eviction error // the answer to its rehearsal
		left     time.Duration
		code     string // of what is refused for good
		blockers []string
	}{
		"nothing":         {},
		"tolerant":        {pod: tolerant},
		"unmanaged":       {pod: ownedBy(""), code: "unmanaged_pod", blockers: []string{"unmanaged_pod"}},
		"local data":      {pod: emptyDir, code: "local_data", blockers: []string{"local_data"}},
		"a dead webhook":  {eviction: dead, blockers: []string{"eviction_refused"}},
		"a near deadline": {left: 20 * time.Second, blockers: []string{"deadline_short"}},
		"a finalizer":     {pod: func(p *corev1.Pod) { p.Finalizers = []string{"example.com/x"} }, blockers: []string{"finalizer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := aPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
				if tt.pod != nil {
					tt.pod(p)
				}
				client := fake.NewClientset(theNode(false), p)
				permit(client)
				x := NewDrains(openFake(t, client), Options{})
				x.e.send = func(context.Context, *policyv1.Eviction) error { return tt.eviction }
				met, err := x.Meet(t.Context(), theNode(false), []*corev1.Pod{p}, tt.left)
				if err != nil {
					t.Fatal(err)
				}
				shown, err := x.e.previewDrain(t.Context(), protocol.PreviewRequest{Type: "node.drain", TargetName: "node:n", NodeName: "n", DeadlineMS: tt.left.Milliseconds()})
				if err != nil {
					t.Fatal(err)
				}
				shown = slices.DeleteFunc(shown, func(b protocol.Blocker) bool { return b.Code == "tolerates_cordon" })
				if diff := cmp.Diff(shown, met.Blockers); diff != "" {
					t.Errorf("the dry run and Meet differ:\n%s", diff)
				}
				var codes []string
				for _, b := range met.Blockers {
					codes = append(codes, b.Code)
				}
				if met.Code != tt.code || !slices.Equal(codes, tt.blockers) {
					t.Errorf("met %+v", met)
				}
				time.Sleep(2 * linger)
			})
		})
	}
}
