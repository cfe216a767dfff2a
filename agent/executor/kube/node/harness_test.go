//go:build kubetest

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// agent is an agent's executor on the rig.
type agent struct {
	t     *testing.T
	c     *cluster.Cluster
	types map[string]cluster.Type
	drain *drainer
}

// grant gives a user the package's rights, some apart.
func grant(r *kuberig.Rig, user string, without ...cluster.Right) {
	var rules []rbacv1.PolicyRule
	for _, right := range Rights {
		if !slices.Contains(without, right) {
			rules = append(rules, kuberig.Rule(right.Group, right.Resource, []string{right.Verb}))
		}
	}
	r.Grant(user, "", rules...)
}

// newAgent opens an executor as a user that has the package's rights and no more.
func newAgent(t *testing.T, r *kuberig.Rig, change func(o *cluster.Options), more ...Options) *agent {
	t.Helper()
	user := r.User("agent")
	grant(r, user)
	return agentOf(t, r.Kubeconfig(user), change, more...)
}

func agentOf(t *testing.T, kubeconfig string, change func(o *cluster.Options), more ...Options) *agent {
	t.Helper()
	o := cluster.Options{Kubeconfig: kubeconfig, Version: "test"}
	if change != nil {
		change(&o)
	}
	c, err := cluster.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var options Options
	if len(more) > 0 {
		options = more[0]
	}
	a := &agent{t: t, c: c, types: map[string]cluster.Type{}, drain: newDrainer(c, options)}
	for _, typ := range []cluster.Type{Cordon(c, options), Uncordon(c, options), a.drain.drain()} {
		a.types[typ.Name] = typ
	}
	return a
}

// job is one assignment as the loop would hold it.
type job struct {
	protocol.Assignment
	end       time.Time
	cancelled chan struct{}
	fence     func(ctx context.Context) (context.Context, context.CancelFunc, error)

	mu       sync.Mutex
	notes    []string
	commands []string // "what category"
	progress []string
	blockers [][]protocol.Blocker
	told     chan struct{} // closed and replaced at each blocker or progress
}

var steps = map[string][]string{
	"node.cordon":   {"cordon", "confirm"},
	"node.uncordon": {"uncordon", "confirm"},
	"node.drain":    {"preflight", "cordon", "evict", "wait", "confirm"},
}

// newJob is an operation on a node as the plane would plan it, with 30 s to go.
func newJob(r *kuberig.Rig, typ string, n *corev1.Node, payload string) *job {
	j := &job{end: time.Now().Add(30 * time.Second), cancelled: make(chan struct{}), told: make(chan struct{})}
	j.Assignment = protocol.Assignment{Operation: r.Name("op"), Generation: 1, Run: 1, Type: typ, TargetID: "nod_1", TargetName: "node:" + n.Name,
		NodeName: n.Name, TargetUID: string(n.UID), Payload: json.RawMessage(payload), Reason: "a test", Actor: operation.Actor{ID: "tester"},
		CorrelationID: "corr", Deadline: j.end}
	for i, name := range steps[typ] {
		j.Steps = append(j.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: fmt.Sprintf("stp_%d", i), Name: name, Required: true, Interruptible: true, ReplaySafe: true,
			Resources: []string{"nod_1"}}, Phase: operation.StepPending})
	}
	if strings.Contains(payload, `"restore"`) {
		j.Steps = append(j.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_restore", Name: "restore", Cleanup: true, Resources: []string{"nod_1"}}, Phase: operation.StepPending})
	}
	return j
}

// within sets the deadline.
func (j *job) within(d time.Duration) *job {
	j.end = time.Now().Add(d)
	j.Deadline = j.end
	return j
}

// generation is the same operation under a later lease.
func (j *job) generation(g int64) *job {
	n := &job{Assignment: j.Assignment, end: j.end, cancelled: make(chan struct{}), told: make(chan struct{})}
	n.Generation, n.Probe = g, true
	n.Steps = slices.Clone(j.Steps)
	return n
}

func (j *job) step(name string) *protocol.Step {
	for i := range j.Steps {
		if j.Steps[i].Name == name {
			return &j.Steps[i]
		}
	}
	panic("no step " + name)
}

func (j *job) tell() {
	close(j.told)
	j.told = make(chan struct{})
}

