package inventory

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/protocol"
)

// giving is a node of eight GPUs that gives n of them to pods, under each resource.
func giving(n int64, resources ...string) *corev1.Node {
	o := aNode("n", "u", 8)
	if len(resources) == 0 {
		resources = []string{"nvidia.com/gpu"}
	}
	o.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("8"), "nvidia.com/gpu": *resource.NewQuantity(8, resource.DecimalSI)}
	for _, r := range resources {
		o.Status.Capacity[corev1.ResourceName(r)] = *resource.NewQuantity(8, resource.DecimalSI)
		o.Status.Allocatable[corev1.ResourceName(r)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return o
}

// withdrawn is the node without its device plugin's resource, but for the labels.
func withdrawn() *corev1.Node {
	o := aNode("n", "u", 8)
	o.Labels["nvidia.com/gpu.count"] = "8"
	delete(o.Status.Capacity, "nvidia.com/gpu")
	o.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("8")}
	return o
}

// TestShortage: that a node gives fewer GPUs to pods than it has is told once it has
// held, once for each number, and its end at once. What comes and goes is not told.
func TestShortage(t *testing.T) {
	t.Parallel()
	const short, well = "node.gpus_unallocatable n", "node.gpus_allocatable n"
	type step struct {
		node  *corev1.Node // as it is then; nil: as it was
		after time.Duration
		want  []string
	}
	for name, steps := range map[string][]step{
		"two of eight":                  {{giving(6), DefaultShortageHold - time.Second, nil}, {nil, time.Second, []string{short}}, {nil, time.Hour, nil}, {giving(8), 0, []string{well}}, {nil, time.Hour, nil}},
		"a plugin that starts again":    {{giving(0), 40 * time.Second, nil}, {giving(8), time.Hour, nil}},
		"again and again":               {{giving(0), 40 * time.Second, nil}, {giving(8), time.Second, nil}, {giving(0), 40 * time.Second, nil}, {giving(8), time.Hour, nil}},
		"one more":                      {{giving(7), DefaultShortageHold, []string{short}}, {giving(6), 30 * time.Second, nil}, {nil, 30 * time.Second, []string{short}}, {giving(8), 0, []string{well}}},
		"one is well again":             {{giving(6), DefaultShortageHold, []string{short}}, {giving(7), DefaultShortageHold, []string{short}}, {giving(8), 0, []string{well}}},
		"the plugin starts again":       {{giving(6), DefaultShortageHold, []string{short}}, {giving(0), 30 * time.Second, nil}, {giving(6), time.Hour, nil}, {giving(8), 0, []string{well}}},
		"the numbers settle":            {{giving(0), 30 * time.Second, nil}, {giving(6), 30 * time.Second, []string{short}}, {nil, time.Hour, nil}},
		"the plugin is away for long":   {{giving(0), DefaultShortageHold, []string{short}}, {withdrawn(), time.Hour, nil}, {giving(8), 0, []string{well}}},
		"GPUs are offered in parts now": {{giving(0), DefaultShortageHold, []string{short}}, {parts(), 0, []string{well}}},
		"shares":                        {{giving(6, "nvidia.com/gpu.shared"), DefaultShortageHold, []string{short}}, {giving(8, "nvidia.com/gpu.shared"), 0, []string{well}}},
		"MIG":                           {{giving(6, "nvidia.com/mig-1g.10gb"), DefaultShortageHold, []string{short}}},
		"no GPUs":                       {{giving(6, "example.com/fpga"), time.Hour, nil}},
		"nothing is said of it":         {{aNode("n", "u", 8), time.Hour, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{ShortageHold: DefaultShortageHold}).start(t)
			w.put(t, w.nodes, giving(8))
			w.told()
			for i, s := range steps {
				if s.node != nil {
					w.put(t, w.nodes, s.node)
				}
				w.hands.pass(s.after)
				w.ripe()
				var got []string
				for _, x := range w.happened() {
					if !strings.HasPrefix(x, "device.left") && !strings.HasPrefix(x, "device.joined") { // theirs is another test
						got = append(got, x)
					}
				}
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Errorf("step %d: %s", i, diff)
				}
			}
		})
	}
}

