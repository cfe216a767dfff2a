package inventory

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// aReport is what the host of a node says of its GPUs.
func aReport(t testing.TB, node string, devices ...report.Device) *corev1.ConfigMap {
	t.Helper()
	return reportAt(t, newClock().now(), node, devices...)
}

func reportAt(t testing.TB, at time.Time, node string, devices ...report.Device) *corev1.ConfigMap {
	t.Helper()
	for i := range devices {
		if devices[i].Health == "" {
			devices[i].Health = report.HealthOK
		}
	}
	b, err := json.Marshal(report.Host{Version: report.Version, Node: node, Source: report.SourceRecorded, Devices: devices, At: at})
	if err != nil {
		t.Fatal(err)
	}
	o := &corev1.ConfigMap{ObjectMeta: named("opsplane", report.Name(node), "uid-report-"+node), Data: map[string]string{report.Key: string(b)}}
	o.Labels[report.Label] = report.Hash(node)
	return o
}

func deviceNames(in []protocol.Device) []string {
	var out []string
	for _, d := range in {
		out = append(out, fmt.Sprintf("%s/%d %s %s", d.NodeName, d.Index, d.UID, d.Health))
	}
	slices.Sort(out)
	return out
}

// One GPU is one device under every spelling that a source may use, and all its
// names lead to it.
func TestOneDeviceUnderEverySpelling(t *testing.T) {
	t.Parallel()
	lower := uuid(1)
	bare := strings.TrimPrefix(lower, "GPU-")
	for _, spelling := range []string{lower, strings.ToUpper(lower), bare, strings.ToUpper(bare), "gpu-" + bare} {
		for _, pci := range []string{"0000:3b:00.0", "00000000:3B:00.0", "3B:00.0", "0000:3B:00"} {
			w := newWorld(Options{}).start(t)
			w.put(t, w.nodes, aNode("n", "u", 1))
			w.put(t, w.slices, aSlice("s", "n", map[string]string{"type": "gpu", "uuid": spelling, "resource.kubernetes.io/pciBusID": pci, "productName": "NVIDIA H100", "index": "#3"}))
			w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: lower, PCI: "0000:3b:00.0", Index: 3, Product: "NVIDIA H100 80GB HBM3"}))
			got := w.snapshot().Devices
			if len(got) != 1 {
				t.Fatalf("%s at %s: %v", spelling, pci, deviceNames(got))
			}
			got[0].Revision = 0
			want := protocol.Device{UID: lower, NodeUID: "u", NodeName: "n", Index: 3, Product: "NVIDIA H100 80GB HBM3", Health: "ok",
				Aliases: []string{"n/3", bare, "GPU-" + strings.ToUpper(bare), "n/00000000:3B:00.0", "n/0000:3b:00.0"}}
			if diff := cmp.Diff(want, got[0]); diff != "" {
				t.Fatalf("%s at %s: %s", spelling, pci, diff)
			}
			if fleet.CanonicalDevice(spelling) != got[0].UID {
				t.Errorf("the plane calls %s %s", spelling, fleet.CanonicalDevice(spelling))
			}
		}
	}
}

