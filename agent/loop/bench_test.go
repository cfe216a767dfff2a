package loop

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// memQueue is a queue in memory with real visibility times.
type memQueue struct {
	p     *plane
	mu    sync.Mutex
	ring  chan struct{}
	items []*memMessage
	n     int
}

type memMessage struct {
	id, receipt string
	body        []byte
	visible     time.Time
	receives    int
	deleted     bool
}

func newMemQueue(p *plane) *memQueue { return &memQueue{p: p, ring: make(chan struct{})} }

func (q *memQueue) send(body []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n++
	q.items = append(q.items, &memMessage{id: fmt.Sprint(q.n), body: body})
	close(q.ring)
	q.ring = make(chan struct{})
}

// left counts messages that nobody deleted.
func (q *memQueue) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, m := range q.items {
		if !m.deleted {
			n++
		}
	}
	return n
}

func (q *memQueue) Receive(ctx context.Context, _ string, most int, wait, visibility time.Duration) ([]queue.Message, error) {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		q.mu.Lock()
		var out []queue.Message
		soonest := wait
		for _, m := range q.items {
			if m.deleted {
				continue
			}
			if d := time.Until(m.visible); d > 0 {
				soonest = min(soonest, d)
				continue
			}
			if len(out) == most {
				break
			}
			q.n++
			m.receives++
			m.receipt, m.visible = fmt.Sprint("r", q.n), time.Now().Add(visibility)
			out = append(out, queue.Message{ID: m.id, Receipt: m.receipt, Body: m.body, Receives: m.receives})
		}
		ring := q.ring
		q.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		again := time.NewTimer(max(soonest, time.Millisecond))
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-limit.C:
			again.Stop()
			return nil, nil
		case <-ring:
		case <-again.C:
		}
		again.Stop()
	}
}

func (q *memQueue) each(receipt string, f func(*memMessage)) {
	q.mu.Lock()
	for _, m := range q.items {
		if m.receipt == receipt {
			f(m)
		}
	}
	close(q.ring)
	q.ring = make(chan struct{})
	q.mu.Unlock() // before the plane's lock, which is taken first elsewhere
	q.p.locked(func() {})
}

func (q *memQueue) Delete(_ context.Context, _ string, receipts ...string) error {
	for _, r := range receipts {
		q.each(r, func(m *memMessage) { m.deleted = true })
	}
	return nil
}

func (q *memQueue) Extend(_ context.Context, _, receipt string, d time.Duration) error {
	q.each(receipt, func(m *memMessage) { m.visible = time.Now().Add(d) })
	return nil
}

func (q *memQueue) Bury(_ context.Context, _ string, m queue.Message, reason string) error {
	q.each(m.Receipt, func(m *memMessage) { m.deleted = true })
	q.p.locked(func() { q.p.buried = append(q.p.buried, reason) })
	return nil
}

// world is what effects change. It keeps a high-water mark of generations, so
// effects of an older one are refused, as kind (a) demands.
type world struct {
	mu      sync.Mutex
	high    map[string]int64
	effects []string // operation/step/generation of each that took effect
	refused int
	probes  []string
	failed  []string // broken rules
}

func (w *world) issue(op, step string, generation int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if generation < w.high[op] {
		w.refused++
		return false
	}
	w.high[op] = generation
	w.effects = append(w.effects, fmt.Sprintf("%s/%d", step, generation))
	return true
}

// issued lists the effects that were taken.
func (w *world) issued() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.effects)
}

func (w *world) count(effect string) int {
	n := 0
	for _, e := range w.issued() {
		if e == effect {
			n++
		}
	}
	return n
}

// script is an executor that does what a test says, by the step's name.
type script struct {
	p       *plane
	world   *world
	execute map[string]func(ctx context.Context, t *executor.Task) executor.Outcome
	probe   map[string]func(t *executor.Task) executor.Finding
	ending  executor.Ending
	left    *protocol.Assignment // as the last run that was observed left it
	deltas  chan executor.Delta
	fleet   protocol.Inventory
	probing sync.WaitGroup // also those that the agent waits for no longer
}

func (s *script) Capabilities() []protocol.Capability {
	return []protocol.Capability{{Name: "test", Version: 1}}
}

func (s *script) Probe(_ context.Context, t *executor.Task) executor.Finding {
	s.probing.Add(1)
	defer s.probing.Done()
	s.world.mu.Lock()
	s.world.probes = append(s.world.probes, t.Step.Name)
	s.world.mu.Unlock()
	if _, _, err := t.Fence(context.Background()); err == nil {
		s.broken("a probe got through the fence")
	}
	if f := s.probe[t.Step.Name]; f != nil {
		return f(t)
	}
	return executor.Finding{Phase: operation.StepPending}
}

func (s *script) broken(rule string) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.world.failed = append(s.world.failed, rule)
}

