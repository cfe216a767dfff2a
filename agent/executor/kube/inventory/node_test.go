package inventory

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestNodeEvents(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(o *corev1.Node)
		want   []string
		detail string
	}{
		"not ready":          {func(o *corev1.Node) { setReady(o, corev1.ConditionFalse) }, []string{"node.not_ready n"}, `{"reason":"Told","unreachable":false}`},
		"unreachable":        {func(o *corev1.Node) { setReady(o, corev1.ConditionUnknown) }, []string{"node.not_ready n"}, `{"reason":"Told","unreachable":true}`},
		"cordoned by hand":   {func(o *corev1.Node) { o.Spec.Unschedulable = true }, []string{"node.cordoned n"}, `{"owner":"external"}`},
		"cordoned by us":     {func(o *corev1.Node) { o.Spec.Unschedulable = true; o.Annotations["op"] = "op_1" }, []string{"node.cordoned n"}, `{"operation":"op_1","owner":"opsplane"}`},
		"nothing that shows": {func(o *corev1.Node) { o.Labels["other"] = "x"; o.Annotations["y"] = "z" }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{}).start(t)
			w.put(t, w.nodes, aNode("n", "u", 0))
			if diff := cmp.Diff([]string{"node.joined n"}, w.happened()); diff != "" {
				t.Error(diff)
			}
			o := aNode("n", "u", 0)
			tc.change(o)
			w.put(t, w.nodes, o)
			d := w.told()
			var got []string
			for _, e := range d.Events {
				got = append(got, e.Type+" "+e.Subject.Name)
				if string(e.Detail) != tc.detail {
					t.Errorf("detail %s, want %s", e.Detail, tc.detail)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if told := len(d.Objects.Nodes); told != len(tc.want) {
				t.Errorf("the node was told %d times for %d events", told, len(tc.want))
			}
			w.put(t, w.nodes, o)       // the same again
			w.list(t, w.nodes, any(o)) // and in a list that was read again
			w.list(t, w.nodes, o.DeepCopy())
			if got := w.told(); len(got.Events)+len(got.Objects.Nodes)+len(got.Gone) != 0 {
				t.Errorf("what did not change was told again: %+v", got)
			}
		})
	}
}

// TestUncordonTellsWhoLiftedIt: who lifted a cordon is told where that was an
// operation, and is nobody's else; whose cordon it was stands apart.
func TestUncordonTellsWhoLiftedIt(t *testing.T) {
	t.Parallel()
	const byA, byB = `{"owner":"opsplane","operation":"op_a","by":"alice","since":"2026-03-04T05:00:00Z"}`, `{"owner":"opsplane","operation":"op_b","by":"bob","reason":"repaired","since":"2026-03-04T06:00:00Z"}`
	const wasA = `"was":{"by":"alice","operation":"op_a","owner":"opsplane","since":"2026-03-04T05:00:00Z"}`
	cordon, uncordon := cluster.AnnotationCordon, cluster.AnnotationUncordon
	for name, tc := range map[string]struct {
		closed, open map[string]string // the node's annotations
		manager      string            // of the lift's annotation; empty: nobody keeps books
		gap          bool              // the lift was not seen, but a list after it
		want         string
	}{
		"by the operation that placed it": {closed: map[string]string{cordon: byA}, open: map[string]string{uncordon: byA},
			want: `{"by":"alice","operation":"op_a","owner":"opsplane",` + wasA + `}`},
		"by another operation": {closed: map[string]string{cordon: byA}, open: map[string]string{uncordon: byB}, manager: cluster.ManagedBy,
			want: `{"by":"bob","operation":"op_b","owner":"opsplane","reason":"repaired",` + wasA + `}`},
		"by an operation, in a break of the watch": {closed: map[string]string{cordon: byA}, open: map[string]string{uncordon: byB}, gap: true,
			want: `{"by":"bob","operation":"op_b","owner":"opsplane","reason":"repaired",` + wasA + `}`},
		"by a person":              {closed: map[string]string{cordon: byA}, open: map[string]string{cordon: byA}, want: `{"owner":"external",` + wasA + `}`},
		"by a person, of a person": {closed: nil, open: nil, want: `{"owner":"external","was":{"owner":"external"}}`},
		"by a person, of a person, after a lift by an operation": {closed: map[string]string{uncordon: byB}, open: map[string]string{uncordon: byB},
			want: `{"owner":"external","was":{"owner":"external"}}`},
		"an operation took a person's": {closed: nil, open: map[string]string{uncordon: byB},
			want: `{"by":"bob","operation":"op_b","owner":"opsplane","reason":"repaired","was":{"owner":"external"}}`},
		"by a person who says that it was an operation": {closed: map[string]string{cordon: byA}, open: map[string]string{uncordon: byB}, manager: "kubectl-annotate",
			want: `{"owner":"external",` + wasA + `}`},
		"by who writes nonsense": {closed: map[string]string{cordon: byA}, open: map[string]string{uncordon: `{"owner":"me"}`}, want: `{"owner":"external",` + wasA + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{Cordon: nodeop.CordonOf, Lift: nodeop.LiftOf}).start(t)
			closed, open := aNode("n", "u", 0), aNode("n", "u", 0)
			closed.Spec.Unschedulable, closed.Annotations, open.Annotations = true, tc.closed, tc.open
			if tc.manager != "" {
				open.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: tc.manager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + uncordon + `":{}}}}`)}}
			}
			w.put(t, w.nodes, closed)
			w.told()
			if tc.gap {
				w.list(t, w.nodes, open)
			} else {
				w.put(t, w.nodes, open)
			}
			d := w.told()
			if len(d.Events) != 1 || d.Events[0].Type != "node.uncordoned" || string(d.Events[0].Detail) != tc.want {
				t.Errorf("got %+v, want %s", d.Events, tc.want)
				for _, e := range d.Events {
					t.Logf("%s", e.Detail)
				}
			}
			if n := d.Objects.Nodes[0]; !n.Schedulable || n.Cordon != nil {
				t.Errorf("the node is told as %+v", n)
			}
		})
	}
}

