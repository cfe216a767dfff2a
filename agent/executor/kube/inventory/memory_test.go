//go:build !race

// The race detector keeps memory of its own.

package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// A large cluster: 5,000 nodes with 8 GPUs and 8 pods each.
const (
	bigNodes   = 5_000
	bigPerNode = 8
)

func bigNode(i int) *corev1.Node {
	o := aNode("gpu-node-"+strconv.Itoa(i), fmt.Sprintf("%08d-1111-2222-3333-444444444444", i), bigPerNode)
	for k := range 80 { // feature discovery is talkative
		o.Labels["feature.node.kubernetes.io/cpu-cpuid.FEATURE"+strconv.Itoa(k)] = "true"
	}
	for k, v := range map[string]string{"topology.kubernetes.io/zone": "zone-" + strconv.Itoa(i%3), "topology.kubernetes.io/rack": "rack-" + strconv.Itoa(i/16),
		"node.kubernetes.io/instance-type": "p5.48xlarge", "kubernetes.io/hostname": o.Name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"} {
		o.Labels[k] = v
	}
	o.Spec.ProviderID = "aws:///zone-1/i-" + strconv.Itoa(i)
	for k := range 20 {
		o.Status.Images = append(o.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064d", k, i), "image:" + strconv.Itoa(k)}})
	}
	return o
}

func bigPod(node, i int) *corev1.Pod {
	n := node*bigPerNode + i
	app := "model-" + strconv.Itoa(n%400)
	o := aPod(fmt.Sprintf("%s-7d9f8b6c5d-%05d", app, n), "gpu-node-"+strconv.Itoa(node), app)
	o.Namespace, o.UID = "team-"+strconv.Itoa(n%40), o.UID+"-0123-4567-89ab-cdef"
	o.Labels["app"], o.Labels["team"], o.Labels["version"] = app, "t"+strconv.Itoa(n%40), "v1"
	for k := range 8 {
		o.Spec.Containers = append(o.Spec.Containers, corev1.Container{Name: "c" + strconv.Itoa(k), Image: "registry.example.com/x:" + strconv.Itoa(k), Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 100)}}})
	}
	o.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c0", RestartCount: int32(n % 7)}}
	return o
}

func bigReport(node int) *corev1.ConfigMap {
	name := "gpu-node-" + strconv.Itoa(node)
	h := report.Host{Version: report.Version, Node: name, Source: report.SourceRecorded, At: newClock().now()}
	for i := range bigPerNode {
		n := node*bigPerNode + i
		h.Devices = append(h.Devices, report.Device{UUID: uuid(n), PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i), Index: i, Product: "NVIDIA H100 80GB HBM3", Health: "ok",
			Holders: []report.Holder{{Kind: report.HolderProcess, Pod: &report.Pod{UID: "x"}}},
			XIDs:    []report.XID{{Code: 63, Class: report.ClassHardware, Count: 1, Text: "row remapped", Last: time.Unix(1_700_000_000, 0)}}})
	}
	b, _ := json.Marshal(h) // plain values always marshal
	o := &corev1.ConfigMap{ObjectMeta: named("opsplane", report.Name(name), "uid-"+name), Data: map[string]string{report.Key: string(b)}}
	o.Labels[report.Label] = report.Hash(name)
	return o
}

func podList(items []apiruntime.Object, m metav1.ListMeta) apiruntime.Object {
	l := &corev1.PodList{ListMeta: m}
	for _, o := range items {
		l.Items = append(l.Items, *o.(*corev1.Pod))
	}
	return l
}

func mapList(items []apiruntime.Object, m metav1.ListMeta) apiruntime.Object {
	l := &corev1.ConfigMapList{ListMeta: m}
	for _, o := range items {
		l.Items = append(l.Items, *o.(*corev1.ConfigMap))
	}
	return l
}

// What is kept of 5,000 nodes, 40,000 GPUs and 40,000 pods, each with what makes
// such objects heavy in the field, in memory that is in use after a collection.
// The process may take twice that between two collections (GOGC=100), and has
// 300 MB. Reading the lists page by page, as the sources do, is a part of it: the
// peak of the heap while they are read is bounded too.
func TestMemory(t *testing.T) {
	before := inUse()
	w := newWorld(Options{})
	sources := []*source{
		{name: "nodes", to: w.nodes, list: paged{bigNodes, func(i int) apiruntime.Object { return bigNode(i) }, nodeList}.list},
		{name: "pods", to: w.pods, list: paged{bigNodes * bigPerNode, func(i int) apiruntime.Object { return bigPod(i/bigPerNode, i%bigPerNode) }, podList}.list},
		{name: "configmaps", to: w.hosts, list: paged{bigNodes, func(i int) apiruntime.Object { return bigReport(i) }, mapList}.list},
	}
	peak := uint64(0)
	for _, s := range sources {
		one := s.list
		s.list = func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			return one(ctx, o)
		}
		l, err := s.pages(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		var items []any
		for _, o := range l.(*stripped).Items {
			items = append(items, o)
		}
		if err := s.to.Replace(items, "1000"); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	w.begin()
	after := inUse()
	if len(w.devices) != bigNodes*bigPerNode || len(w.model.nodes) != bigNodes {
		t.Fatalf("%d devices, %d nodes", len(w.devices), len(w.model.nodes))
	}
	const mb = 1 << 20
	kept := (after - before) / mb
	started := time.Now()
	s := w.snapshot()
	t.Logf("%d MB kept of %d nodes, %d devices and %d pods; the heap's peak while reading was %d MB; a snapshot takes %s",
		kept, len(s.Nodes), len(s.Devices), bigNodes*bigPerNode, peak/mb, time.Since(started).Round(time.Millisecond))
	if kept > 90 {
		t.Errorf("%d MB are kept, the limit is 90", kept)
	}
	if peak/mb > 200 {
		t.Errorf("the heap grew to %d MB while the lists were read, the limit is 200", peak/mb)
	}
	runtime.KeepAlive(w)
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