// parts is the node with its GPUs cut up.
func parts() *corev1.Node {
	o := withdrawn()
	q := *resource.NewQuantity(56, resource.DecimalSI)
	o.Status.Capacity["nvidia.com/mig-1g.10gb"], o.Status.Allocatable["nvidia.com/mig-1g.10gb"] = q, q
	return o
}

// ripe lets what has held be told, as the clock does.
func (w *world) ripe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ripen()
}

// TestShortageInTheInventory: the node has a condition that says what is known, and
// of its devices none is called ill, and none well.
func TestShortageInTheInventory(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{ShortageHold: DefaultShortageHold}).start(t)
	w.put(t, w.nodes, giving(8))
	w.told()
	begun := w.hands.now()
	w.put(t, w.nodes, giving(6))
	w.hands.pass(DefaultShortageHold)
	w.ripe()
	d := w.told()
	const says = "the node gives pods 6 of its 8 nvidia.com/gpu; which GPUs it keeps back, and why, only its device plugin knows"
	if len(d.Events) != 1 || !d.Events[0].At.Equal(begun) || string(d.Events[0].Detail) !=
		`{"detail":"`+says+`","missing":2,"resources":[{"resource":"nvidia.com/gpu","capacity":8,"allocatable":6}]}` {
		t.Errorf("told %+v", d.Events)
	}
	inv := w.snapshot()
	want := protocol.Condition{Type: conditionGPUs, Status: "False", Reason: "FewerThanCapacity", Message: says, Since: begun}
	if diff := cmp.Diff([]protocol.Condition{want}, inv.Nodes[0].Conditions[1:]); diff != "" {
		t.Error(diff)
	}
	if len(inv.Devices) != 8 || len(d.Objects.Devices) != 8 {
		t.Fatalf("%d devices, %d told", len(inv.Devices), len(d.Objects.Devices))
	}
	for _, x := range inv.Devices {
		if x.Health != report.HealthUnknown || x.Detail != says {
			t.Errorf("device %d is %s: %s", x.Index, x.Health, x.Detail)
		}
	}
	// One is worse by the node's conditions: that is told of it, and that it is over.
	ill := giving(6)
	setCondition(ill, corev1.NodeCondition{Type: "GpuXidError", Status: corev1.ConditionTrue, Message: "XID 79"})
	w.put(t, w.nodes, ill)
	if got := w.happened(); len(got) != 8 || !strings.HasPrefix(got[0], "device.degraded") {
		t.Errorf("a condition: %v", got)
	}
	w.put(t, w.nodes, giving(6))
	w.put(t, w.nodes, giving(8))
	got := w.happened()
	recovered := 0
	for _, x := range got {
		if strings.HasPrefix(x, "device.recovered") {
			recovered++
		}
	}
	if recovered != 8 || len(got) != 9 {
		t.Errorf("all is well: %v", got)
	}
	inv = w.snapshot()
	if len(inv.Nodes[0].Conditions) != 1 || inv.Devices[0].Health != report.HealthOK || inv.Devices[0].Detail != "" {
		t.Errorf("at the end %+v, %+v", inv.Nodes[0].Conditions, inv.Devices[0])
	}
}

// TestShortageFromTheStart: what is so when the agent comes may have begun while none
// ran. The inventory has it at once; it is told once it has held, as what may have been
// told before, and its end as ever.
func TestShortageFromTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{ShortageHold: DefaultShortageHold})
	w.list(t, w.nodes, any(giving(6)))
	w.settle()
	w.begin()
	found := w.hands.now()
	if inv := w.snapshot(); inv.Devices[0].Health != report.HealthUnknown || len(inv.Nodes[0].Conditions) != 2 {
		t.Errorf("the inventory has %+v", inv.Nodes[0])
	}
	w.hands.pass(DefaultShortageHold - time.Second)
	w.ripe()
	if got := w.told().Events; len(got) != 0 {
		t.Errorf("at once: %+v", got)
	}
	w.hands.pass(time.Second)
	w.ripe()
	var detail event.GPUsDetail
	want := event.GPUsDetail{Resources: []event.GPUResource{{Resource: "nvidia.com/gpu", Capacity: 8, Allocatable: 6}}, Missing: 2, Standing: true,
		Text: "the node gives pods 6 of its 8 nvidia.com/gpu; which GPUs it keeps back, and why, only its device plugin knows"}
	got := w.told().Events
	if len(got) != 1 || got[0].Type != "node.gpus_unallocatable" || !got[0].At.Equal(found) {
		t.Fatalf("when it has held: %+v", got)
	}
	if err := json.Unmarshal(got[0].Detail, &detail); err != nil || !cmp.Equal(want, detail) {
		t.Errorf("told %s, %v", cmp.Diff(want, detail), err)
	}
	w.hands.pass(time.Hour)
	w.ripe()
	w.list(t, w.nodes, any(giving(6))) // after a break
	w.hands.pass(time.Hour)
	w.ripe()
	if got := w.happened(); len(got) != 0 {
		t.Errorf("once more: %v", got)
	}
	w.put(t, w.nodes, giving(8))
	if got := w.happened(); len(got) != 1 || got[0] != "node.gpus_allocatable n" {
		t.Errorf("its end: %v", got)
	}
}

