package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

// bench is a host with a recorded GPU.
type bench struct {
	t    *testing.T
	dir  string
	path string // of the recording
	host *Host
}

func setup(t *testing.T, d recorded.Device) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, path: filepath.Join(dir, "node.json")}
	b.host = newHost(dir, b.path)
	b.record(d)
	return b
}

func newHost(dir, path string) *Host {
	return &Host{Node: "gpu-1", State: filepath.Join(dir, "state"), Now: time.Now, Kernel: filepath.Join(dir, "kmsg"),
		Open: func() (gpu.Driver, error) { return recorded.Open(path, "gpu-1") }}
}

func (b *bench) record(d recorded.Device) {
	b.t.Helper()
	if d.UUID == "" {
		d.UUID, d.PCI, d.Architecture = uuid, "0000:3b:00.0", "hopper"
	}
	raw, err := json.Marshal(recorded.File{Driver: "580.65.06", Devices: []recorded.Device{d}})
	if err == nil {
		err = os.WriteFile(b.path, raw, 0o600)
	}
	if err == nil {
		err = os.WriteFile(b.host.Kernel, nil, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) resets() int {
	b.t.Helper()
	n, err := recorded.Resets(b.path, uuid)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func by(op string, run int, generation int64) Question {
	return Question{Device: uuid, By: mark.By{Operation: op, Run: run, Generation: generation}}
}

// sound checks that an answer is one that the agent takes.
func sound(t *testing.T, a report.Answer) report.Answer {
	t.Helper()
	got, err := report.ParseAnswer(a.Message())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func dev(f func(d *recorded.Device)) recorded.Device {
	d := recorded.Device{Device: report.Device{UUID: uuid, PCI: "0000:3b:00.0", Architecture: "hopper"}}
	f(&d)
	return d
}

// TestRefusals: each thing that stands in the way has its code, in preflight and
// in the reset, and leaves no mark.
func TestRefusals(t *testing.T) {
	t.Parallel()
	peer := "GPU-00000000-1111-2222-3333-444455556666"
	for name, c := range map[string]struct {
		device recorded.Device
		code   string
		says   string
	}{
		"vgpu guest":       {dev(func(d *recorded.Device) { d.Virtual = report.VirtualVGPU }), report.CodeNotSupported, "vGPU"},
		"passthrough":      {dev(func(d *recorded.Device) { d.Virtual = report.VirtualPassthrough }), "", ""},
		"mig":              {dev(func(d *recorded.Device) { d.MIG = &report.MIG{Current: "enabled", Pending: "disabled"} }), report.CodeMIG, "disabled at the next reset"},
		"no mig change":    {dev(func(d *recorded.Device) { d.MIG = &report.MIG{Current: "enabled", Pending: "enabled"} }), "", ""},
		"volta peers":      {dev(func(d *recorded.Device) { d.Architecture, d.Peers = "volta", []string{peer} }), report.CodePeers, peer},
		"ampere direct":    {dev(func(d *recorded.Device) { d.Architecture, d.Peers = "ampere", []string{peer} }), "", ""},
		"ampere switched":  {dev(func(d *recorded.Device) { d.Architecture, d.Peers, d.NVSwitch = "ampere", []string{peer}, true }), report.CodePeers, "fabric manager does not run"},
		"hopper switched":  {dev(func(d *recorded.Device) { d.Peers, d.NVSwitch = []string{peer}, true }), "", ""},
		"driver: reboot":   {dev(func(d *recorded.Device) { d.Recovery = report.RecoveryReboot }), report.CodeReboot, "rebooted"},
		"driver: reset":    {dev(func(d *recorded.Device) { d.Recovery = report.RecoveryReset }), "", ""},
		"driver: drain":    {dev(func(d *recorded.Device) { d.Recovery = report.RecoveryDrainAndReset }), "", ""},
		"driver: bus":      {dev(func(d *recorded.Device) { d.Recovery = report.RecoveryBusReset }), report.CodeNotSupported, "bus reset"},
		"persistence mode": {dev(func(d *recorded.Device) { d.Persistence = true }), report.CodeBusy, "persistence mode"},
		"persistenced": {dev(func(d *recorded.Device) {
			d.Persistence, d.Processes = true, []gpu.Process{{PID: 9, Name: "nvidia-persiste"}}
		}), report.CodeBusy, "persistenced nvidia-persiste (9)"},
		"exporter":       {dev(func(d *recorded.Device) { d.Processes = []gpu.Process{{PID: 9, Name: "nv-hostengine"}} }), report.CodeBusy, "exporter nv-hostengine (9)"},
		"fabric manager": {dev(func(d *recorded.Device) { d.Processes = []gpu.Process{{PID: 9, Name: "nv-fabricmanage"}} }), "", ""},
		"process":        {dev(func(d *recorded.Device) { d.Processes = []gpu.Process{{PID: 9, Name: "python3"}} }), report.CodeBusy, "process python3 (9)"},
		"pod": {dev(func(d *recorded.Device) {
			d.Processes = []gpu.Process{{PID: 9, Name: "python3", Pod: &report.Pod{Namespace: "a", Name: "b", UID: "c"}}}
		}), report.CodeBusy, "pod a/b"},
		"vm":             {dev(func(d *recorded.Device) { d.VMs = 2 }), report.CodeBusy, "2 virtual machines"},
		"nothing":        {dev(func(*recorded.Device) {}), "", ""},
		"another device": {recorded.Device{Device: report.Device{UUID: peer, PCI: "0000:3c:00.0"}}, report.CodeGone, "has no device"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.device)
			for verb, ask := range map[string]func(context.Context, Question) report.Answer{"preflight": b.host.Preflight, "reset": b.host.Reset} {
				a := sound(t, ask(t.Context(), by("op_a", 1, 1)))
				if a.OK != (c.code == "") || a.Code != c.code || !strings.Contains(a.Detail, c.says) {
					t.Errorf("%s: %v %s: %s", verb, a.OK, a.Code, a.Detail)
				}
				if verb == "preflight" && b.resets() != 0 && c.code != "" {
					t.Error("a preflight reset")
				}
			}
			book, err := mark.Peek(b.host.State, uuid)
			if err != nil || (len(book.Entries) > 0) != (c.code == "") {
				t.Errorf("marks %+v: %v", book.Entries, err)
			}
		})
	}
}

// TestDriverSaysNo: the driver refuses what nobody could foresee. The mark says
// that nothing was reset, so the run may try again.
func TestDriverSaysNo(t *testing.T) {
	t.Parallel()
	b := setup(t, dev(func(d *recorded.Device) { d.Reset.Refuse = report.CodeNotSupported }))
	a := sound(t, b.host.Reset(t.Context(), by("op_a", 1, 1)))
	if a.OK || a.Code != report.CodeNotSupported || a.Mark.State != report.MarkRefused {
		t.Fatalf("%+v", a)
	}
	b.record(dev(func(*recorded.Device) {}))
	if a := sound(t, b.host.Reset(t.Context(), by("op_a", 1, 1))); !a.OK || a.Already || b.resets() != 1 {
		t.Errorf("%+v", a)
	}
}

// TestOnce: a run resets once, whatever its leases believe; an older one is
// refused; another run, and another operation, reset again.
func TestOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, recorded.Device{})
	for i, c := range []struct {
		q       Question
		ok      bool
		already bool
		code    string
		resets  int
	}{
		{by("op_a", 1, 2), true, false, "", 1},
		{by("op_a", 1, 2), true, true, "", 1},
		{by("op_a", 1, 3), true, true, "", 1},
		{by("op_a", 1, 1), false, false, report.CodeStale, 1},
		{by("op_b", 1, 1), true, false, "", 2},
		{by("op_a", 1, 1), false, false, report.CodeStale, 2}, // it is remembered past another
		{by("op_a", 2, 4), true, false, "", 3},
		{by("op_a", 1, 4), false, false, report.CodeStale, 3},
	} {
		a := sound(t, b.host.Reset(t.Context(), c.q))
		if a.OK != c.ok || a.Already != c.already || a.Code != c.code || b.resets() != c.resets {
			t.Errorf("%d: ok %v already %v %s, %d resets: %s", i, a.OK, a.Already, a.Code, b.resets(), a.Detail)
		}
	}
}

