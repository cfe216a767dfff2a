package loop

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// apart is an executor with its own way to the world, which may be cut.
type apart struct {
	*script
	away  atomic.Bool
	began atomic.Int64 // steps that it executed
}

type silentError struct{ error }

func (silentError) Code() string { return codeSilent }

func (a *apart) Healthy() error {
	if a.away.Load() {
		return errors.Join(errors.New("watch nodes"), silentError{errors.New(mute)})
	}
	return nil
}

func (a *apart) Probe(ctx context.Context, t *executor.Task) executor.Finding {
	if a.away.Load() {
		pause(ctx, 8*time.Second)
		return executor.Unknown(codeSilent, mute)
	}
	return a.script.Probe(ctx, t)
}

// Execute waits for the cut to be mended as executors do that watch: it shows the
// silence, and stops at a boundary.
func (a *apart) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	a.began.Add(1)
	for a.away.Load() {
		t.Blocked([]protocol.Blocker{{Code: codeSilent, Resource: "cluster", Rule: "api_server", Detail: mute}})
		if why := executor.Wait(ctx, t, time.Second); why != "" {
			return executor.Waiting(why, mute)
		}
	}
	t.Blocked(nil)
	return a.script.Execute(ctx, t)
}

// beside starts a second agent with an executor of its own. It stops with the test.
func (b *bench) beside(x executor.Executor) (stop func()) {
	cfg := b.cfg
	cfg.Name, cfg.StateDir, cfg.Executor = "second", "", x
	a, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
}

// TestCutOffTakesNothingNew: while an agent knows that its API server does not answer
// it leaves new work to another agent, which takes it at once. What no other takes it
// takes all the same, and once its API server answers it is as quick as ever.
func TestCutOffTakesNothingNew(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		x, y := &apart{script: b.exec}, &apart{script: b.exec}
		x.away.Store(true)
		b.cfg.Executor = x
		b.start()
		stop := b.beside(y)
		time.Sleep(3 * time.Second)
		for i := range 12 {
			op := b.plane.submit(fmt.Sprint("new-", i), time.Hour, drainPlan()...)
			if s := b.plane.ended(t, op, 3*time.Second); s.Phase != operation.Succeeded || s.Generation != 1 {
				t.Fatalf("%d ended %s, generation %d", i, s.Phase, s.Generation)
			}
			time.Sleep(1700 * time.Millisecond) // no multiple of what the agents wait for
		}
		if n := x.began.Load(); n > 0 {
			t.Errorf("the agent that is cut off began %d steps", n)
		}
		stop()
		op := b.plane.submit("left", time.Hour, drainPlan()...)
		b.plane.wait(t, offeredFor+2*cutOffPoll, "silence is told by the agent that is left", func() bool {
			x := standing(b.plane.ops[op].State)
			return x != nil && x.Code == codeSilent
		})
		x.away.Store(false)
		if s := b.plane.ended(t, op, 5*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
		op = b.plane.submit("after", time.Hour, drainPlan()...)
		if s := b.plane.ended(t, op, 3*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
	})
}

// TestCutOffComesBack: work that nobody took is taken within a moment once what an
// agent works on answers again.
func TestCutOffComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		x := &apart{script: b.exec}
		x.away.Store(true)
		b.cfg.Executor = x
		b.start()
		time.Sleep(3 * time.Second)
		op := b.plane.submit("new", time.Hour, drainPlan()...)
		time.Sleep(3 * time.Second)
		if s := b.plane.state(op); s.Generation != 0 {
			t.Errorf("generation %d", s.Generation)
		}
		x.away.Store(false)
		if s := b.plane.ended(t, op, reachEvery+offeredAgain+2*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
	})
}