// TestShortageFromTheStartChanges: within the time that it has to hold.
func TestShortageFromTheStartChanges(t *testing.T) {
	t.Parallel()
	const short, standing, well = "node.gpus_unallocatable", "node.gpus_unallocatable standing", "node.gpus_allocatable"
	const half = DefaultShortageHold / 2
	type step struct {
		node  *corev1.Node // as it is then; nil: as it was
		after time.Duration
		want  []string
	}
	for name, steps := range map[string][]step{
		"it ends":                  {{giving(8), 0, []string{well}}, {nil, time.Hour, nil}},
		"it grows":                 {{giving(5), half, nil}, {nil, half, []string{short}}, {nil, time.Hour, nil}},
		"it grows for a moment":    {{giving(5), 0, nil}, {giving(6), half, []string{standing}}, {nil, time.Hour, nil}},
		"and again after a while":  {{nil, half, []string{standing}}, {giving(8), 0, []string{well}}, {giving(6), 2 * half, []string{short}}},
		"it grows, after a minute": {{nil, half, []string{standing}}, {giving(5), 2 * half, []string{short}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{ShortageHold: DefaultShortageHold})
			w.list(t, w.nodes, any(giving(6)))
			w.settle()
			w.begin()
			w.hands.pass(half)
			w.ripe()
			for i, s := range steps {
				if s.node != nil {
					w.put(t, w.nodes, s.node)
				}
				w.hands.pass(s.after)
				w.ripe()
				var got []string
				for _, e := range w.told().Events {
					if strings.Contains(string(e.Detail), `"standing":true`) {
						e.Type += " standing"
					}
					got = append(got, e.Type)
				}
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Errorf("step %d: %s", i, diff)
				}
			}
		})
	}
}

// TestShortageThatIsExplained: where the host, or a driver's slices, call as many GPUs
// ill by name as are kept back, that is what is told, and of those alone.
func TestShortageThatIsExplained(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ill   int
		stale bool
		short bool
	}{
		"both":                    {ill: 2},
		"one of two":              {ill: 1, short: true},
		"none":                    {short: true},
		"a host that went silent": {ill: 2, stale: true, short: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{ShortageHold: DefaultShortageHold}).start(t)
			w.put(t, w.nodes, giving(8))
			var devices []report.Device
			for i := range 8 {
				devices = append(devices, report.Device{UUID: uuid(i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i), Index: i})
				if i < tc.ill {
					devices[i].Health = report.HealthUnusable
				}
			}
			w.put(t, w.hosts, aReport(t, "n", devices...))
			w.told()
			if tc.stale {
				w.hands.pass(report.MaxAge + time.Minute)
				w.mu.Lock()
				w.age()
				w.mu.Unlock()
				w.told()
			}
			w.put(t, w.nodes, giving(6))
			w.hands.pass(DefaultShortageHold)
			w.ripe()
			got := w.happened()
			if want := []string{"node.gpus_unallocatable n"}; tc.short && !cmp.Equal(want, got) || !tc.short && len(got) != 0 {
				t.Errorf("told %v", got)
			}
			for _, x := range w.snapshot().Devices {
				if x.Health == report.HealthUnknown {
					t.Errorf("the host knows device %d, and it is %s: %s", x.Index, x.Health, x.Detail)
				}
			}
		})
	}
}
