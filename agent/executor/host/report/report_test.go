package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

// crowded is an answer with more in it than a termination message takes.
func crowded(pods, processes, xids int) Answer {
	d := &Device{UUID: uuid, PCI: "0000:3b:00.0", Product: "NVIDIA H100 80GB HBM3", Health: HealthDegraded, MIG: &MIG{Current: "disabled", Pending: "disabled"}}
	for i := range processes {
		d.Holders = append(d.Holders, Holder{Kind: HolderProcess, Name: fmt.Sprintf("process-%d", i), PIDs: []int{4000 + i}, Count: 1})
	}
	for i := range pods {
		d.Holders = append(d.Holders, Holder{Kind: HolderProcess, Name: "python3", PIDs: []int{5000 + i}, Count: 1,
			Pod: &Pod{Namespace: "inference", Name: fmt.Sprintf("llama-70b-decode-%d", i), UID: "7f0d6c3e-0000-4000-8000-00000000000" + fmt.Sprint(i%10), Container: "main"}})
	}
	for i := range xids {
		code := []int{48, 45, 63, 13}[i%4]
		d.XIDs = append(d.XIDs, XID{Code: code + 1000*(i/4), Class: LookUpXID(code).Class, Count: 3, Text: strings.Repeat("Xid text ", 30)})
	}
	for i := range 12 {
		d.Peers = append(d.Peers, fmt.Sprintf("GPU-8f3c0a6e-1111-2222-3333-4444555566%02d", i))
	}
	return Answer{Verb: VerbPreflight, Operation: "op_01", Run: 1, Generation: 2, Code: CodeBusy, Detail: "held", Device: d, At: time.Unix(1_700_000_000, 0).UTC()}
}

func TestMessageFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                  string
		pods, processes, xids int
		cut                   []string
		wantPods, wantOthers  int
	}{
		{name: "small", pods: 2, processes: 1, wantPods: 2, wantOthers: 1},
		{name: "xid texts go first", pods: 2, processes: 1, xids: 24, cut: []string{"xid texts"}, wantPods: 2, wantOthers: 1},
		{name: "then peers, victims and processes; pods stay", pods: 14, processes: 20, xids: 40,
			cut: []string{"xid texts", "peers", "xids that are no cause", "xids past 4", "holders that are no pods"}, wantPods: 14, wantOthers: 4},
		{name: "pods last", pods: 60, processes: 60, xids: 60,
			cut: []string{"xid texts", "peers", "xids that are no cause", "xids past 4", "holders that are no pods", "holders past 12 pods"}, wantPods: 12, wantOthers: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := crowded(c.pods, c.processes, c.xids)
			before, _ := json.Marshal(a)
			b := a.Message()
			if len(b) > MaxMessageBytes {
				t.Fatalf("%d bytes", len(b))
			}
			if after, _ := json.Marshal(a); string(after) != string(before) {
				t.Error("the caller's answer was changed")
			}
			got, err := ParseAnswer(b)
			if err != nil {
				t.Fatalf("its own message is refused: %v", err)
			}
			if diff := cmp.Diff(c.cut, got.Cut); diff != "" {
				t.Errorf("cut (-want +got):\n%s", diff)
			}
			others := 0
			for _, h := range got.Device.Holders {
				if h.Pod == nil {
					others++
				}
			}
			if pods := len(got.Device.Pods()); pods != c.wantPods || others != c.wantOthers {
				t.Errorf("%d pods and %d others, want %d and %d", pods, others, c.wantPods, c.wantOthers)
			}
		})
	}
}

// TestMessageFitsAtItsWorst: names at their longest in every place still leave
// a verdict.
func TestMessageFitsAtItsWorst(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 300)
	a := crowded(120, 120, 64)
	a.Node, a.Detail, a.BootID = long, strings.Repeat("\x00<\u2028", 400), long
	a.Mark = &Mark{State: MarkStarted, Operation: long, Detail: strings.Repeat("\"", 600)}
	for i := range a.Device.Holders {
		if p := a.Device.Holders[i].Pod; p != nil {
			p.Namespace, p.Name, p.Container = long[:253], fmt.Sprint(i)+long[:240], long[:253]
		}
	}
	b := a.Message()
	got, err := ParseAnswer(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if len(b) > MaxMessageBytes || got.Code != CodeBusy || got.Generation != 2 || len(got.Cut) == 0 {
		t.Errorf("%d bytes: %s", len(b), b)
	}
}

func TestDataFits(t *testing.T) {
	t.Parallel()
	h := Host{Node: "gpu-node-04", Source: SourceRecorded, At: time.Unix(1_700_000_000, 0).UTC()}
	for i := range 80 {
		d := *crowded(120, 10, 64).Device
		d.UUID, d.Index = fmt.Sprintf("GPU-8f3c0a6e-1111-2222-3333-4444555566%02x", i), i
		h.Devices = append(h.Devices, d)
	}
	b := h.Data()
	if len(b) > MaxReportBytes {
		t.Fatalf("%d bytes", len(b))
	}
	got, err := ParseHost(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Devices) != MaxDevices || len(got.Devices[0].Holders) != 16 || len(got.Cut) == 0 || len(h.Devices[0].Holders) != 130 {
		t.Errorf("%d devices, %d holders, cut %v", len(got.Devices), len(got.Devices[0].Holders), got.Cut)
	}
}

