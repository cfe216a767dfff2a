package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// rig is an executor under test and its folder.
type rig struct {
	*Executor
	dir string
}

func open(t *testing.T, scenario, dir string) *rig {
	t.Helper()
	return openWith(t, Options{Scenario: scenario, StateDir: dir})
}

func openWith(t *testing.T, o Options) *rig {
	t.Helper()
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return &rig{e, o.StateDir}
}

// written puts a scenario into a file.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// bubble runs a test on a clock of its own, which jumps ahead when all wait.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// job is an operation that a test drives step by step.
type job struct {
	protocol.Assignment
	fence     func(ctx context.Context) (context.Context, context.CancelFunc, error)
	remaining time.Duration
	cancelled chan struct{}

	mu       sync.Mutex
	progress []string
	notes    []string
	commands []string
	blocked  []protocol.Blocker // the last that were told, but none
}

func newJob(op, typ, target, uid, payload string) *job {
	return &job{Assignment: protocol.Assignment{Operation: op, Generation: 1, Run: 1, Type: typ, TargetName: target, TargetUID: uid,
		Payload: json.RawMessage(payload), Reason: "test", Actor: operation.Actor{ID: "tester"}}, remaining: time.Hour, cancelled: make(chan struct{})}
}

// generation is the same operation in the hands of a later holder.
func (j *job) generation(g int64) *job {
	c := newJob(j.Operation, j.Type, j.TargetName, j.TargetUID, string(j.Payload))
	c.Generation, c.Run, c.fence, c.remaining = g, j.Run, j.fence, j.remaining
	return c
}

func (j *job) task(step string) *executor.Task {
	t := &executor.Task{Assignment: &j.Assignment, Attempt: 1, Cancelled: j.cancelled, Fence: j.fence}
	t.Step.Name, t.Step.ID, t.Step.Cleanup = step, "stp_"+step, step == "restore"
	if t.Fence == nil {
		t.Fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			c, cancel := context.WithTimeout(ctx, 10*time.Second)
			return c, cancel, nil
		}
	}
	t.Progress = func(_, _ int, _, message string) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.progress = append(j.progress, message)
	}
	t.Blocked = func(now []protocol.Blocker) {
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(now) > 0 {
			j.blocked = now
		}
	}
	t.Note = func(code, detail string) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.notes = append(j.notes, code+": "+detail)
	}
	t.Begin = func(name, resource string) (string, func(category, output string)) {
		j.mu.Lock()
		defer j.mu.Unlock()
		id := fmt.Sprintf("cmd_%s_%d_%d", j.Operation, j.Generation, len(j.commands))
		j.commands = append(j.commands, name)
		return id, func(category, output string) {}
	}
	started := time.Now()
	t.Remaining = func() time.Duration { return j.remaining - time.Since(started) }
	return t
}

func (j *job) last() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.progress) == 0 {
		return ""
	}
	return j.progress[len(j.progress)-1]
}

// plans of the types, as the plane makes them.
var plans = map[string][]string{
	"node.cordon":       {"cordon", "confirm"},
	"node.uncordon":     {"uncordon", "confirm"},
	"node.drain":        {"preflight", "cordon", "evict", "wait", "confirm"},
	"deployment.roll":   {"preflight", "restart", "wait", "confirm"},
	"component.upgrade": {"preflight", "upgrade", "verify"},
}

func (j *job) plan() []string {
	if j.Type == "device.reset" {
		if string(j.Payload) == `{"drain":true}` {
			return []string{"preflight", "drain_holders", "reset", "verify"}
		}
		return []string{"preflight", "reset", "verify"}
	}
	return plans[j.Type]
}

// run drives the whole plan as an agent would: transient failures are tried
// again. It returns the step that it ended at and how.
func (r *rig) run(ctx context.Context, j *job) (string, executor.Outcome) {
	var o executor.Outcome
	for _, step := range j.plan() {
		for attempt := 1; ; attempt++ {
			o = r.Execute(ctx, j.task(step))
			if o.Class != operation.OutcomeTransient || attempt == 5 || o.ErrorCode == "fenced" {
				break
			}
		}
		if o.Class != operation.OutcomeDone {
			return step, o
		}
	}
	return "", o
}

// takeOver is a later generation: it probes every step before it runs it.
func (r *rig) takeOver(ctx context.Context, j *job) (string, executor.Outcome) {
	var o executor.Outcome
	for _, step := range j.plan() {
		if f := r.Probe(ctx, j.task(step)); f.Phase == operation.StepSucceeded {
			continue
		} else if f.Phase != operation.StepPending {
			return step, executor.Outcome{Class: string(f.Phase), ErrorCode: f.ErrorCode, Detail: f.Detail}
		}
		if o = r.Execute(ctx, j.task(step)); o.Class != operation.OutcomeDone {
			return step, o
		}
	}
	return "", o
}

func (r *rig) node(t *testing.T, name string) Node {
	t.Helper()
	var n Node
	if err := r.View(func(w *World) {
		for _, x := range w.Nodes {
			if x.Name == name {
				n = *x
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *rig) gpu(t *testing.T, node string, index int) Device {
	t.Helper()
	n := r.node(t, node)
	var d Device
	if err := r.View(func(w *World) {
		for _, x := range w.Devices {
			if x.NodeUID == n.UID && x.Index == index {
				d = *x
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (r *rig) effects(t *testing.T) []Effect {
	t.Helper()
	effects, err := ReadEffects(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckOnce(effects); err != nil {
		t.Fatal(err)
	}
	return effects
}

func accepted(effects []Effect, what string) (n int) {
	for _, e := range effects {
		if e.Accepted && e.What == what {
			n++
		}
	}
	return n
}