// A node that is made again under its old name is another node, whether its
// deletion was seen or fell into a break of the watch.
func TestNodeMadeAgain(t *testing.T) {
	t.Parallel()
	want := []string{"device.joined unknown-new-0", "device.left unknown-old-0", "node.joined n", "node.left n"}
	for name, again := range map[string]func(t *testing.T, w *world){
		"seen": func(t *testing.T, w *world) {
			w.remove(t, w.nodes, aNode("n", "old", 1))
			w.put(t, w.nodes, aNode("n", "new", 1))
		},
		"in a break": func(t *testing.T, w *world) { w.list(t, w.nodes, aNode("n", "new", 1)) },
		"not seen":   func(t *testing.T, w *world) { w.put(t, w.nodes, aNode("n", "new", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{}).start(t)
			w.put(t, w.nodes, aNode("n", "old", 1))
			w.put(t, w.pods, aPod("p", "n", ""))
			w.told()
			again(t, w)
			d := w.told()
			var got []string
			for _, e := range d.Events {
				got = append(got, e.Type+" "+e.Subject.Name)
			}
			if diff := cmp.Diff(want, got, cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{"device/unknown-old-0", "node/old"}, d.Gone); diff != "" {
				t.Error(diff)
			}
			if len(d.Objects.Nodes) != 1 || d.Objects.Nodes[0].UID != "new" || d.Objects.Nodes[0].Pods != 1 || d.Objects.Nodes[0].GPUs != 1 {
				t.Errorf("told %+v", d.Objects.Nodes)
			}
		})
	}
}

func TestFirstListIsNoEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{})
	w.list(t, w.nodes, aNode("a", "a", 2))
	w.list(t, w.deployments, aDeployment("default", "d", 1))
	for _, s := range []store{w.pods, w.sets, w.daemons, w.budgets, w.hosts, w.slices} {
		w.list(t, s)
	}
	w.settle()
	w.begin()
	if got := w.happened(); len(got) != 0 {
		t.Errorf("the first lists were told as %v", got)
	}
	if s := w.snapshot(); len(s.Nodes) != 1 || len(s.Devices) != 2 || len(s.Deployments) != 1 {
		t.Errorf("snapshot %+v", s)
	}
}

func TestNodeAsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{Labels: []string{"team"}}).start(t)
	o := aNode("n", "u", 2)
	for k, v := range map[string]string{"topology.kubernetes.io/zone": "z1", "team": "a", "feature.node.kubernetes.io/cpu-x": "1", "node-role.kubernetes.io/gpu": ""} {
		o.Labels[k] = v
	}
	o.Spec.ProviderID, o.Spec.Unschedulable = "aws:///z1/i-1", true
	added := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	o.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &added}}
	setCondition(o, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure", Message: "full"})
	setCondition(o, corev1.NodeCondition{Type: "StorageReady", Status: corev1.ConditionFalse, Reason: "NoMount"})
	setCondition(o, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse})
	w.put(t, w.nodes, o)
	w.put(t, w.pods, aPod("a", "n", ""), aPod("b", "n", ""))
	ended := aPod("b", "n", "")
	ended.Status.Phase = corev1.PodSucceeded // it holds nothing any more
	w.put(t, w.pods, ended)
	got := w.snapshot().Nodes[0]
	got.Revision = 0
	want := protocol.Node{UID: "u", Name: "n", Ready: true, GPUs: 2, Pods: 1, Cordon: &protocol.Cordon{Owner: "external", Since: added.Time},
		Labels: map[string]string{
			"topology.kubernetes.io/zone": "z1", "team": "a", "nvidia.com/gpu.product": "H100", "node-role.kubernetes.io/gpu": "",
		}, ProviderID: "aws:///z1/i-1", Conditions: []protocol.Condition{
			{Type: "Ready", Status: "True", Reason: "Told"},
			{Type: "DiskPressure", Status: "True", Reason: "KubeletHasDiskPressure", Message: "full"},
			{Type: "StorageReady", Status: "False", Reason: "NoMount"},
		}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