// Where devices come from: a host's report goes before ResourceSlices, and both
// before what labels and capacity tell.
func TestDeviceSources(t *testing.T) {
	t.Parallel()
	slices2 := aSlice("s", "n", map[string]string{"uuid": uuid(0), "index": "#0"}, map[string]string{"uuid": uuid(1), "index": "#1"})
	old := aSlice("old", "n", map[string]string{"uuid": uuid(7), "index": "#0"})
	old.Spec.Pool.Generation = 0
	mig := aSlice("mig", "n", map[string]string{"type": "mig", "uuid": "MIG-1", "index": "#0"})
	nic := aSlice("nic", "n", map[string]string{"index": "#0"})
	nic.Spec.Driver = "dra.net"
	foreign := aReport(t, "n", report.Device{UUID: uuid(5)})
	foreign.Name = report.Name("another")
	broken := aReport(t, "n")
	broken.Data[report.Key] = `{"version":1,"node":"n","devices":[{"uuid":"x"}]}`
	labelled := aNode("n", "u", 16) // shares of two GPUs
	labelled.Labels["nvidia.com/gpu.count"] = "2"
	amd := aNode("n", "u", 0)
	amd.Status.Capacity = corev1.ResourceList{"amd.com/gpu": aNode("", "", 1).Status.Capacity["nvidia.com/gpu"]}
	for name, tc := range map[string]struct {
		node    *corev1.Node
		slices  []*resourcev1.ResourceSlice
		reports []*corev1.ConfigMap
		want    []string
	}{
		"none":               {aNode("n", "u", 0), nil, nil, nil},
		"capacity":           {aNode("n", "u", 2), nil, nil, []string{"n/0 unknown-u-0 ok", "n/1 unknown-u-1 ok"}},
		"label counts cards": {labelled, nil, nil, []string{"n/0 unknown-u-0 ok", "n/1 unknown-u-1 ok"}},
		"amd":                {amd, nil, nil, []string{"n/0 unknown-u-0 ok"}},
		"slices":             {aNode("n", "u", 2), []*resourcev1.ResourceSlice{slices2, old, mig, nic}, nil, []string{"n/0 " + uuid(0) + " ok", "n/1 " + uuid(1) + " ok"}},
		"report":             {aNode("n", "u", 2), nil, []*corev1.ConfigMap{aReport(t, "n", report.Device{UUID: uuid(4), Index: 0})}, []string{"n/0 " + uuid(4) + " ok"}},
		"both":               {aNode("n", "u", 2), []*resourcev1.ResourceSlice{slices2}, []*corev1.ConfigMap{aReport(t, "n", report.Device{UUID: uuid(0), Index: 0, Health: "unusable"})}, []string{"n/0 " + uuid(0) + " unusable", "n/1 " + uuid(1) + " ok"}},
		"not believed":       {aNode("n", "u", 1), nil, []*corev1.ConfigMap{foreign}, []string{"n/0 unknown-u-0 ok"}},
		"not read":           {aNode("n", "u", 1), nil, []*corev1.ConfigMap{broken}, []string{"n/0 unknown-u-0 ok"}},
		"claims too many":    {aNode("n", "u", 1_000_000), nil, nil, many(64)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, first := range []string{"node", "devices"} { // whichever source is read first
				w := newWorld(Options{}).start(t)
				if first == "node" {
					w.put(t, w.nodes, tc.node.DeepCopy())
				}
				for _, s := range tc.slices {
					w.put(t, w.slices, s.DeepCopy())
				}
				for _, r := range tc.reports {
					w.put(t, w.hosts, r.DeepCopy())
				}
				if first != "node" {
					w.put(t, w.nodes, tc.node.DeepCopy())
				}
				if diff := cmp.Diff(tc.want, deviceNames(w.snapshot().Devices)); diff != "" {
					t.Errorf("%s first: %s", first, diff)
				}
				if got := w.snapshot().Nodes[0].GPUs; got != len(tc.want) {
					t.Errorf("%s first: the node has %d GPUs, want %d", first, got, len(tc.want))
				}
			}
		})
	}
}

func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("n/%d unknown-u-%d ok", i, i))
	}
	slices.Sort(out)
	return out
}

