package host

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/hostcmd"
	"github.com/opsplane/opsplane/agent/executor/host/mark"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	gpuUUID   = "GPU-8f3c0a6e-1111-2222-3333-444455556666"
	envHelper = "OPSPLANE_TEST_HELPER"
)

// TestMain makes this binary the host's program, too: the executor starts it.
func TestMain(m *testing.M) {
	if os.Getenv(envHelper) != "" {
		os.Exit(hostcmd.Main(context.Background(), "", os.Args[1:], func(string) string { return "" }, os.Stdout, os.Stderr))
	}
	os.Setenv(envHelper, "1")
	os.Exit(m.Run())
}

type bench struct {
	t    *testing.T
	e    *Executor
	dir  string
	path string
}

func setup(t *testing.T, edit func(o *Options)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, path: filepath.Join(dir, "recorded.json")}
	b.record(recorded.Device{})
	id := filepath.Join(dir, "machine-id")
	if err := os.WriteFile(id, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Helper: os.Args[0], Args: []string{"--recorded=" + b.path, "--pod-logs=", "--pod-resources="}, State: filepath.Join(dir, "state"), Name: "bare-1", MachineID: id,
		Every: 20 * time.Millisecond}
	if edit != nil {
		edit(&o)
	}
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	b.e = e
	return b
}