// Execute checks the rule that nothing with an effect runs before the plane
// knows of it, and then follows the script.
func (s *script) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	if t.Step.Effect {
		st := s.p.state(t.Assignment.Operation)
		for i, x := range t.Assignment.Steps {
			if x.ID == t.Step.ID && st.Generation == t.Assignment.Generation && st.Steps[i].Phase != operation.StepRunning {
				s.broken(fmt.Sprintf("%s executed while the plane has it as %s", x.Name, st.Steps[i].Phase))
			}
		}
	}
	if f := s.execute[t.Step.Name]; f != nil {
		return f(ctx, t)
	}
	if !t.Step.Effect {
		return executor.Done("")
	}
	return s.effect(ctx, t)
}

// effect issues the step's one effect.
func (s *script) effect(ctx context.Context, t *executor.Task) executor.Outcome {
	_, cancel, err := t.Fence(ctx)
	if err != nil {
		return executor.Outcome{Class: operation.OutcomeTransient, ErrorCode: "fenced", Detail: err.Error()}
	}
	defer cancel()
	_, end := t.Begin(t.Step.Name, t.Assignment.TargetID)
	if !s.world.issue(t.Assignment.Operation, t.Step.Name, t.Assignment.Generation) {
		end("refused", "an older generation")
		return executor.Outcome{Class: operation.OutcomePermanent, ErrorCode: "stale"}
	}
	end("ok", "password=hunter2 done")
	return executor.Done("")
}

func (s *script) Observe(_ context.Context, a *protocol.Assignment) executor.Ending {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.left = a
	return s.ending
}

// observed is a step as the last run that was observed left it.
func (s *script) observed(name string) protocol.Step {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return executor.StepNamed(s.left, name)
}

func (s *script) Preview(context.Context, protocol.PreviewRequest) ([]protocol.Blocker, error) {
	return []protocol.Blocker{{Code: "pdb", Detail: "token=abcdef"}}, nil
}

func (s *script) Snapshot(context.Context) (protocol.Inventory, error) { return s.fleet, nil }

func (s *script) Watch(ctx context.Context, f func(executor.Delta)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d := <-s.deltas:
			f(d)
		}
	}
}

// bench is a plane, a world and an agent between them.
type bench struct {
	t     *testing.T
	plane *plane
	world *world
	exec  *script
	cfg   Config
	jump  atomic.Int64 // added to the agent's clock: the process was stopped
	agent *Agent
	stop  context.CancelFunc
	done  chan error
}

// bubble runs f with a bench in a bubble of virtual time. The agent starts when
// f says so.
func bubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		b := &bench{t: t, plane: p, world: &world{high: map[string]int64{}}}
		b.exec = &script{p: p, world: b.world, deltas: make(chan executor.Delta),
			execute: map[string]func(context.Context, *executor.Task) executor.Outcome{},
			probe:   map[string]func(*executor.Task) executor.Finding{}}
		start := time.Now()
		b.cfg = Config{
			PlaneURL: "http://plane", Token: testToken, Name: "test", Version: "1", Executor: b.exec, Queue: p.queue,
			StateDir: dir, HTTPClient: serve(t, p),
			Mono: func() time.Duration { return time.Since(start) + time.Duration(b.jump.Load()) },
		}
		if testing.Verbose() {
			b.cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		ctx, cancel := context.WithCancel(t.Context())
		swept := make(chan struct{})
		go func() {
			defer close(swept)
			p.sweep(ctx)
		}()
		t.Cleanup(func() {
			_ = b.halt()
			b.exec.probing.Wait()
			cancel()
			<-swept
			b.world.mu.Lock()
			defer b.world.mu.Unlock()
			for _, rule := range b.world.failed {
				t.Error(rule)
			}
		})
		f(t, b)
	})
}

// start starts the agent, a new process each time.
func (b *bench) start() {
	b.t.Helper()
	a, err := New(b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.agent, b.stop, b.done = a, stop, make(chan error, 1)
	go func(done chan<- error) { done <- a.Run(ctx) }(b.done)
}

// halt stops the agent and returns what Run returned.
func (b *bench) halt() error {
	if b.stop == nil {
		return nil
	}
	b.stop()
	b.stop = nil
	select {
	case err := <-b.done:
		return err
	case <-time.After(2 * time.Minute):
		b.t.Fatal("the agent did not stop")
		return nil
	}
}

func step(name string, change ...func(*operation.PlanStep)) operation.PlanStep {
	s := operation.PlanStep{Name: name, Required: true, Interruptible: true, ReplaySafe: true, MaxAttempts: 3}
	for _, c := range change {
		c(&s)
	}
	return s
}

func effect(s *operation.PlanStep)   { s.Effect = true }
func firm(s *operation.PlanStep)     { s.Interruptible = false }
func cleanup(s *operation.PlanStep)  { s.Cleanup, s.Required, s.Effect = true, false, true }
func optional(s *operation.PlanStep) { s.Required = false }
func drainPlan() []operation.PlanStep {
	return []operation.PlanStep{step("preflight"), step("cordon", effect), step("evict", effect), step("confirm"), step("restore", cleanup)}
}
