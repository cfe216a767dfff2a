package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// fast is a timing in which doorbells ring again soon, and no lease ends nor agent
// falls silent because the machine is busy.
var fast = operation.Timing{Lease: 30 * time.Second, CallDeadline: time.Second, RingAfter: 500 * time.Millisecond, AgentSilent: time.Minute}

var quiet = slog.New(slog.DiscardHandler)

// world is a small cluster in which nothing takes long.
const world = `
cluster: small
speeds: {stop: 50ms, start: 50ms, reset: 100ms}
nodes:
  - {name: "node-%02d", count: 12, gpus: 1}
deployments:
  - {name: work/service, replicas: 12}
`

// site is a running engine with one cluster and one agent, all in this process.
type site struct {
	*Engine
	t       *testing.T
	dir     string
	cluster string
	state   string // of the simulated cluster
	stop    func()
}

// newSite opens and runs an engine; before is called between the two.
func newSite(t *testing.T, dir string, before func(*Engine)) *site {
	t.Helper()
	ctx := t.Context()
	e, err := New(ctx, Options{Data: filepath.Join(dir, "data"), Addr: "127.0.0.1:0", Timing: fast, Logger: quiet, RequestsPerSecond: 1e6, Waits: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(e)
	}
	l, err := e.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &site{Engine: e, t: t, dir: dir, state: filepath.Join(dir, "sim")}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Run(run, l); err != nil {
			t.Errorf("run engine: %v", err)
		}
	})
	tokenFile := filepath.Join(dir, "agent.token")
	c, err := e.Store.ClusterByName(ctx, "small")
	if err != nil {
		made, err := e.Registry.Create(ctx, PlaneCall(), "small")
		if err != nil {
			t.Fatal(err)
		}
		c = made.Cluster
		if err := os.WriteFile(tokenFile, []byte(made.Secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.cluster = c.ID
	scenario := filepath.Join(dir, "small.yaml")
	if err := os.WriteFile(scenario, []byte(world), 0o600); err != nil {
		t.Fatal(err)
	}
	exec, err := sim.Open(sim.Options{Scenario: scenario, StateDir: s.state})
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	a, err := loop.New(loop.Config{PlaneURL: "http://" + l.Addr().String(), Token: string(token), Name: "agent-0", Executor: exec, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	var agents sync.WaitGroup
	agents.Go(func() {
		if err := a.Run(work); err != nil {
			t.Errorf("run agent: %v", err)
		}
	})
	s.stop = sync.OnceFunc(func() {
		endWork()
		agents.Wait()
		if err := exec.Close(); err != nil {
			t.Errorf("close simulated cluster: %v", err)
		}
		end()
		wg.Wait()
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	t.Cleanup(s.stop)
	s.wait("the nodes are reported", time.Minute, func() bool {
		_, err := s.admit("node.uncordon", "node:node-11", map[string]any{"dry_run": true})
		return err == nil
	})
	return s
}

func (s *site) wait(what string, within time.Duration, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("after %s it is not so that %s", within, what)
		}
	}
}

func (s *site) admit(typ, target string, more map[string]any) (operation.Operation, error) {
	body := map[string]any{"type": typ, "target": target, "reason": "a test"}
	for k, v := range more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		return operation.Operation{}, err
	}
	a, err := s.Admission.Admit(s.t.Context(), PlaneCall(), b)
	return a.Operation, err
}

// ask makes operations on nodes that do not touch each other.
func (s *site) ask(n int) []string {
	s.t.Helper()
	var ids []string
	for i := range n {
		typ := []string{"node.cordon", "node.drain"}[i%2]
		op, err := s.admit(typ, fmt.Sprintf("node:node-%02d", i), nil)
		if err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, op.Spec.ID)
	}
	return ids
}

func (s *site) load(id string) operation.Operation {
	s.t.Helper()
	op, err := s.Store.Load(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return op
}

func (s *site) finish(ids ...string) []operation.Operation {
	s.t.Helper()
	var out []operation.Operation
	for _, id := range ids {
		end := time.Now().Add(2 * time.Minute)
		for !s.load(id).State.Phase.Terminal() {
			if time.Now().After(end) {
				b, _ := json.MarshalIndent(s.load(id).State, "", " ")
				s.t.Fatalf("operation %s does not end:\n%s", id, b)
			}
			time.Sleep(20 * time.Millisecond)
		}
		out = append(out, s.load(id))
	}
	return out
}

// once checks what must hold whatever the queue did: every operation succeeded
// under one lease, nothing was done twice, and the ledger holds.
func (s *site) once(ids []string) {
	s.t.Helper()
	for _, op := range s.finish(ids...) {
		if op.State.Phase != operation.Succeeded || op.State.Generation != 1 || len(op.State.Assignments) != 1 {
			s.t.Errorf("operation %s is %s, generation %d, assignments %+v: %+v", op.Spec.ID, op.State.Phase, op.State.Generation, op.State.Assignments, op.State.Result)
		}
	}
	s.holds()
}

func (s *site) holds() {
	s.t.Helper()
	effects, err := sim.ReadEffects(s.state)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := sim.CheckOnce(effects); err != nil {
		s.t.Error(err)
	}
	var found bytes.Buffer
	if err := Verify(s.t.Context(), s.opts.Data, &found); err != nil {
		s.t.Errorf("%v\n%s", err, &found)
	}
}

// letters returns the dead letters' reasons.
func (s *site) letters() []record.DeadLetter {
	s.t.Helper()
	all, _, err := s.Store.DeadLetters(s.t.Context(), record.Span{Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

var _ queue.Sender = (*meddler)(nil)
