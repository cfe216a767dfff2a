package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestCordonOf(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	fields := func(manager, set, subresource string) metav1.ManagedFieldsEntry {
		f := &metav1.FieldsV1{}
		if err := f.UnmarshalJSON([]byte(set)); err != nil {
			t.Fatal(err)
		}
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &at, FieldsV1: f, Subresource: subresource}
	}
	const sets, other = `{"f:spec":{"f:unschedulable":{}}}`, `{"f:spec":{"f:taints":{}}}`
	applied := func(manager string, since time.Duration) metav1.ManagedFieldsEntry {
		e, at := fields(manager, sets, ""), metav1.NewTime(at.Add(since))
		e.Operation, e.Time = metav1.ManagedFieldsOperationApply, &at
		return e
	}
	late := at.Add(time.Hour).UTC()
	const notes = `{"f:metadata":{"f:annotations":{"f:opsplane.io/cordon":{}}}}`
	mine := protocol.Cordon{Owner: "opsplane", Operation: "op_1", By: "alice", Since: at.UTC()}
	tests := []struct {
		name       string
		cordoned   bool
		annotation string
		fields     []metav1.ManagedFieldsEntry
		want       *protocol.Cordon
	}{
		{name: "schedulable", annotation: "ours"},
		{name: "ours", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields("kubelet", other, ""), fields(fieldManager, sets, "")}, want: &mine},
		{name: "ours, nobody kept books", cordoned: true, annotation: "ours", want: &mine},
		{name: "a person's over our annotation", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields("kubectl-cordon", sets, "")},
			want: &protocol.Cordon{Owner: "external", By: "kubectl-cordon", Since: at.UTC()}},
		{name: "a person's", cordoned: true, fields: []metav1.ManagedFieldsEntry{fields("kubectl-cordon", sets, "")},
			want: &protocol.Cordon{Owner: "external", By: "kubectl-cordon", Since: at.UTC()}},
		{name: "a status that looks alike", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields("kubelet", sets, "status")}, want: &mine},
		{name: "a person's, who applies what we set", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{applied("alice", time.Hour), fields(fieldManager, sets, "")},
			want: &protocol.Cordon{Owner: "external", By: "alice", Since: late}},
		{name: "a person's, who is told of after us", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields(fieldManager, sets, ""), applied("alice", time.Hour)},
			want: &protocol.Cordon{Owner: "external", By: "alice", Since: late}},
		{name: "a person's, who updated it to what we apply", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{applied(fieldManager, time.Hour), fields("alice", sets, "")},
			want: &protocol.Cordon{Owner: "external", By: "alice", Since: at.UTC()}},
		{name: "of several, the first", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{applied("bob", time.Hour), fields(fieldManager, sets, ""), applied("alice", time.Hour), applied("zoe", 2*time.Hour)},
			want: &protocol.Cordon{Owner: "external", By: "alice", Since: late}},
		{name: "ours, set twice", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{applied(fieldManager, time.Hour), fields(fieldManager, sets, "")}, want: &mine},
		{name: "ours beside a status that looks alike", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields(fieldManager, sets, ""), fields("kubelet", sets, "status")}, want: &mine},
		{name: "ours, and somebody applies the same annotation", cordoned: true, annotation: "ours",
			fields: []metav1.ManagedFieldsEntry{fields("bob", notes, ""), fields(fieldManager, sets, ""), fields(fieldManager, notes, ""), fields("zoe", notes, "")}, want: &mine},
		{name: "ours, and the annotation is another's", cordoned: true, annotation: "ours", fields: []metav1.ManagedFieldsEntry{fields(fieldManager, sets, ""),
			fields("kubectl-annotate", notes, "")}, want: &protocol.Cordon{Owner: "opsplane", Since: at.UTC()}},
		{name: "an annotation past every limit", cordoned: true, annotation: `{"owner":"opsplane","by":"` + strings.Repeat("A", 70_000) + `"}`,
			fields: []metav1.ManagedFieldsEntry{fields(fieldManager, sets, "")}, want: &protocol.Cordon{Owner: "opsplane", Since: at.UTC()}},
		{name: "an annotation with control characters", cordoned: true, annotation: `{"owner":"opsplane","by":"a\u0000b"}`, want: &protocol.Cordon{Owner: "external"}},
		{name: "nobody knows", cordoned: true, want: &protocol.Cordon{Owner: "external"}},
		{name: "an annotation that is none", cordoned: true, annotation: "{", want: &protocol.Cordon{Owner: "external"}},
		{name: "an annotation that claims somebody else", cordoned: true, annotation: `{"owner":"external"}`, want: &protocol.Cordon{Owner: "external"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: tc.fields, Annotations: map[string]string{}}, Spec: corev1.NodeSpec{Unschedulable: tc.cordoned}}
			if tc.annotation == "ours" {
				b, _ := json.Marshal(mine)
				tc.annotation = string(b)
			}
			n.Annotations[cluster.AnnotationCordon] = tc.annotation
			if diff := cmp.Diff(tc.want, CordonOf(n)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := &protocol.Assignment{Operation: "op_1", Run: 1}
	pods := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("00000000-0000-0000-0000-%012d", i)] = "ns/" + strings.Repeat("x", 100)
		}
		return m
	}
	on := func(text string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationDrain: text}}}
	}
	for n, want := range map[int]struct {
		pods  int
		named bool
		cut   bool
	}{0: {0, true, false}, 8: {8, true, false}, 1_000: {1_000, false, false}, 10_000: {0, false, true}} {
		r := record{Operation: "op_1", Run: 1, Began: at, Planned: at, Pods: pods(n)}
		text := r.encode()
		got := readRecord(on(text), a)
		if len(text) > maxRecord || got == nil || len(got.Pods) != want.pods || got.Cut != want.cut || n == 8 && got.Pods["00000000-0000-0000-0000-000000000001"] == "" {
			t.Errorf("%d pods: %d bytes, %d pods back, cut %t", n, len(text), len(got.Pods), got.Cut)
		}
		if len(r.Pods) != n {
			t.Errorf("encoding changed the record to %d pods", len(r.Pods))
		}
	}
	good := record{Operation: "op_1", Run: 1, Planned: at}.encode()
	for name, n := range map[string]*corev1.Node{"none": on(""), "no JSON": on("{"), "another operation's": on(strings.Replace(good, "op_1", "op_2", 1)),
		"another run's": on(strings.Replace(good, `"run":1`, `"run":2`, 1)), "never planned": on(record{Operation: "op_1", Run: 1}.encode())} {
		if got := readRecord(n, a); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDetailsAreBounded(t *testing.T) {
	t.Parallel()
	d := &details{}
	for i := range 2_000 {
		o := podOutcome{Pod: fmt.Sprintf("ns/pod-%04d", i), UID: strings.Repeat("u", 36), Outcome: outcomeGone}
		if i%100 == 99 {
			o.Outcome, o.Detail = outcomeLeft, "why"
		}
		d.Pods = append(d.Pods, o)
	}
	b := d.encode()
	var back details
	if err := json.Unmarshal(b, &back); err != nil || len(b) > protocol.MaxDetailsBytes {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	left := 0
	for _, o := range back.Pods {
		if o.Outcome == outcomeLeft {
			left++
		}
	}
	if left != 20 || back.Omitted != 2_000-len(back.Pods) || len(back.Pods) < 300 {
		t.Errorf("%d pods, %d left, %d omitted", len(back.Pods), left, back.Omitted)
	}
}

func TestPatchBody(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "42"}}
	b, err := lift().body(n, cluster.Mark{Operation: "op_1", Run: 1, Generation: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"annotations":{"opsplane.io/cordon":null,"opsplane.io/drain":null,"opsplane.io/mark":"op_1/1/2"},"resourceVersion":"42"},"spec":{"unschedulable":null}}`
	if string(b) != want {
		t.Errorf("%s", b)
	}
	b, _ = change{}.body(n, cluster.Mark{Operation: "op_1", Run: 1, Generation: 2})
	if want := `{"metadata":{"annotations":{"opsplane.io/mark":"op_1/1/2"},"resourceVersion":"42"}}`; string(b) != want {
		t.Errorf("%s", b)
	}
}

// The GPUs that a drain takes out of service are those of the inventory: cards, not
// the shares that time slicing offers of them.
func TestGPUs(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "n", Labels: map[string]string{"nvidia.com/gpu.count": "8"}}, Status: corev1.NodeStatus{Capacity: corev1.ResourceList{}}}
	for name, q := range map[corev1.ResourceName]string{"nvidia.com/gpu": "32", "cpu": "64", "nvidia.com/mig-1g.5gb": "7"} {
		n.Status.Capacity[name] = resource.MustParse(q)
	}
	counted := map[string]int{"nothing but the node": 8, "an inventory that has counted": 6, "one that has not seen the node": 8}
	describes := map[string]func(*corev1.Node, int) protocol.Node{
		"an inventory that has counted":  func(*corev1.Node, int) protocol.Node { return protocol.Node{GPUs: 6} },
		"one that has not seen the node": func(*corev1.Node, int) protocol.Node { return protocol.Node{} },
	}
	for name, want := range counted {
		e := newDrainer(&cluster.Cluster{Now: time.Now}, Options{Describe: describes[name]})
		rec := &record{Planned: time.Now()} // of an agent that did not count them
		if got := e.details(nil, rec, &reading{node: n, at: time.Now()}, lease("op_1")).GPUs; got == nil || *got != want {
			t.Errorf("by %s: %v GPUs, not %d", name, got, want)
		}
		if got := e.newRecord(lease("op_1"), time.Now(), n, nil).GPUs; got == nil || *got != want {
			t.Errorf("by %s: the record has %v GPUs, not %d", name, got, want)
		}
	}
}