// TestTwoSpellings: one device under two names has one mark.
func TestTwoSpellings(t *testing.T) {
	t.Parallel()
	b := setup(t, recorded.Device{})
	for i, name := range []string{strings.ToUpper(strings.TrimPrefix(uuid, "GPU-")), uuid, "00000000:3B:00.0", "0000:3b:00.0", "3B:00.0"} {
		q := by("op_a", 1, 1)
		q.Device = name
		a := sound(t, b.host.Reset(t.Context(), q))
		if !a.OK || a.Already != (i > 0) || a.Device != nil && a.Device.UUID != uuid {
			t.Errorf("%s: %+v", name, a)
		}
		if m := sound(t, b.host.Mark(t.Context(), q)); !m.OK || m.Mark.State != report.MarkDone {
			t.Errorf("mark by %s: %+v", name, m)
		}
	}
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestRace: many resets of one run at once, as two generations' Jobs would: one
// resets.
func TestRace(t *testing.T) {
	t.Parallel()
	b := setup(t, dev(func(d *recorded.Device) { d.Reset.TakesMS = 50 }))
	var wg sync.WaitGroup
	answers := make(chan report.Answer, 8)
	for g := range int64(8) {
		wg.Go(func() { answers <- newHost(b.dir, b.path).Reset(t.Context(), by("op_a", 1, g/4+1)) })
	}
	wg.Wait()
	close(answers)
	fresh := 0
	for a := range answers {
		switch {
		case a.OK && !a.Already:
			fresh++
		case a.OK, a.Code == report.CodeStale:
		default:
			t.Errorf("%+v", a)
		}
	}
	if n := b.resets(); n != 1 || fresh != 1 {
		t.Errorf("%d resets, %d say that it was theirs", n, fresh)
	}
}

// TestHeld: another process is in a reset: nobody waits past its patience, and it
// is told.
func TestHeld(t *testing.T) {
	t.Parallel()
	b := setup(t, recorded.Device{})
	book, err := mark.Open(b.host.State, uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if a := sound(t, b.host.Reset(t.Context(), by("op_a", 1, 1))); a.Code != report.CodeInProgress {
		t.Errorf("reset: %+v", a)
	}
	if a := sound(t, b.host.Mark(t.Context(), by("op_a", 1, 1))); a.Code != report.CodeInProgress || a.OK {
		t.Errorf("mark: %+v", a)
	}
	release, err := b.host.lockDriver(t.Context(), syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, ok := b.host.Report(short); ok {
		t.Error("a host was looked at while a device is reset")
	}
}

// TestVerify tells a device that works from one that does not, and from one that
// reported errors since its reset.
func TestVerify(t *testing.T) {
	t.Parallel()
	xid := func(after time.Duration, pci string, code int) func(b *bench) {
		return func(b *bench) {
			b.t.Helper()
			boot, err := bootAt(after)
			if err == nil {
				err = os.WriteFile(b.host.Kernel, fmt.Appendf(nil, "3,1,%d,-;NVRM: Xid (PCI:%s): %d, text\n", boot.Microseconds(), pci, code), 0o600)
			}
			if err != nil {
				b.t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		device recorded.Device
		then   func(b *bench)
		code   string
	}{
		"usable":                    {device: dev(func(d *recorded.Device) { d.Recovery = report.RecoveryReset })},
		"does not come back":        {device: dev(func(d *recorded.Device) { d.Reset.StaysBroken = true }), code: report.CodeUnusable},
		"is not there":              {device: dev(func(d *recorded.Device) { d.Reset.Vanishes = true }), code: report.CodeGone},
		"XID before the reset":      {then: xid(-time.Hour, "0000:3b:00", 79)},
		"XID since":                 {then: xid(time.Second, "0000:3b:00", 48), code: report.CodeErrors},
		"XID during the reset":      {device: dev(func(d *recorded.Device) { d.Reset.TakesMS = 300 }), then: xid(-100*time.Millisecond, "0000:3b:00", 48), code: report.CodeErrors},
		"a victim since":            {then: xid(time.Second, "0000:3b:00", 45)},
		"a program's since":         {then: xid(time.Second, "0000:3b:00", 31)},
		"another device's":          {then: xid(time.Second, "0000:86:00", 48)},
		"uncorrected memory errors": {device: dev(func(d *recorded.Device) { d.ECC, d.Reset.NoTrace = &report.ECC{Uncorrected: 1}, true }), code: report.CodeErrors},
		"corrected memory errors":   {device: dev(func(d *recorded.Device) { d.ECC, d.Reset.NoTrace = &report.ECC{Corrected: 9}, true })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.device)
			q := by("op_a", 1, 1)
			if a := sound(t, b.host.Reset(t.Context(), q)); !a.OK {
				t.Fatalf("reset: %+v", a)
			}
			if c.then != nil {
				c.then(b)
			}
			if a := sound(t, b.host.Verify(t.Context(), q)); a.OK != (c.code == "") || a.Code != c.code {
				t.Errorf("%+v", a)
			}
		})
	}
}

// bootAt is the kernel's clock at a time from now.
func bootAt(after time.Duration) (time.Duration, error) {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	up, err := time.ParseDuration(strings.Fields(string(b))[0] + "s")
	return max(up+after, 0), err
}

// TestPersistence: with it, persistence mode is turned off for the reset and on
// again; a reset that died before turning it on is made good by the next look.
func TestPersistence(t *testing.T) {
	t.Parallel()
	b := setup(t, dev(func(d *recorded.Device) { d.Persistence = true }))
	b.host.Persistence = true
	q := by("op_a", 1, 1)
	var during bool
	b.host.Pause = func(point string) {
		if point == Acted {
			during = b.persistence()
		}
	}
	if a := sound(t, b.host.Reset(t.Context(), q)); !a.OK || during || !b.persistence() {
		t.Errorf("%+v, on during the reset %v, on after it %v", a, during, b.persistence())
	}
	book, err := mark.Open(b.host.State, uuid)
	if err != nil {
		t.Fatal(err)
	}
	e := book.Entries[0]
	e.Persistence = true
	if err := book.Put(e); err != nil {
		t.Fatal(err)
	}
	book.Close()
	d, err := b.host.Open()
	if err == nil {
		err = d.SetPersistence(t.Context(), uuid, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a := sound(t, b.host.Verify(t.Context(), q)); !a.OK || !b.persistence() {
		t.Errorf("%+v, on %v", a, b.persistence())
	}
}

func (b *bench) persistence() bool {
	b.t.Helper()
	d, err := b.host.Open()
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := d.Read(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return s.Devices[0].Persistence
}

// TestKilledChild is the process that TestKilled kills.
func TestKilledChild(t *testing.T) {
	point, dir := os.Getenv("KILL_AT"), os.Getenv("KILL_DIR")
	if point == "" {
		return
	}
	h := newHost(dir, filepath.Join(dir, "node.json"))
	h.Pause = func(at string) {
		if at == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	h.Reset(t.Context(), by("op_a", 1, 1))
	t.Fatal("it lived")
}

// TestKilled: kill -9 between the mark and its end. Where the device shows what
// happened the truth is told; where nothing does, that nobody knows. Nothing is
// reset twice.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at     string
		device recorded.Device
		state  string // of the mark, as told afterwards
		code   string
		resets int // after the run tried again
	}{
		"after the reset, a recovery action is gone": {Acted, dev(func(d *recorded.Device) { d.Recovery = report.RecoveryReset }), report.MarkDone, "", 1},
		"after the reset, counters began anew":       {Acted, dev(func(d *recorded.Device) { d.ECC = &report.ECC{Corrected: 7} }), report.MarkDone, "", 1},
		"after the reset, nothing shows it":          {Acted, dev(func(d *recorded.Device) { d.Reset.NoTrace = true }), report.MarkStarted, report.CodeUnknown, 1},
		"before the reset, nothing shows it":         {Started, dev(func(*recorded.Device) {}), report.MarkStarted, report.CodeUnknown, 0},
		"before the reset, counters stand":           {Started, dev(func(d *recorded.Device) { d.ECC = &report.ECC{Corrected: 7} }), report.MarkRefused, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.device)
			child := exec.Command(os.Args[0], "-test.run", "^TestKilledChild$")
			child.Env = append(os.Environ(), "KILL_AT="+c.at, "KILL_DIR="+b.dir)
			err := child.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended by itself: %v", err)
			}
			q := by("op_a", 1, 2)
			m := sound(t, b.host.Mark(t.Context(), q))
			if m.OK != (c.code == "") || m.Code != c.code || m.Mark.State != c.state || m.Mark.Generation != 1 {
				t.Errorf("mark: %+v %+v", m, m.Mark)
			}
			a := sound(t, b.host.Reset(t.Context(), q))
			if a.Code != c.code || b.resets() != c.resets {
				t.Errorf("the next lease: %+v, %d resets", a, b.resets())
			}
			if stale := sound(t, b.host.Reset(t.Context(), by("op_a", 1, 0))); c.code == "" && stale.OK {
				t.Errorf("an older lease: %+v", stale)
			}
		})
	}
}

// TestTrace: what a device shows after a reset whose end is not on record. Counters
// prove that nothing was reset only where they stand as they stood: a device that is
// ill counts past that again in no time.
func TestTrace(t *testing.T) {
	t.Parallel()
	ecc := func(corrected, uncorrected int64) *report.ECC {
		return &report.ECC{Corrected: corrected, Uncorrected: uncorrected}
	}
	for name, c := range map[string]struct {
		before mark.Evidence
		now    report.Device
		want   string
	}{
		"counters stand":           {mark.Evidence{Corrected: 7}, report.Device{ECC: ecc(7, 0)}, report.MarkRefused},
		"both stand":               {mark.Evidence{Corrected: 7, Uncorrected: 1}, report.Device{ECC: ecc(7, 1)}, report.MarkRefused},
		"counters grew":            {mark.Evidence{Corrected: 1}, report.Device{ECC: ecc(5, 0)}, report.MarkStarted},
		"one stands, one grew":     {mark.Evidence{Corrected: 1, Uncorrected: 1}, report.Device{ECC: ecc(1, 2)}, report.MarkStarted},
		"counters began anew":      {mark.Evidence{Corrected: 7}, report.Device{ECC: ecc(2, 0)}, report.MarkDone},
		"none before, none now":    {mark.Evidence{}, report.Device{ECC: ecc(0, 0)}, report.MarkStarted},
		"none before, some now":    {mark.Evidence{}, report.Device{ECC: ecc(3, 0)}, report.MarkStarted},
		"no counters are kept":     {mark.Evidence{Corrected: 7}, report.Device{}, report.MarkStarted},
		"an action is gone":        {mark.Evidence{Recovery: report.RecoveryReset, Corrected: 7}, report.Device{Recovery: report.RecoveryNone, ECC: ecc(7, 0)}, report.MarkDone},
		"an action is still asked": {mark.Evidence{Recovery: report.RecoveryReset}, report.Device{Recovery: report.RecoveryReset}, report.MarkStarted},
	} {
		if got, why := trace(&mark.Entry{Mark: report.Mark{BootID: "a"}, Before: c.before}, &c.now, "a"); got != c.want || (why == "") != (got == report.MarkStarted) {
			t.Errorf("%s: %s (%s), want %s", name, got, why, c.want)
		}
	}
}

// TestNoDriver: a host without a driver says so, whatever it is asked.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	h := newHost(t.TempDir(), "none")
	h.Open = func() (gpu.Driver, error) { return nil, fmt.Errorf("%w: none is here", gpu.ErrNoDriver) }
	q := by("op_a", 1, 1)
	for verb, a := range map[string]report.Answer{"preflight": h.Preflight(t.Context(), q), "reset": h.Reset(t.Context(), q), "verify": h.Verify(t.Context(), q), "pods": h.Pods(t.Context(), q)} {
		if a = sound(t, a); a.OK || a.Code != report.CodeNoDriver {
			t.Errorf("%s: %+v", verb, a)
		}
	}
	r, ok := h.Report(t.Context())
	if !ok || r.Code != report.CodeNoDriver {
		t.Errorf("report: %+v", r)
	}
	if a := sound(t, h.Mark(t.Context(), q)); !a.OK || a.Mark.State != report.MarkNone { // the mark needs no driver
		t.Errorf("mark: %+v", a)
	}
}

// TestReport: health is what the driver says, and XIDs that accuse the device
// since its last reset.
func TestReport(t *testing.T) {
	t.Parallel()
	b := setup(t, dev(func(d *recorded.Device) { d.ECC = &report.ECC{} }))
	up, err := bootAt(0)
	if err != nil {
		t.Fatal(err)
	}
	log := fmt.Sprintf("3,1,%d,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", up.Microseconds()-1000)
	if err := os.WriteFile(b.host.Kernel, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	h, ok := b.host.Report(t.Context())
	if _, err := report.ParseHost(h.Data()); err != nil || !ok || h.Source != report.SourceRecorded || h.Driver != "580.65.06" {
		t.Fatalf("%+v: %v", h, err)
	}
	if d := h.Devices[0]; d.Health != report.HealthUnusable || !strings.Contains(d.Detail, "XID 79 (GPU has fallen off the bus)") {
		t.Errorf("%+v", d)
	}
	if a := b.host.Reset(t.Context(), by("op_a", 1, 1)); !a.OK {
		t.Fatalf("%+v", a)
	}
	if h, _ = b.host.Report(t.Context()); h.Devices[0].Health != report.HealthOK || len(h.Devices[0].XIDs) != 1 {
		t.Errorf("after a reset: %+v", h.Devices[0])
	}
	if a := b.host.Verify(t.Context(), by("op_a", 1, 1)); !a.OK || !a.XIDsRead {
		t.Errorf("with a log: %+v", a)
	}
	if err := os.Remove(b.host.Kernel); err != nil {
		t.Fatal(err)
	}
	if a := sound(t, b.host.Verify(t.Context(), by("op_a", 1, 1))); !a.OK || a.XIDsRead || !strings.Contains(a.Detail, "not looked at: read kernel log") {
		t.Errorf("without a log: %+v", a)
	}
	if h, _ = b.host.Report(t.Context()); len(h.Cut) != 1 || !strings.Contains(h.Cut[0], "kernel log") {
		t.Errorf("without a log: %v", h.Cut)
	}
}

// TestNoLock: without its lock nothing is asked of the driver.
func TestNoLock(t *testing.T) {
	t.Parallel()
	b := setup(t, recorded.Device{})
	if err := os.MkdirAll(b.host.State, 0o700); err != nil {
		t.Fatal(err)
	}
	// Root heeds no mode, so a lock that cannot be written is a folder of its name.
	if err := os.Mkdir(filepath.Join(b.host.State, "driver.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if a := sound(t, b.host.Reset(t.Context(), by("op_a", 1, 1))); a.OK || a.Code != report.CodeHost || b.resets() != 0 {
		t.Errorf("reset: %+v", a)
	}
}