// A device whose UUID comes to be known is the one that was there: it neither
// left nor joined. One that is really new or gone is told.
func TestDeviceIsIdentified(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.nodes, aNode("n", "u", 2))
	w.told()
	r := aReport(t, "n", report.Device{UUID: uuid(0), Index: 0}, report.Device{UUID: uuid(1), Index: 1})
	w.put(t, w.hosts, r)
	d := w.told()
	if len(d.Events) != 0 {
		t.Errorf("told %+v", d.Events)
	}
	if diff := cmp.Diff([]string{"device/unknown-u-0", "device/unknown-u-1"}, d.Gone); diff != "" {
		t.Error(diff)
	}
	if len(d.Objects.Devices) != 2 {
		t.Errorf("told %v", deviceNames(d.Objects.Devices))
	}
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), Index: 0}, report.Device{UUID: uuid(2), Index: 1}))
	if diff := cmp.Diff([]string{"device.joined " + uuid(2), "device.left " + uuid(1)}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

func TestDeviceMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.nodes, aNode("a", "ua", 0), aNode("b", "ub", 0))
	w.put(t, w.hosts, aReport(t, "a", report.Device{UUID: uuid(0)}))
	w.told()
	w.put(t, w.hosts, aReport(t, "b", report.Device{UUID: uuid(0)}))
	if diff := cmp.Diff([]string{"b/0 " + uuid(0) + " ok"}, deviceNames(w.snapshot().Devices)); diff != "" {
		t.Errorf("while both claim it: %s", diff)
	}
	bad := aNode("a", "ua", 0)
	setCondition(bad, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
	w.put(t, w.nodes, bad) // a is looked at again, with its old claim
	w.put(t, w.hosts, aReport(t, "a"))
	if diff := cmp.Diff([]string{"device.joined " + uuid(0)}, w.happened()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b/0 " + uuid(0) + " ok"}, deviceNames(w.snapshot().Devices)); diff != "" {
		t.Error(diff)
	}
	for _, n := range w.snapshot().Nodes {
		if want := map[string]int{"a": 0, "b": 1}[n.Name]; n.GPUs != want {
			t.Errorf("%s has %d GPUs", n.Name, n.GPUs)
		}
	}
}