func TestSpellings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"GPU-8F3C0A6E-1111-2222-3333-444455556666":  uuid,
		"8f3c0a6e-1111-2222-3333-444455556666":      uuid,
		" gpu-8f3c0a6e-1111-2222-3333-444455556666": uuid,
		"8f3c0a6e-1111-2222-3333-44445555666":       "",
		"MIG-8f3c0a6e-1111-2222-3333-444455556666":  "",
		"gpu-node-04/0": "",
	} {
		if got, ok := UUID(in); got != want || ok != (want != "") {
			t.Errorf("UUID(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"00000000:3B:00.0": "0000:3b:00.0",
		"0000:3b:00.0":     "0000:3b:00.0",
		"0000:3b:00":       "0000:3b:00.0",
		"3B:00.0":          "0000:3b:00.0",
		"00010000:3B:00.0": "10000:3b:00.0", // a domain past four digits, as VMD makes them
		"3b":               "",
		"0000:3b:00.9":     "",
	} {
		if got, ok := PCI(in); got != want || ok != (want != "") {
			t.Errorf("PCI(%q) = %q, want %q", in, got, want)
		}
	}
	d := Device{UUID: uuid, PCI: "0000:3b:00.0"}
	want := []string{"GPU-8F3C0A6E-1111-2222-3333-444455556666", "n1/00000000:3B:00.0", "n1/0000:3b:00.0"}
	if diff := cmp.Diff(want, d.Spellings("n1")); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	good := func() map[string]any {
		var m map[string]any
		if err := json.Unmarshal(crowded(1, 1, 1).Message(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	device := func(m map[string]any) map[string]any { return m["device"].(map[string]any) }
	for name, c := range map[string]struct {
		edit  func(m map[string]any)
		field string
	}{
		"version":  {func(m map[string]any) { m["version"] = 2 }, "version"},
		"verb":     {func(m map[string]any) { m["verb"] = "reboot" }, "verb"},
		"no code":  {func(m map[string]any) { delete(m, "code") }, "code"},
		"code":     {func(m map[string]any) { m["code"] = "Device Busy" }, "code"},
		"control":  {func(m map[string]any) { m["detail"] = "a\nb" }, "detail"},
		"long":     {func(m map[string]any) { m["detail"] = strings.Repeat("x", 600) }, "detail"},
		"negative": {func(m map[string]any) { m["generation"] = -1 }, "generation"},
		"uuid":     {func(m map[string]any) { device(m)["uuid"] = strings.ToUpper(uuid) }, "device.uuid"},
		"pci":      {func(m map[string]any) { device(m)["pci"] = "00000000:3B:00.0" }, "device.pci"},
		"health":   {func(m map[string]any) { device(m)["health"] = "fine" }, "device.health"},
		"mig":      {func(m map[string]any) { device(m)["mig"] = map[string]any{"current": "on"} }, "device.mig.current"},
		"nameless pod": {func(m map[string]any) {
			device(m)["holders"] = []any{map[string]any{"kind": "process", "pod": map[string]any{}}}
		}, "pod"},
		"too many":       {func(m map[string]any) { device(m)["peers"] = make([]string, 33) }, "device.peers"},
		"a mark's state": {func(m map[string]any) { m["mark"] = map[string]any{"state": "maybe"} }, "mark.state"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := good()
			c.edit(m)
			b, _ := json.Marshal(m)
			_, err := ParseAnswer(b)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.field+":") {
				t.Errorf("got %v, want it to name %s", err, c.field)
			}
		})
	}
	if _, err := ParseAnswer(make([]byte, MaxMessageBytes+1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a message past the limit: %v", err)
	}
	twice := Host{Node: "n", Source: SourceNVML, Devices: []Device{{UUID: uuid, Health: HealthOK}, {UUID: uuid, Health: HealthOK}}}
	if _, err := ParseHost(twice.Data()); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one device twice: %v", err)
	}
}

func TestXIDClasses(t *testing.T) {
	t.Parallel()
	for code, class := range map[int]string{
		13: ClassApplication, 31: ClassApplication, 43: ClassVictim, 45: ClassVictim, 48: ClassHardware, 63: ClassHardware, 64: ClassHardware,
		74: ClassHardware, 79: ClassHardware, 94: ClassHardware, 95: ClassHardware, 119: ClassDriver, 120: ClassDriver, 154: ClassInfo, 9999: ClassOther,
	} {
		if got := LookUpXID(code).Class; got != class {
			t.Errorf("XID %d is %s, want %s", code, got, class)
		}
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(crowded(3, 3, 3).Message())
	f.Add([]byte(`{"version":1,"verb":"reset","ok":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAnswer(b)
		if err != nil {
			return
		}
		if _, err := ParseAnswer(a.Message()); err != nil {
			t.Errorf("what was read cannot be written and read again: %v", err)
		}
	})
}

// The name of a report is the node's own with a prefix, as far as there is room,
// which is what the chart's admission policy works out.
func TestName(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("n", MaxNameBytes-len(Prefix))
	for node, want := range map[string]string{
		"gpu-1": "opsplane-host-gpu-1", "a.b": "opsplane-host-a.b", fits: "opsplane-host-" + fits, fits + "n": fits + "n",
		strings.Repeat("n", MaxNameBytes): strings.Repeat("n", MaxNameBytes),
	} {
		if got := Name(node); got != want || len(got) > MaxNameBytes {
			t.Errorf("of a node with %d bytes: %s, want %s", len(node), got, want)
		}
	}
}
