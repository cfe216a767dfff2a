package host

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Defaults of Options.
const (
	DefaultState        = "/var/lib/opsplane-host"
	DefaultHelper       = "opsplane-host"
	DefaultEvery        = 10 * time.Second
	DefaultResetTimeout = 2 * time.Minute
	machineIDFile       = "/etc/machine-id"
)

// Options configure Open.
type Options struct {
	// Helper is the program opsplane-host, Args more flags for each of its verbs,
	// such as --driver-root.
	Helper string
	Args   []string
	// State is the folder of the host's marks and of its cordon.
	State string
	// Name is the host's; empty: its host name.
	Name string
	// Every is how often the host is looked at for its inventory.
	Every        time.Duration
	ResetTimeout time.Duration
	// MachineID is the file that names the machine: its node's UID follows from it.
	MachineID string
	Log       *slog.Logger
	Now       func() time.Time
	// Pause, if set, is called before and after the fence of each effect, for
	// tests that stop a holder there.
	Pause func(point string, t *executor.Task)
}

// Points at which Options.Pause is called.
const (
	BeforeFence = "before_fence"
	AfterFence  = "after_fence"
)

// Executor carries operations out on this host.
type Executor struct {
	o   Options
	uid string

	reporting chan struct{} // held while a process describes the host

	mu       sync.Mutex
	revision int64
	answers  map[string]*report.Answer // the last of an operation
	order    []string
}

var _ executor.Executor = (*Executor)(nil)

// maxKept bounds how many operations are remembered.
const maxKept = 1_000

// Open finds the host's name and identity. It asks the driver nothing.
func Open(o Options) (*Executor, error) {
	o.Helper, o.State = cmp.Or(o.Helper, DefaultHelper), cmp.Or(o.State, DefaultState)
	o.Every, o.ResetTimeout = cmp.Or(o.Every, DefaultEvery), cmp.Or(o.ResetTimeout, DefaultResetTimeout)
	o.MachineID = cmp.Or(o.MachineID, machineIDFile)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("open host: %w", err)
		}
		o.Name = name
	}
	if len(o.Name) > report.MaxNameBytes {
		return nil, fmt.Errorf("open host: a name of %d bytes, the limit is %d", len(o.Name), report.MaxNameBytes)
	}
	id, err := os.ReadFile(o.MachineID)
	if err != nil || strings.TrimSpace(string(id)) == "" {
		return nil, fmt.Errorf("open host: the machine has no id: %w", cmp.Or(err, errors.New(o.MachineID+" is empty")))
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return nil, fmt.Errorf("open host: %w", err)
	}
	return &Executor{o: o, uid: machineUID(strings.TrimSpace(string(id))), reporting: make(chan struct{}, 1), answers: map[string]*report.Answer{}}, nil
}

// machineUID makes the node's UID of the machine's id, which itself is not to be
// told to others (https://www.freedesktop.org/software/systemd/man/latest/machine-id.html).
func machineUID(id string) string {
	h := hmac.New(sha256.New, []byte(id))
	h.Write([]byte("opsplane node"))
	u, _ := uuid.FromBytes(h.Sum(nil)[:16]) // 16 bytes always do
	return u.String()
}

// Capabilities lists what the host can do. node.drain is not among it.
func (e *Executor) Capabilities() []protocol.Capability {
	return []protocol.Capability{{Name: "device.reset", Version: 1}, {Name: "node.cordon", Version: 1}}
}

// noDrain is why nothing is drained here.
func (e *Executor) noDrain() executor.Outcome {
	o := executor.Permanent("not_supported", fmt.Sprintf("host %s runs no Kubernetes: its processes are nobody's to evict, and none are", e.o.Name))
	o.ActionText = "stop the work on the host with what started it"
	return o
}

// step is how one step is probed and executed.
type step struct {
	probe   func(e *Executor, ctx context.Context, t *executor.Task) executor.Finding
	execute func(e *Executor, ctx context.Context, t *executor.Task) executor.Outcome
}

func again(*Executor, context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("it is looked at again")
}

var steps = map[string]map[string]step{
	"node.cordon":   {"cordon": {(*Executor).probeCordon, (*Executor).cordon}, "confirm": {again, (*Executor).confirmCordon}},
	"node.uncordon": {"uncordon": {(*Executor).probeUncordon, (*Executor).uncordon}, "confirm": {again, (*Executor).confirmUncordon}},
	"device.reset": {
		"preflight": {again, (*Executor).preflight}, "reset": {(*Executor).probeReset, (*Executor).reset}, "verify": {again, (*Executor).verify},
		"drain_holders": {again, func(e *Executor, _ context.Context, _ *executor.Task) executor.Outcome { return e.noDrain() }},
	},
}

// elsewhere tells that an operation is about another host.
func (e *Executor) elsewhere(a *protocol.Assignment) string {
	switch {
	case strings.HasPrefix(a.Type, "node.") && a.TargetUID != e.uid:
		return fmt.Sprintf("node %s (%s) is not this host, which is %s (%s)", a.TargetName, a.TargetUID, e.o.Name, e.uid)
	case a.Type == "device.reset" && a.NodeName != "" && a.NodeName != e.o.Name:
		return fmt.Sprintf("device %s is on node %s, and this host is %s", a.TargetUID, a.NodeName, e.o.Name)
	}
	return ""
}

// Probe implements executor.Executor.
func (e *Executor) Probe(ctx context.Context, t *executor.Task) executor.Finding {
	if why := e.elsewhere(t.Assignment); why != "" {
		return executor.Lost("node_gone", why)
	}
	s, ok := steps[t.Assignment.Type][t.Step.Name]
	if !ok {
		return executor.ToRun("nothing of it is done here")
	}
	return s.probe(e, ctx, t)
}