func (b *bench) record(d recorded.Device) {
	b.t.Helper()
	if d.UUID == "" {
		d.UUID, d.PCI = gpuUUID, "0000:3b:00.0"
	}
	raw, err := json.Marshal(recorded.File{Driver: "580", Devices: []recorded.Device{d}})
	if err == nil {
		err = os.WriteFile(b.path+".new", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(b.path+".new", b.path)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) task(typ, step, op string, generation int64, payload string, fenced error) *executor.Task {
	uid, name := b.e.uid, "node:bare-1"
	if typ == "device.reset" {
		uid, name = gpuUUID, "device:"+gpuUUID
	}
	return &executor.Task{
		Assignment: &protocol.Assignment{Operation: op, Run: 1, Generation: generation, Type: typ, TargetUID: uid, TargetName: name, NodeName: "bare-1",
			Payload: json.RawMessage(payload), Reason: "a test", Actor: operation.Actor{ID: "tester"}},
		Step: protocol.Step{PlanStep: operation.PlanStep{ID: "stp", Name: step}}, Attempt: 1,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel, fenced
		},
		Progress: func(int, int, string, string) {}, Note: func(string, string) {}, Blocked: func([]protocol.Blocker) {},
		Begin:     func(string, string) (string, func(string, string)) { return "cmd", func(string, string) {} },
		Cancelled: make(chan struct{}), Remaining: func() time.Duration { return time.Minute },
	}
}

func (b *bench) run(typ, step, op string, generation int64, payload string) executor.Outcome {
	b.t.Helper()
	return b.e.Execute(b.t.Context(), b.task(typ, step, op, generation, payload, nil))
}

func want(t *testing.T, o executor.Outcome, class, code string) {
	t.Helper()
	if o.Class != class || o.ErrorCode != code {
		t.Errorf("outcome %s %s: %s; want %s %s", o.Class, o.ErrorCode, o.Detail, class, code)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	slow := recorded.Device{Device: report.Device{UUID: gpuUUID, PCI: "0000:3b:00.0"}}
	slow.Reset.TakesMS = 200
	b.record(slow)
	a := &protocol.Assignment{Operation: "op_a", Type: "device.reset", TargetUID: gpuUUID, NodeName: "bare-1"}
	for _, step := range []string{"preflight", "reset", "verify"} {
		want(t, b.run("device.reset", step, "op_a", 2, `{}`), operation.OutcomeDone, "")
		a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{Name: step}, Phase: operation.StepSucceeded})
	}
	end := b.e.Observe(t.Context(), a)
	if len(end.Verified) != 2 || len(end.Observed.Devices) != 1 || end.Observed.Devices[0].NodeUID != b.e.uid || !slices.ContainsFunc(end.NotVerified, func(s string) bool { return strings.Contains(s, "recorded") }) {
		t.Errorf("%+v", end)
	}
	if strings.Contains(end.Verified[1], "error") || !slices.ContainsFunc(end.NotVerified, func(s string) bool { return strings.Contains(s, "XID") }) {
		t.Errorf("nobody read the kernel's log: %q, %q", end.Verified, end.NotVerified)
	}
	var details struct {
		ResetMS int64 `json:"reset_ms"`
	}
	if err := json.Unmarshal(end.Details, &details); err != nil || details.ResetMS < slow.Reset.TakesMS {
		t.Errorf("details %s: %v", end.Details, err)
	}
	// Whoever comes after, or before.
	if f := b.e.Probe(t.Context(), b.task("device.reset", "reset", "op_a", 3, `{}`, executor.ErrFenced)); f.Phase != operation.StepSucceeded {
		t.Errorf("probe: %+v", f)
	}
	want(t, b.run("device.reset", "reset", "op_a", 3, `{}`), operation.OutcomeDone, "")
	want(t, b.run("device.reset", "reset", "op_a", 1, `{}`), operation.OutcomeTransient, "fenced")
	want(t, b.e.Execute(t.Context(), b.task("device.reset", "reset", "op_b", 1, `{}`, executor.ErrFenced)), operation.OutcomeTransient, "fenced")
	if n, err := recorded.Resets(b.path, gpuUUID); n != 1 || err != nil {
		t.Errorf("%d resets: %v", n, err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	held := recorded.Device{Device: report.Device{UUID: gpuUUID, PCI: "0000:3b:00.0"}, Processes: []gpu.Process{{PID: 7, Name: "python3"}}}
	b.record(held)
	want(t, b.run("device.reset", "preflight", "op_a", 1, `{}`), operation.OutcomePermanent, "device_busy")
	want(t, b.run("device.reset", "preflight", "op_a", 1, `{"drain":true}`), operation.OutcomePermanent, "not_supported")
	want(t, b.run("device.reset", "drain_holders", "op_a", 1, `{"drain":true}`), operation.OutcomePermanent, "not_supported")
	for _, step := range []string{"preflight", "cordon", "evict"} {
		o := b.run("node.drain", step, "op_a", 1, `{}`)
		want(t, o, operation.OutcomePermanent, "not_supported")
		if !strings.Contains(o.Detail, "bare-1") || o.ActionText == "" {
			t.Errorf("%+v", o)
		}
	}
	want(t, b.run("deployment.roll", "preflight", "op_a", 1, `{}`), operation.OutcomePermanent, "not_supported")
	other := b.task("node.cordon", "cordon", "op_a", 1, `{}`, nil)
	other.Assignment.TargetUID = "another"
	want(t, b.e.Execute(t.Context(), other), operation.OutcomePermanent, "node_gone")
	for _, c := range b.e.Capabilities() {
		if c.Name == "node.drain" {
			t.Error("it says that it drains")
		}
	}
	for _, p := range []struct{ typ, code string }{{"node.drain", "not_supported"}, {"device.reset", "holder"}} {
		uid := b.e.uid
		if p.typ == "device.reset" {
			uid = gpuUUID
		}
		got, err := b.e.Preview(t.Context(), protocol.PreviewRequest{Type: p.typ, TargetUID: uid, NodeName: "bare-1"})
		if err != nil || len(got) != 1 || got[0].Code != p.code {
			t.Errorf("preview %s: %+v %v", p.typ, got, err)
		}
	}
}

// TestHelperFails: the host's program is not there, or dies, or hangs. A reset
// whose answer did not come is ambiguous and its probe tells the truth.
func TestHelperFails(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Helper = "/nowhere/opsplane-host" })
	want(t, b.run("device.reset", "preflight", "op_a", 1, `{}`), operation.OutcomeTransient, "host_error")
	if _, err := b.e.Snapshot(t.Context()); err == nil {
		t.Error("an inventory without a look")
	}

	b = setup(t, nil)
	slow := recorded.Device{Device: report.Device{UUID: gpuUUID, PCI: "0000:3b:00.0"}}
	slow.Reset.TakesMS = 4000 // longer than it takes to see that it was begun
	b.record(slow)
	ctx, cancel := context.WithCancel(t.Context())
	task := b.task("device.reset", "reset", "op_a", 1, `{}`, nil)
	out := make(chan executor.Outcome, 1)
	go func() { out <- b.e.Execute(ctx, task) }()
	state := func() string {
		book, err := mark.Peek(b.e.o.State, gpuUUID)
		if err != nil {
			t.Fatal(err)
		}
		if m := book.Of("op_a"); m != nil {
			return m.State
		}
		return ""
	}
	for state() == "" { // until the host's program is at it
		time.Sleep(time.Millisecond)
	}
	cancel()
	want(t, <-out, operation.OutcomeAmbiguous, "answer_lost")
	if s := state(); s != report.MarkStarted {
		t.Errorf("it was stopped in the middle, and returned when the reset was %s", s)
	}
	for state() == report.MarkStarted {
		time.Sleep(10 * time.Millisecond)
	}
	if f := b.e.Probe(t.Context(), b.task("device.reset", "reset", "op_a", 2, `{}`, executor.ErrFenced)); f.Phase != operation.StepSucceeded {
		t.Errorf("probe: %+v", f)
	}
}