func TestDeviceHealth(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		condition *corev1.NodeCondition
		taint     *resourcev1.DeviceTaint
		report    string
		want      [2]string // of device 0 and 1
	}{
		"a problem of all":    {condition: &corev1.NodeCondition{Type: "GpuXidError", Status: "True", Reason: "XID", Message: "see the log"}, want: [2]string{"degraded", "degraded"}},
		"of one":              {condition: &corev1.NodeCondition{Type: "GpuXidError", Status: "True", Message: "XID 48 on " + strings.ToUpper(uuid(1))}, want: [2]string{"ok", "degraded"}},
		"by its bus id":       {condition: &corev1.NodeCondition{Type: "NVLinkStatusInactive", Status: "True", Message: "link down on 00000000:01:00.0"}, want: [2]string{"ok", "degraded"}},
		"a GPU is missing":    {condition: &corev1.NodeCondition{Type: "GPUMissing", Status: "True", Message: uuid(0) + " is missing"}, want: [2]string{"unusable", "ok"}},
		"hardware not ready":  {condition: &corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "False", Reason: "DCGMError"}, want: [2]string{"degraded", "degraded"}},
		"hardware ready":      {condition: &corev1.NodeCondition{Type: "AcceleratedHardwareReady", Status: "True"}, want: [2]string{"ok", "ok"}},
		"no GPU's":            {condition: &corev1.NodeCondition{Type: "DiskPressure", Status: "True"}, want: [2]string{"ok", "ok"}},
		"tainted":             {taint: &resourcev1.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Effect: "NoSchedule"}, want: [2]string{"degraded", "ok"}},
		"tainted for running": {taint: &resourcev1.DeviceTaint{Key: "gpu.nvidia.com/lost", Effect: "NoExecute"}, want: [2]string{"unusable", "ok"}},
		"noted only":          {taint: &resourcev1.DeviceTaint{Key: "x", Effect: "None"}, want: [2]string{"ok", "ok"}},
		"its host says so":    {report: "unusable", want: [2]string{"unusable", "ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{}).start(t)
			n := aNode("n", "u", 2)
			s := aSlice("s", "n", map[string]string{"uuid": uuid(0), "pciBusID": "0000:00:00.0"}, map[string]string{"uuid": uuid(1), "pciBusID": "0000:01:00.0"})
			w.put(t, w.nodes, n.DeepCopy())
			w.put(t, w.slices, s.DeepCopy())
			w.told()
			ill := s.DeepCopy()
			switch {
			case tc.condition != nil:
				sick := n.DeepCopy()
				setCondition(sick, *tc.condition)
				w.put(t, w.nodes, sick)
			case tc.taint != nil:
				ill.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{*tc.taint}
				w.put(t, w.slices, ill)
			default:
				w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), PCI: "0000:00:00.0", Health: tc.report, Detail: "why"}))
			}
			var got [2]string
			var degraded, recovered []string
			for _, d := range w.snapshot().Devices {
				got[d.Index] = d.Health
				if d.Health != "ok" {
					degraded, recovered = append(degraded, "device.degraded "+d.UID), append(recovered, "device.recovered "+d.UID)
				}
				if d.Health != "ok" && d.Detail == "" {
					t.Errorf("device %d is %s and it is not told why", d.Index, d.Health)
				}
			}
			if got != tc.want {
				t.Errorf("health %v, want %v", got, tc.want)
			}
			if diff := cmp.Diff(degraded, w.happened()); diff != "" {
				t.Error(diff)
			}
			w.put(t, w.nodes, n)
			w.put(t, w.slices, s)
			w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), PCI: "0000:00:00.0"}))
			if diff := cmp.Diff(recovered, w.happened()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// XIDs are told once each, with how many came; a host that started again counts
// from one.
func TestXIDs(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	x := func(code, count int, min int) report.XID {
		return report.XID{Code: code, Class: report.ClassHardware, Count: count, First: at, Last: at.Add(time.Duration(min) * time.Minute)}
	}
	w := newWorld(Options{})
	w.list(t, w.nodes, aNode("n", "u", 1))
	w.list(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), XIDs: []report.XID{x(48, 3, 0)}}))
	w.start(t) // lists are read again
	w.put(t, w.nodes, aNode("n", "u", 1))
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), XIDs: []report.XID{x(48, 3, 0)}}))
	w.told()
	for _, step := range []struct {
		xids []report.XID
		want []string
	}{
		{[]report.XID{x(48, 3, 0)}, nil},
		{[]report.XID{x(48, 5, 2), x(79, 1, 3)}, []string{"48 x2", "79 x1"}},
		{[]report.XID{x(48, 5, 2), x(79, 1, 3)}, nil},
		{nil, nil}, // the host has started again
		{[]report.XID{x(48, 1, 9)}, []string{"48 x1"}},
	} {
		w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0), XIDs: step.xids}))
		var got []string
		for _, e := range w.told().Events {
			var d struct {
				XID, Count int
				Node       string
			}
			if err := json.Unmarshal(e.Detail, &d); err != nil || e.Type != "device.xid" || e.Subject.UID != uuid(0) || d.Node != "n" {
				t.Fatalf("told %+v %v", e, err)
			}
			got = append(got, fmt.Sprintf("%d x%d", d.XID, d.Count))
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// The plane takes every name that is told.
func TestDevicesFitThePlane(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b.", 94) + "c" // 253 characters with dots
	w.put(t, w.nodes, aNode(long, "u", 1))
	w.put(t, w.hosts, aReport(t, long, report.Device{UUID: uuid(0), PCI: "0000:3b:00.0", Detail: strings.Repeat("x", 512), Health: "degraded"}))
	inv := w.snapshot()
	objects, refused := fleet.Objects("clu_1", &inv, time.Now())
	if len(refused) != 0 || len(objects) != 2 {
		t.Errorf("taken %d, refused %v", len(objects), refused)
	}
	for _, a := range inv.Devices[0].Aliases {
		if !operation.CleanText(a) {
			t.Errorf("alias %q", a)
		}
	}
}
