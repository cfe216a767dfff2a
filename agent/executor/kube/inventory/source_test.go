package inventory

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

// paged serves a big list page by page, as an API server does.
type paged struct {
	all  int
	make func(i int) apiruntime.Object
	wrap func(items []apiruntime.Object, m metav1.ListMeta) apiruntime.Object
}

func (p paged) list(_ context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
	from, _ := strconv.Atoi(o.Continue)
	to := min(from+int(o.Limit), p.all)
	var items []apiruntime.Object
	for i := from; i < to; i++ {
		items = append(items, p.make(i))
	}
	m := metav1.ListMeta{ResourceVersion: "1000"}
	if to < p.all {
		m.Continue = strconv.Itoa(to)
	}
	return p.wrap(items, m), nil
}

func nodeList(items []apiruntime.Object, m metav1.ListMeta) apiruntime.Object {
	l := &corev1.NodeList{ListMeta: m}
	for _, o := range items {
		l.Items = append(l.Items, *o.(*corev1.Node))
	}
	return l
}

// However the reflector asks, the server is asked page by page for what is there
// now.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{})
	var asked []string
	list := paged{450, func(i int) apiruntime.Object { return aNode("n"+strconv.Itoa(i), "u"+strconv.Itoa(i), 0) }, nodeList}.list
	s := &source{name: "nodes", to: w.nodes, list: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
		asked = append(asked, fmt.Sprintf("%q %q %d %q", o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue))
		return list(ctx, o)
	}}
	for _, version := range []string{"", "0", "77"} {
		asked = nil
		l, err := s.pages(t.Context(), metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: "NotOlderThan", Limit: 500})
		if err != nil || len(l.(*stripped).Items) != 450 || l.(*stripped).ResourceVersion != "1000" {
			t.Errorf("%v %v", l, err)
		}
		if diff := cmp.Diff([]string{`"" "" 200 ""`, `"" "" 200 "200"`, `"" "" 200 "400"`}, asked); diff != "" {
			t.Error(diff)
		}
	}
}
