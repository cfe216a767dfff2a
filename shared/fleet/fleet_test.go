package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func TestCanonicalDevice(t *testing.T) {
	t.Parallel()
	const want = "GPU-8f3c0000-0000-4000-8000-0000000000aa"
	for _, s := range []string{want, "gpu-8f3c0000-0000-4000-8000-0000000000aa", "GPU-8F3C0000-0000-4000-8000-0000000000AA", "8f3c0000-0000-4000-8000-0000000000aa", "8F3C0000-0000-4000-8000-0000000000aA"} {
		if got := CanonicalDevice(s); got != want || DeviceID("c", got) != DeviceID("c", want) {
			t.Errorf("%q: %q", s, got)
		}
	}
	for _, s := range []string{"", "GPU-", "MIG-8f3c0000-0000-4000-8000-0000000000aa", "GPU-8f3c", want + " ", " " + want, want + "\n", "GPU-8f3c0000-0000-4000-8000-0000000000ag",
		"0000:3b:00.0", "GPU-GPU-8f3c0000-0000-4000-8000-0000000000aa"} {
		if got := CanonicalDevice(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func FuzzCanonicalDevice(f *testing.F) {
	f.Add("GPU-8F3C0000-0000-4000-8000-0000000000AA")
	f.Add("x")
	f.Fuzz(func(t *testing.T, s string) {
		once := CanonicalDevice(s)
		if CanonicalDevice(once) != once || !strings.EqualFold(strings.TrimPrefix(once, "GPU-"), strings.TrimPrefix(strings.ToUpper(s), "GPU-")) && once != s {
			t.Errorf("%q: %q", s, once)
		}
	})
}

func TestMissing(t *testing.T) {
	t.Parallel()
	a := Agent{Capabilities: []protocol.Capability{{Name: "node.drain", Version: 2}, {Name: "node.cordon", Version: 1}}}
	step := func(name string, v int) operation.PlanStep {
		return operation.PlanStep{Capability: name, MinVersion: v}
	}
	for name, c := range map[string]struct {
		steps []operation.PlanStep
		want  string
	}{
		"nothing": {nil, ""}, "older": {[]operation.PlanStep{step("node.drain", 1), step("node.cordon", 1)}, ""}, "same": {[]operation.PlanStep{step("node.drain", 2)}, ""},
		"newer":   {[]operation.PlanStep{step("node.cordon", 1), step("node.drain", 3)}, "node.drain version 3 (it has 2)"},
		"without": {[]operation.PlanStep{step("device.reset", 1)}, "device.reset version 1 (it has 0)"},
	} {
		if got := a.Missing(c.steps); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOnline(t *testing.T) {
	t.Parallel()
	a := Agent{LastSeen: t0}
	for after, want := range map[time.Duration]bool{-time.Hour: true, 0: true, 15 * time.Second: true, 15*time.Second + 1: false} {
		if a.Online(t0.Add(after), 15*time.Second) != want {
			t.Errorf("after %s: %v", after, !want)
		}
	}
	a.Stopping = true
	if a.Online(t0, 15*time.Second) {
		t.Error("a stopping agent is online")
	}
}

func TestObjectLimits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxNameBytes+1)
	labels := func(n int, k, v string) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint(k, i)] = v
		}
		return m
	}
	for name, c := range map[string]struct {
		inv protocol.Inventory
		ok  bool
	}{
		"node":            {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n"}}}, true},
		"no uid":          {protocol.Inventory{Nodes: []protocol.Node{{Name: "n"}}}, false},
		"no name":         {protocol.Inventory{Nodes: []protocol.Node{{UID: "u"}}}, false},
		"longest name":    {protocol.Inventory{Nodes: []protocol.Node{{UID: long[1:], Name: long[1:]}}}, true},
		"name too long":   {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: long}}}, false},
		"uid too long":    {protocol.Inventory{Nodes: []protocol.Node{{UID: long, Name: "n"}}}, false},
		"control":         {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n\x01"}}}, false},
		"not UTF-8":       {protocol.Inventory{Nodes: []protocol.Node{{UID: "u\xff", Name: "n"}}}, false},
		"200 labels":      {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Labels: labels(MaxLabels, "k", "v")}}}, true},
		"201 labels":      {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Labels: labels(MaxLabels+1, "k", "v")}}}, false},
		"long label":      {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Labels: labels(1, "k", strings.Repeat("v", MaxLabelBytes+1))}}}, false},
		"all labels long": {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Labels: labels(MaxLabels, "k", strings.Repeat("v", MaxLabelBytes))}}}, false},
		"101 blockers":    {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Blockers: make([]protocol.Blocker, MaxBlockers+1)}}}, false},
		"long blocker":    {protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n", Blockers: []protocol.Blocker{{Detail: strings.Repeat("x", MaxObjectBytes)}}}}}, false},
		"device":          {protocol.Inventory{Devices: []protocol.Device{{UID: "GPU-x", NodeUID: "u"}}}, true},
		"device's node":   {protocol.Inventory{Devices: []protocol.Device{{UID: "GPU-x", NodeName: long}}}, false},
		"aliases":         {protocol.Inventory{Devices: []protocol.Device{{UID: "GPU-x", Aliases: make([]string, 17)}}}, false},
		"device's detail": {protocol.Inventory{Devices: []protocol.Device{{UID: "GPU-x", Detail: strings.Repeat("x", maxDetailBytes+1)}}}, false},
		"deployment":      {protocol.Inventory{Deployments: []protocol.Deployment{{UID: "u", Name: "default/web"}}}, true},
		"long image":      {protocol.Inventory{Deployments: []protocol.Deployment{{UID: "u", Name: "default/web", Image: strings.Repeat("x", MaxObjectBytes)}}}, false},
		"component":       {protocol.Inventory{Components: []protocol.Component{{UID: "u", Name: "operator"}}}, true},
	} {
		objects, refused := Objects("clu_1", &c.inv, t0)
		if got := len(objects) == 1 && len(refused) == 0; got != c.ok || len(objects)+len(refused) != 1 {
			t.Errorf("%s: %d taken, refused %+v", name, len(objects), refused)
		}
		for _, r := range refused {
			if r.ID == "" || r.Kind == "" || len(r.UID) > 64 {
				t.Errorf("%s: refused %+v", name, r)
			}
		}
		for _, o := range objects {
			if o.Cluster != "clu_1" || !o.ObservedAt.Equal(t0) || o.ID == "" {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
	if objects, refused := Objects("clu_1", nil, t0); objects != nil || refused != nil {
		t.Error("nothing is something")
	}
}

// TestOneObjectTwice: of two reports of one object the newer counts, whatever
// the order and the spelling.
func TestOneObjectTwice(t *testing.T) {
	t.Parallel()
	const uuid = "8f3c0000-0000-4000-8000-0000000000aa"
	for _, ds := range [][]protocol.Device{
		{{UID: "GPU-" + uuid, Revision: 1}, {UID: strings.ToUpper(uuid), Revision: 2}},
		{{UID: "gpu-" + uuid, Revision: 2}, {UID: uuid, Revision: 1}},
	} {
		objects, refused := Objects("clu_1", &protocol.Inventory{Devices: ds}, t0)
		if len(objects) != 1 || len(refused) != 0 || objects[0].Revision != 2 || objects[0].Name != "GPU-"+uuid {
			t.Errorf("%+v, %+v", objects, refused)
		}
	}
}

func TestGoneID(t *testing.T) {
	t.Parallel()
	for gone, want := range map[string]string{
		"node/u": NodeID("c", "u"), "deployment/u/v": DeploymentID("c", "u/v"), "component/operator": ComponentID("c", "operator"),
		"device/gpu-8F3C0000-0000-4000-8000-0000000000aa": DeviceID("c", "GPU-8f3c0000-0000-4000-8000-0000000000aa"),
		"": "", "node": "", "pod/u": "", "/u": "",
	} {
		if got := GoneID("c", gone); got != want {
			t.Errorf("%q: %q, want %q", gone, got, want)
		}
	}
	if NodeID("c", "u") == NodeID("d", "u") || NodeID("c", "u") == DeviceID("c", "u") {
		t.Error("ids of different things are the same")
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	objects, _ := Objects("c", &protocol.Inventory{Nodes: []protocol.Node{{UID: "u", Name: "n"}}, Devices: []protocol.Device{{UID: "GPU-x", NodeUID: "u", NodeName: "n"}}}, t0)
	node, dev := objects[0].Target(), objects[1].Target()
	if node.NodeID != node.ID || node.NodeName != "n" || node.UID != "u" {
		t.Errorf("node %+v", node)
	}
	if dev.NodeID != node.ID || dev.NodeName != "n" || dev.Kind != operation.KindDevice {
		t.Errorf("device %+v", dev)
	}
}
