package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Points at which Options.Pause is called around each effect.
const (
	BeforeFence = "before_fence" // nothing is asked yet
	AfterFence  = "after_fence"  // the fence said yes, the effect is not issued
)

// Options configure Open.
type Options struct {
	// Scenario is the name of a builtin scenario or the path of a file. It
	// makes the world of a fresh state folder; an old one goes on as it is.
	Scenario string
	StateDir string
	Logger   *slog.Logger     // nil: none
	Now      func() time.Time // nil: time.Now
	// Pause, if set, is called before and after the fence of each effect, for
	// tests that stop a holder there.
	Pause func(point string, t *executor.Task)
}

// Executor carries operations out in the simulated cluster.
type Executor struct {
	store *store
	opts  Options
	stop  chan struct{}
	done  sync.WaitGroup

	mu      sync.Mutex
	stages  map[string]*stages // by operation
	order   []string           // of stages, oldest first
	watched int64              // change up to which Watch has told
}

var _ executor.Executor = (*Executor)(nil)

// tick is how often the world goes on by itself and others' changes are read.
const tick = 100 * time.Millisecond

// Open opens the cluster in a state folder, making it if the folder is fresh.
func Open(o Options) (*Executor, error) {
	if o.StateDir == "" {
		return nil, errors.New("open simulated cluster: no state folder")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s, err := openStore(o.StateDir, o.Now, o.Logger, func() (*World, error) {
		sc, err := LoadScenario(o.Scenario)
		if err != nil {
			return nil, err
		}
		return build(sc, o.Now())
	})
	if err != nil {
		return nil, fmt.Errorf("open simulated cluster: %w", err)
	}
	e := &Executor{store: s, opts: o, stop: make(chan struct{}), stages: map[string]*stages{}, watched: s.opened}
	e.done.Go(e.run)
	return e, nil
}

// Close stops the cluster's clock in this process and lets the folder go.
func (e *Executor) Close() error {
	e.mu.Lock()
	select {
	case <-e.stop:
	default:
		close(e.stop)
	}
	e.mu.Unlock()
	e.done.Wait()
	return e.store.close()
}

func (e *Executor) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-ticker.C:
			if err := e.store.refresh(); err != nil {
				e.opts.Logger.Error("the simulated cluster cannot go on", "err", err)
			}
		}
	}
}

// Capabilities lists the operation types that the cluster can carry out.
func (e *Executor) Capabilities() []protocol.Capability {
	var list []protocol.Capability
	for _, typ := range sortedKeys(types) {
		version := 1
		if typ == "node.drain" || typ == "deployment.roll" { // to one device; with undo
			version = 2
		}
		list = append(list, protocol.Capability{Name: typ, Version: version})
	}
	return list
}

// View reads the world, for tests. f must not keep or change what it is given.
func (e *Executor) View(f func(*World)) error {
	return e.store.view(func(w *World, _ *index) { f(w) })
}

// Mutate changes the world by hand, for tests: what f did to its copy is found
// by comparing and written to the log as one change. Watch sees it as it sees
// any other.
func (e *Executor) Mutate(f func(*World)) error {
	var failed error
	err := e.store.mutate(func(x *tx) {
		raw, err := json.Marshal(x.w)
		c := &World{}
		if err == nil {
			err = json.Unmarshal(raw, c)
		}
		if err != nil {
			failed = fmt.Errorf("copy world: %w", err)
			return
		}
		c.fill()
		before := &World{}
		if failed = json.Unmarshal(raw, before); failed != nil {
			return
		}
		before.fill()
		f(c)
		diff(x, "node", before.Nodes, c.Nodes, &x.e.Nodes)
		diff(x, "pod", before.Pods, c.Pods, &x.e.Pods)
		diff(x, "pdb", before.PDBs, c.PDBs, &x.e.PDBs)
		diff(x, "device", before.Devices, c.Devices, &x.e.Devices)
		diff(x, "deployment", before.Deployments, c.Deployments, &x.e.Deployments)
		diff(x, "component", before.Components, c.Components, &x.e.Components)
	})
	return errors.Join(failed, err)
}

func diff[T any](x *tx, kind string, old, now map[string]*T, to *[]*T) {
	for _, k := range sortedKeys(old) {
		if now[k] == nil {
			x.gone(kind, k)
		}
	}
	for _, k := range sortedKeys(now) {
		if now[k] != nil && !reflect.DeepEqual(old[k], now[k]) {
			*to = append(*to, now[k])
		}
	}
}

// step is how one step of one type is probed and executed.
type step struct {
	probe   func(e *Executor, ctx context.Context, t *executor.Task) executor.Finding
	execute func(e *Executor, ctx context.Context, t *executor.Task) executor.Outcome
}

// types has each operation type's steps. A type is one file and one line here.
var types = map[string]map[string]step{
	"node.cordon":       cordonSteps,
	"node.uncordon":     uncordonSteps,
	"node.drain":        drainSteps,
	"device.reset":      resetSteps,
	"deployment.roll":   rollSteps,
	"component.upgrade": upgradeSteps,
}

// Probe reads the truth about a step.
func (e *Executor) Probe(ctx context.Context, t *executor.Task) executor.Finding {
	s, found := types[t.Assignment.Type][t.Step.Name]
	if !found {
		return executor.Finding{Phase: operation.StepUnknown, ErrorCode: "unknown_step", Detail: fmt.Sprintf("no step %s of %s is known here", t.Step.Name, t.Assignment.Type)}
	}
	return s.probe(e, ctx, t)
}

// Execute brings a step to its end state.
func (e *Executor) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	s, found := types[t.Assignment.Type][t.Step.Name]
	if !found {
		return executor.Permanent("unknown_step", fmt.Sprintf("no step %s of %s is known here", t.Step.Name, t.Assignment.Type))
	}
	defer e.stage(t)()
	return s.execute(e, ctx, t)
}