// Execute implements executor.Executor.
func (e *Executor) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	if why := e.elsewhere(t.Assignment); why != "" {
		return executor.Permanent("node_gone", why)
	}
	if t.Assignment.Type == "node.drain" {
		return e.noDrain()
	}
	s, ok := steps[t.Assignment.Type][t.Step.Name]
	if !ok {
		return executor.Permanent("not_supported", fmt.Sprintf("host %s runs no Kubernetes: it does not know %s", e.o.Name, t.Assignment.Type))
	}
	return s.execute(e, ctx, t)
}

// effect records a command, asks the fence and does f under the context that ends
// before the lease does.
func (e *Executor) effect(ctx context.Context, t *executor.Task, what, resource string, f func(ctx context.Context) (category, output string)) (id string, stop *executor.Outcome) {
	id, end := t.Begin(what, resource)
	e.pause(BeforeFence, t)
	under, release, err := t.Fence(ctx)
	if err == nil {
		defer release()
		e.pause(AfterFence, t)
		// A holder that was stopped since the fence learns here that its time is over.
		if d, bounded := under.Deadline(); bounded && !time.Now().Before(d) {
			err = executor.ErrFenced
		}
	}
	if err != nil {
		end("refused", err.Error())
		o := executor.Transient("fenced", "nothing was issued: "+err.Error())
		_, o.ActionCode, o.ActionText = executor.Action("interrupted")
		o.CommandID = id
		return id, &o
	}
	end(f(under))
	return id, nil
}

func (e *Executor) pause(point string, t *executor.Task) {
	if e.o.Pause != nil {
		e.o.Pause(point, t)
	}
}

// keep remembers the newest answer about an operation's device, for Observe.
func (e *Executor) keep(operation string, a *report.Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.answers[operation] == nil {
		if e.order = append(e.order, operation); len(e.order) > maxKept {
			delete(e.answers, e.order[0])
			e.order = e.order[1:]
		}
	}
	if old := e.answers[operation]; old != nil && a.Verb != report.VerbReset {
		a.Took = old.Took // of the reset
	}
	e.answers[operation] = a
}

// Observe implements executor.Executor.
func (e *Executor) Observe(ctx context.Context, a *protocol.Assignment) executor.Ending {
	end := executor.Ending{Observed: &protocol.Inventory{}}
	if why := e.elsewhere(a); why != "" {
		return executor.Ending{Message: why}
	}
	if strings.HasPrefix(a.Type, "node.") {
		book, err := e.readCordon()
		if err != nil {
			return executor.Ending{Message: err.Error()}
		}
		n := e.node(book, 0, true)
		if h, err := e.report(ctx); err == nil {
			n = e.node(book, len(h.Devices), true)
		}
		end.Observed.Nodes = []protocol.Node{n}
		end.Message = "host is cordoned"
		if n.Schedulable {
			end.Message = "host is schedulable"
		}
		end.Verified = []string{end.Message}
		end.NotVerified = []string{"that nobody places work here: nothing on the host enforces its cordon"}
		return end
	}
	e.mu.Lock()
	last := e.answers[a.Operation]
	e.mu.Unlock()
	if last == nil || last.Device == nil {
		end.Message = fmt.Sprintf("what became of device %s is not known", a.TargetUID)
		return end
	}
	d := e.device(last.Device)
	end.Observed.Devices = []protocol.Device{d}
	end.Message = fmt.Sprintf("GPU %s is %s", d.UID, d.Health)
	for _, s := range a.Steps {
		switch {
		case s.Name == "reset" && s.Phase == operation.StepSucceeded:
			end.Verified = append(end.Verified, fmt.Sprintf("the driver reset GPU %s once in this run", d.UID))
		case s.Name == "verify" && s.Phase == operation.StepSucceeded:
			verified, open := last.Proven(d.UID)
			end.Verified = append(end.Verified, verified)
			if open != "" {
				end.NotVerified = append(end.NotVerified, open)
			}
		}
	}
	end.NotVerified = append(end.NotVerified, "application readiness", "that the GPU computes: no work is run on it")
	if last.Source == report.SourceRecorded {
		end.NotVerified = append(end.NotVerified, "a GPU: the host's answers are recorded")
	}
	end.Details, _ = json.Marshal(map[string]any{"driver": last.Driver, "recorded": last.Source == report.SourceRecorded, "reset_ms": last.Took}) // plain values always marshal
	return end
}

// Preview implements executor.Executor.
func (e *Executor) Preview(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	a := &protocol.Assignment{Type: r.Type, TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload}
	one := func(code, resource, why string) []protocol.Blocker {
		return []protocol.Blocker{{Code: code, Resource: resource, Detail: why}}
	}
	if why := e.elsewhere(a); why != "" {
		return one("node_gone", r.TargetName, why), nil
	}
	switch r.Type {
	case "node.drain":
		return one("not_supported", "node/"+e.o.Name, e.noDrain().Detail), nil
	case "node.uncordon":
		book, err := e.readCordon()
		if err != nil {
			return nil, fmt.Errorf("preview %s: %w", r.Type, err)
		}
		if why := notOurs(book, r.Payload); why != "" {
			return one("cordon_not_owned", "node/"+e.o.Name, why), nil
		}
	case "device.reset":
		ans, err := e.ask(ctx, a, report.VerbPreflight)
		if err != nil {
			return nil, fmt.Errorf("preview %s: %w", r.Type, err)
		}
		if !ans.OK {
			code := ans.Code
			if code == report.CodeBusy {
				code = "holder"
			}
			return one(code, "device/"+r.TargetUID, ans.Detail), nil
		}
	case "node.cordon":
	default:
		return nil, fmt.Errorf("preview %s: a host without Kubernetes does not know it", r.Type)
	}
	return []protocol.Blocker{}, nil
}