func TestCordon(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	probe := func(typ, step string) operation.StepPhase {
		return b.e.Probe(t.Context(), b.task(typ, step, "op_p", 1, `{}`, executor.ErrFenced)).Phase
	}
	if probe("node.cordon", "cordon") != operation.StepPending || probe("node.uncordon", "uncordon") != operation.StepSucceeded {
		t.Error("an open host does not look so")
	}
	want(t, b.run("node.cordon", "cordon", "op_a", 2, `{}`), operation.OutcomeDone, "")
	o := b.run("node.cordon", "confirm", "op_a", 2, `{}`)
	want(t, o, operation.OutcomeDone, "")
	if !strings.Contains(o.Detail, "nothing on it enforces") {
		t.Errorf("it claims more than it does: %s", o.Detail)
	}
	inv, err := b.e.Snapshot(t.Context())
	if err != nil || inv.Nodes[0].Schedulable || inv.Nodes[0].Cordon.Operation != "op_a" || len(inv.Devices) != 1 {
		t.Errorf("%+v: %v", inv, err)
	}
	// A second cordon leaves the owner; an older lease of the first is refused.
	want(t, b.run("node.cordon", "cordon", "op_b", 1, `{}`), operation.OutcomeDone, "")
	want(t, b.run("node.uncordon", "uncordon", "op_a", 1, `{}`), operation.OutcomeTransient, "fenced")
	if book, err := b.e.readCordon(); err != nil || book.Cordon.Operation != "op_a" {
		t.Errorf("%+v: %v", book, err)
	}
	end := b.e.Observe(t.Context(), &protocol.Assignment{Type: "node.cordon", TargetUID: b.e.uid, TargetName: "node:bare-1"})
	if len(end.NotVerified) != 1 || len(end.Observed.Nodes) != 1 || end.Observed.Nodes[0].Schedulable {
		t.Errorf("%+v", end)
	}
	// One that a person wrote stays theirs.
	byHand := `{"cordon":{"owner":"external","by":"alice","reason":"fan","since":"2026-03-01T00:00:00Z"}}`
	if err := os.WriteFile(filepath.Join(b.e.o.State, CordonFile), []byte(byHand), 0o600); err != nil {
		t.Fatal(err)
	}
	o = b.run("node.uncordon", "uncordon", "op_c", 1, `{}`)
	want(t, o, operation.OutcomePermanent, "cordon_not_owned")
	if !strings.Contains(o.Detail, "alice (fan)") {
		t.Errorf("%s", o.Detail)
	}
	want(t, b.run("node.uncordon", "uncordon", "op_d", 1, `{"take_over":true}`), operation.OutcomeDone, "")
	want(t, b.run("node.uncordon", "confirm", "op_d", 1, `{}`), operation.OutcomeDone, "")
	want(t, b.run("node.cordon", "confirm", "op_d", 1, `{}`), operation.OutcomePermanent, "uncordoned_externally")
}

