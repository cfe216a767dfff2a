package inventory

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// An API server that goes away is told once, however many requests fail, and
// once when it is back.
func TestHealthIsToldOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := newClock()
	h := newHealth(slog.New(slog.NewTextHandler(&log, nil)), c.now)
	h.expect("nodes")
	if err := h.err(); err == nil || !strings.Contains(err.Error(), "not listed yet: nodes") {
		t.Errorf("healthy before anything was listed: %v", err)
	}
	h.listed("nodes")
	if err := h.err(); err != nil {
		t.Error(err)
	}
	refused := errors.New("connection refused")
	for range 5 {
		h.heard("nodes", verbWatch, refused)
		h.heard("pods", verbWatch, refused)
		c.pass(time.Second)
	}
	if err := h.err(); err == nil || !strings.Contains(err.Error(), "watch nodes, failing since 2026-03-04T05:06:07Z: connection refused") {
		t.Errorf("healthy without a server: %v", err)
	}
	h.heard("nodes", verbWatch, nil)
	if h.err() == nil {
		t.Error("healthy while pods are not watched")
	}
	h.heard("pods", verbWatch, nil)
	if err := h.err(); err != nil {
		t.Error(err)
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("%d lines were logged:\n%s", got, log.String())
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	h.heard("pods", verbWatch, denied) // as an API server does that has just started
	c.pass(time.Second)
	h.heard("pods", verbWatch, refused)
	c.pass(executor.DeniedFor)
	h.heard("pods", verbWatch, denied)
	if strings.Contains(log.String(), "lacks a right") {
		t.Errorf("a right that was missing for a moment was logged:\n%s", log.String())
	}
	for range 3 { // the list goes well each time
		c.pass(executor.DeniedFor)
		h.heard("pods", verbList, nil)
		h.heard("pods", verbWatch, denied)
	}
	if err := h.err(); err == nil || !strings.Contains(err.Error(), "lacks the right to watch pods") {
		t.Errorf("the missing right is not named: %v", err)
	}
	if got := strings.Count(log.String(), "lacks a right"); got != 1 {
		t.Errorf("the missing right was logged %d times", got)
	}
}

// fakes are clients without a server: what is created in them is watched.
func fakes(t *testing.T, served []*metav1.APIResourceList, objects ...runtime.Object) (*cluster.Cluster, *fake.Clientset, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	client := fake.NewClientset(objects...)
	client.Resources = served
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		customs[0].versions[0]: "LeaderWorkerSetList", customs[1].versions[0]: "DynamoGraphDeploymentList", customs[1].versions[1]: "DynamoGraphDeploymentList",
	})
	return &cluster.Cluster{Client: client, Dynamic: dynamic, Namespace: "opsplane", Log: slog.New(slog.DiscardHandler), Now: time.Now}, client, dynamic
}

func opened(t *testing.T, o Options) *Inventory {
	t.Helper()
	o.Cordon = external
	i, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{Cordon: external}); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("no cluster: %v", err)
	}
	c, _, _ := fakes(t, nil)
	if _, err := Open(Options{Cluster: c}); err == nil || !strings.Contains(err.Error(), "cordon") {
		t.Errorf("nobody tells whose a cordon is: %v", err)
	}
}