func (j *job) task(name string) *executor.Task {
	fence := j.fence
	if fence == nil {
		fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			c, cancel := context.WithDeadline(ctx, j.end)
			return c, cancel, nil
		}
	}
	return &executor.Task{
		Assignment: &j.Assignment, Step: *j.step(name), Attempt: 1, Cancelled: j.cancelled, Fence: fence,
		Remaining: func() time.Duration { return time.Until(j.end) },
		Progress: func(done, total int, unit, message string) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.progress = append(j.progress, message)
			j.tell()
		},
		Blocked: func(now []protocol.Blocker) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.blockers = append(j.blockers, now)
			j.tell()
		},
		Begin: func(name, resource string) (string, func(string, string)) {
			j.mu.Lock()
			defer j.mu.Unlock()
			i := len(j.commands)
			j.commands = append(j.commands, name)
			return fmt.Sprintf("cmd_%d", i), func(category, output string) {
				j.mu.Lock()
				defer j.mu.Unlock()
				j.commands[i] = name + " " + category
			}
		},
		Note: func(code, detail string) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.notes = append(j.notes, code+": "+detail)
		},
	}
}

// await waits until ok says so of what the job has been told.
func (j *job) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		j.mu.Lock()
		done, told := ok(), j.told
		j.mu.Unlock()
		if done {
			return
		}
		select {
		case <-told:
		case <-late:
			j.mu.Lock()
			defer j.mu.Unlock()
			t.Fatalf("%s: not within 20 s; progress %q, blockers %v", what, j.progress, j.blockers)
		}
	}
}

// blocked tells whether the last blockers have the code.
func (j *job) blocked(code string) bool {
	return len(j.blockers) > 0 && slices.ContainsFunc(j.blockers[len(j.blockers)-1], func(b protocol.Blocker) bool { return b.Code == code })
}

func (a *agent) execute(ctx context.Context, j *job, name string) executor.Outcome {
	o := a.types[j.Type].Steps[name].Execute(ctx, j.task(name))
	j.step(name).Detail = o.Detail
	switch o.Class {
	case operation.OutcomeDone:
		j.step(name).Phase = operation.StepSucceeded
	case operation.OutcomeAmbiguous:
		j.step(name).Phase = operation.StepUnknown
	case operation.OutcomePermanent:
		j.step(name).Phase = operation.StepFailed
	}
	return o
}

func (a *agent) probe(ctx context.Context, j *job, name string) executor.Finding {
	return a.types[j.Type].Steps[name].Probe(ctx, j.task(name))
}

// run plays the loop: steps in order, waiting ones again, until the deadline.
func (a *agent) run(ctx context.Context, j *job) (step string, o executor.Outcome) {
	ctx, cancel := context.WithDeadline(ctx, j.end)
	defer cancel()
	for _, s := range j.Steps {
		if s.Cleanup || s.Phase == operation.StepSucceeded {
			continue
		}
		for {
			o = a.execute(ctx, j, s.Name)
			if o.Class == operation.OutcomeDone {
				break
			}
			again := o.Class == operation.OutcomeWaiting || o.Class == operation.OutcomeTransient
			if !again || o.ErrorCode == "cancelled" || ctx.Err() != nil {
				return s.Name, o
			}
			select {
			case <-time.After(max(o.After, 10*time.Millisecond)):
			case <-ctx.Done():
			}
		}
	}
	return "", o
}

// takeOver is run after the probes of a later lease.
func (a *agent) takeOver(ctx context.Context, j *job) (step string, o executor.Outcome) {
	reached := true
	for i := range j.Steps {
		s := &j.Steps[i]
		if s.Cleanup || s.Phase.Settled() {
			continue
		}
		f := a.probe(ctx, j, s.Name)
		if f.Phase == operation.StepSucceeded && !reached {
			f.Phase = operation.StepPending
		}
		reached = reached && f.Phase == operation.StepSucceeded
		if f.Phase == operation.StepSucceeded {
			s.Phase = f.Phase
		}
	}
	return a.run(ctx, j)
}

func (a *agent) observe(j *job) (executor.Ending, details) {
	a.t.Helper()
	var end executor.Ending
	a.types[j.Type].Observe(context.Background(), &j.Assignment, &end)
	var d details
	if len(end.Details) > 0 {
		if err := json.Unmarshal(end.Details, &d); err != nil {
			a.t.Fatal(err)
		}
	}
	return end, d
}

// mustRun fails the test unless the operation comes to its end.
func (a *agent) mustRun(j *job) {
	a.t.Helper()
	if step, o := a.run(context.Background(), j); step != "" {
		a.t.Fatalf("%s of %s ended at %s with %s %s: %s\nprogress %q\nnotes %q\ncommands %q", j.Type, j.TargetName, step, o.Class, o.ErrorCode, o.Detail, j.progress, j.notes, j.commands)
	}
}
