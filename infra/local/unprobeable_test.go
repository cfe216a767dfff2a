package local

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

const unprobeable = `
cluster: quiet
nodes:
  - name: node-a
    gpus: 1
    devices: [{index: 0, answer_lost: 1, probe_unknown: true}]
`

// TestUnprobeable: where no probe can tell, doorbells back off, a person's word
// is taken and no probe overrules it.
func TestUnprobeable(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	e, err := New(ctx, Options{Data: t.TempDir(), Addr: "127.0.0.1:0", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Registry.Create(ctx, PlaneCall(), "quiet")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte(unprobeable), 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := sim.Open(sim.Options{Scenario: path, StateDir: t.TempDir(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := loop.New(loop.Config{PlaneURL: "http://" + l.Addr().String(), Token: c.Secret, Name: "a", Version: "test", Executor: x, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(ctx, l) })
	wg.Go(func() { _ = agent.Run(ctx) })
	defer func() {
		cancel()
		wg.Wait()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()

	var device string
	eventually(t, "the device is reported", func() bool {
		all, err := record.All[fleet.Object](ctx, e.Store.Ledger, ledger.Query{Index: ledger.List, PK: record.InventoryList(operation.KindDevice)})
		if err == nil && len(all) == 1 {
			device = all[0].ID
		}
		return device != ""
	})
	call := PlaneCall()
	a, err := e.Admission.Admit(ctx, call, record.Encode(map[string]any{"type": "device.reset", "target": device, "reason": "r"}))
	if err != nil {
		t.Fatal(err)
	}
	op := a.Operation.Spec.ID
	load := func() operation.State {
		o, err := e.Store.Load(ctx, op)
		if err != nil {
			t.Fatal(err)
		}
		return o.State
	}
	eventually(t, "no probe can tell", func() bool {
		s := load()
		return s.Waiting != nil && s.Waiting.Code == operation.WaitResolve && s.Lease == nil
	})
	began := load()
	time.Sleep(3 * time.Second) // nothing must happen in this time
	if s := load(); s.Generation > began.Generation+1 {
		t.Errorf("%d claims within 3 s: doorbells do not back off", s.Generation-began.Generation)
	}
	resolveStep(t, e, call, op)
	// The step is issued once more, on the person's word; its answer comes now.
	eventually(t, "the operation ends", func() bool { return load().Phase.Terminal() })
	if s := load(); s.Phase != operation.Succeeded {
		t.Errorf("ended %s: %+v", s.Phase, s.Result)
	}
}

func resolveStep(t *testing.T, e *Engine, call admission.Call, op string) {
	t.Helper()
	in := control.ResolveInput{Step: "reset", Outcome: operation.ResolveNotDone, Evidence: "looked at the host", Reason: "r"}
	if _, err := e.Control.Resolve(context.Background(), call, op, in); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within a minute: %s", what)
}