// From clients to what is told: first lists, snapshot, watch.
func TestFromClients(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lws := []*metav1.APIResourceList{{GroupVersion: "leaderworkerset.x-k8s.io/v1", APIResources: []metav1.APIResource{{Name: "leaderworkersets"}}},
		{GroupVersion: "nvidia.com/v1", APIResources: []metav1.APIResource{{Name: "clusterpolicies"}}}}
	c, client, dynamic := fakes(t, lws, aNode("n", "u", 2), aDeployment("default", "d", 1))
	i := opened(t, Options{Cluster: c})
	s, err := i.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 1 || len(s.Devices) != 2 || len(s.Deployments) != 1 {
		t.Errorf("snapshot %+v", s)
	}
	if err := i.Healthy(); err != nil {
		t.Error(err)
	}
	told := make(chan executor.Delta, 100)
	watch, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- i.Watch(watch, func(d executor.Delta) { told <- d }) }()
	await := func(want ...string) {
		t.Helper()
		seen := map[string]bool{}
		for len(seen) < len(want) {
			select {
			case d := <-told:
				for _, e := range d.Events {
					if !contains(want, e.Type+" "+e.Subject.Name) || seen[e.Type+" "+e.Subject.Name] {
						t.Fatalf("told %s of %s, awaited %v", e.Type, e.Subject.Name, want)
					}
					seen[e.Type+" "+e.Subject.Name] = true
				}
			case <-ctx.Done():
				t.Fatalf("awaited %v, heard %v", want, seen)
			}
		}
	}
	o := aNode("n", "u", 2)
	o.Spec.Unschedulable = true
	if _, err := client.CoreV1().Nodes().Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("node.cordoned n")
	if _, err := dynamic.Resource(customs[0].versions[0]).Namespace("default").Create(ctx, parse(t, format(aWorkerSet, "2", "False", "t0")), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("deployment.created default/llm")
	if err := i.Watch(ctx, func(executor.Delta) {}); err == nil || !strings.Contains(err.Error(), "being watched") {
		t.Errorf("two Watches at once: %v", err)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the Watch ended with %v", err)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	go func() { _ = i.Watch(ctx, func(d executor.Delta) { told <- d }) }()
	await("node.left n", "device.left unknown-u-0", "device.left unknown-u-1")
}

// A right that is missing is named, by Healthy and by Snapshot: a snapshot
// without a part would make the plane forget it.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	c, client, _ := fakes(t, nil, aNode("n", "u", 0))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no rule"))
	})
	i := opened(t, Options{Cluster: c})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i.Healthy() == nil || !strings.Contains(i.Healthy().Error(), "lacks the right to list pods") {
		select {
		case <-ctx.Done():
			t.Fatalf("healthy: %v", i.Healthy())
		case <-time.After(10 * time.Millisecond):
		}
	}
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	if _, err := i.Snapshot(short); err == nil || !strings.Contains(err.Error(), "lacks the right to list pods") {
		t.Errorf("snapshot: %v", err)
	}
}

// An API that appears, or goes, is noticed.
func TestOptionalAPI(t *testing.T) {
	t.Parallel()
	c, client, dynamic := fakes(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := dynamic.Resource(customs[0].versions[0]).Namespace("default").Create(ctx, parse(t, format(aWorkerSet, "2", "False", "t0")), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	x := optionalNamed(t, c, "leaderworkersets.leaderworkerset.x-k8s.io")
	for _, step := range []struct {
		served []*metav1.APIResourceList
		want   bool
	}{
		{nil, false},
		{[]*metav1.APIResourceList{{GroupVersion: "leaderworkerset.x-k8s.io/v1", APIResources: []metav1.APIResource{{Name: "others"}}}}, false},
		{[]*metav1.APIResourceList{{GroupVersion: "leaderworkerset.x-k8s.io/v1", APIResources: []metav1.APIResource{{Name: "leaderworkersets"}}}}, true},
	} {
		client.Resources = step.served
		served, known := x.served(client)
		if v := x.choose(served, schema.GroupVersionResource{}, true); !known || (v.Resource != "") != step.want {
			t.Errorf("served %v: %v %v", step.served, v, known)
		}
	}
	away := fake.NewClientset()
	away.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	if _, known := x.served(away); known {
		t.Error("a server that does not answer is taken for one that does not serve it")
	}
}

func optionalNamed(t *testing.T, c *cluster.Cluster, name string) *optional {
	t.Helper()
	i := &Inventory{model: newModel(&Options{}, nil)}
	for _, x := range i.optional(&Options{Cluster: c}, c.Client, func(string) func() { return func() {} }) {
		if x.name == name {
			return x
		}
	}
	t.Fatalf("no optional API %s", name)
	return nil
}

func TestRights(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range Rights {
		key := strings.Join([]string{r.Verb, r.Group, r.Resource, r.Namespace}, " ")
		if seen[key] || r.Why == "" || r.Verb != "list" && r.Verb != "watch" || r.Resource == "secrets" {
			t.Errorf("right %+v", r)
		}
		seen[key] = true
	}
	if diff := cmp.Diff(20, len(Rights)); diff != "" {
		t.Error(diff)
	}
}