// TestWatch: objects at first, then what changed and what it means.
func TestWatch(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deltas := make(chan executor.Delta, 16)
	done := make(chan error, 1)
	go func() { done <- b.e.Watch(ctx, func(d executor.Delta) { deltas <- d }) }()
	first := <-deltas
	if len(first.Objects.Nodes) != 1 || len(first.Objects.Devices) != 1 || len(first.Events) != 0 {
		t.Errorf("first %+v", first)
	}
	b.record(recorded.Device{Device: report.Device{UUID: gpuUUID, PCI: "0000:3b:00.0", Recovery: report.RecoveryReset}})
	d := <-deltas
	if len(d.Events) != 1 || d.Events[0].Type != "device.degraded" || len(d.Objects.Devices) != 1 || d.Objects.Devices[0].Revision <= first.Objects.Devices[0].Revision {
		t.Errorf("degraded %+v", d)
	}
	b.record(recorded.Device{Device: report.Device{UUID: "GPU-00000000-1111-2222-3333-444455556666", PCI: "0000:3b:00.0"}})
	d = <-deltas
	if len(d.Events) != 2 || d.Events[0].Type != "device.joined" || d.Events[1].Type != "device.left" || !slices.Equal(d.Gone, []string{"device/" + gpuUUID}) {
		t.Errorf("exchanged %+v", d)
	}
	want(t, b.run("node.cordon", "cordon", "op_a", 1, `{}`), operation.OutcomeDone, "")
	d = <-deltas
	if len(d.Events) != 1 || d.Events[0].Type != "node.cordoned" || len(d.Objects.Nodes) != 1 {
		t.Errorf("cordoned %+v", d)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestUncordonTellsWhoLiftedIt: the operation that lifts the host's cordon is named for
// it, and the one that placed it as that; of a lift by hand only the latter.
func TestUncordonTellsWhoLiftedIt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	look := func() *seen {
		book, err := b.e.readCordon()
		if err != nil {
			t.Fatal(err)
		}
		h := report.Host{}
		return &seen{inv: b.e.inventory(&h, book), lifted: book.Lifted, host: h}
	}
	type detail struct {
		Owner, Operation string
		Was              struct{ Owner, Operation string }
	}
	turned := func(was, now *seen, typ string) (d detail) {
		t.Helper()
		e := b.e.delta(was, now).Events
		if len(e) != 1 || e[0].Type != typ {
			t.Fatalf("told %+v", e)
		}
		if err := json.Unmarshal(e[0].Detail, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	do := func(typ, step, op string) *seen {
		t.Helper()
		want(t, b.run(typ, step, op, 1, `{}`), operation.OutcomeDone, "")
		return look()
	}
	open := look()
	closed := do("node.cordon", "cordon", "op_a")
	if d := turned(open, closed, "node.cordoned"); d.Owner != "opsplane" || d.Operation != "op_a" {
		t.Errorf("cordoned: %+v", d)
	}
	lifted := do("node.uncordon", "uncordon", "op_b")
	if d := turned(closed, lifted, "node.uncordoned"); d.Owner != "opsplane" || d.Operation != "op_b" || d.Was.Operation != "op_a" || d.Was.Owner != "opsplane" {
		t.Errorf("lifted by an operation: %+v", d)
	}
	closed = do("node.cordon", "cordon", "op_c")
	if err := os.Remove(filepath.Join(b.e.o.State, CordonFile)); err != nil {
		t.Fatal(err)
	}
	if d := turned(closed, look(), "node.uncordoned"); d.Owner != "external" || d.Operation != "" || d.Was.Operation != "op_c" {
		t.Errorf("lifted by hand: %+v", d)
	}
	// By hand, in a book that still tells of an earlier lift.
	late := &seen{inv: closed.inv, lifted: lifted.lifted, host: closed.host}
	now := &seen{inv: open.inv, lifted: lifted.lifted, host: closed.host}
	if d := turned(late, now, "node.uncordoned"); d.Owner != "external" || d.Operation != "" {
		t.Errorf("lifted by hand after an operation: %+v", d)
	}
}

// TestXIDEvents: each XID that came since the last look, once.
func TestXIDEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	look := func(n int) *seen {
		h := report.Host{Devices: []report.Device{{UUID: gpuUUID, Health: report.HealthOK, XIDs: []report.XID{{Code: 45, Class: report.ClassVictim, Count: n, VictimOf: 48}}}}}
		return &seen{inv: b.e.inventory(&h, cordonBook{}), xids: counts(&h), host: h}
	}
	was, now := look(2), look(5)
	d := b.e.delta(was, now)
	if len(d.Events) != 1 || d.Events[0].Type != "device.xid" || !strings.Contains(string(d.Events[0].Detail), `"cause":false`) || !strings.Contains(string(d.Events[0].Detail), `"count":3`) {
		t.Errorf("%+v", d.Events)
	}
	if d := b.e.delta(now, look(5)); len(d.Events) != 0 {
		t.Errorf("again %+v", d.Events)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{MachineID: filepath.Join(t.TempDir(), "none"), State: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no id") {
		t.Errorf("without an id: %v", err)
	}
	if machineUID("a") == machineUID("b") || strings.Contains(machineUID("0123456789abcdef"), "0123456789abcdef") {
		t.Error("the node's UID tells the machine's id")
	}
}
