package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Defaults of Config.
const (
	DefaultState        = "/var/lib/opsplane-host"
	DefaultResetTimeout = 2 * time.Minute
	DefaultLookTimeout  = 2 * time.Minute
	DefaultPullPatience = 75 * time.Second // the kubelet's first four tries
	DefaultNodePatience = 2 * time.Minute  // kubelets are back within some 10 s of an API server
)

// Config says how the Jobs on the nodes run.
type Config struct {
	// Enabled: this cluster's admin allows privileged Jobs in the agent's namespace.
	// Without it nothing is advertised and every step is refused.
	Enabled bool
	// Image is the host program's; Command its path within, /opsplane-host if empty.
	Image            string
	Command          []string
	ImagePullPolicy  corev1.PullPolicy
	ImagePullSecrets []string
	// ServiceAccount is the pods'; it needs no right, and no token is mounted.
	ServiceAccount string
	// RuntimeClass brings the driver's libraries into the container where the
	// node's default runtime does not ("nvidia").
	RuntimeClass  string
	PriorityClass string
	// State is the host's folder of marks, DriverRoot where the driver is when it is
	// not installed on the host itself (/run/nvidia/driver).
	State, DriverRoot string
	// ReleasePersistence turns persistence mode off for a reset and on again after
	// it; without, it holds the device.
	ReleasePersistence bool
	// Recorded is a file or folder on the hosts with recorded answers: for
	// demonstrations, where no GPU is. Every answer says so.
	Recorded string
	// ResetTimeout is how long the driver may take for a reset; LookTimeout how long
	// a Job that only looks may take in all, its image's pull included, and a reset's
	// Job beyond its reset.
	ResetTimeout, LookTimeout time.Duration
	// PullPatience is how long the pull of a Job's image may fail before the step
	// does: the kubelet tries again after 10 s, 20 s, 40 s, …
	// https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
	PullPatience time.Duration
	// NodePatience is how long a node may have been unreachable before a step that
	// has begun nothing fails: nodes are so for a moment after the API server was away
	// for longer than they are given to report. What proves a reset waits for its node
	// to the deadline.
	NodePatience time.Duration
}

// check fills in the defaults and refuses what cannot work.
func (c Config) check() (Config, error) {
	c.State = cmp.Or(c.State, DefaultState)
	c.ResetTimeout, c.LookTimeout = cmp.Or(c.ResetTimeout, DefaultResetTimeout), cmp.Or(c.LookTimeout, DefaultLookTimeout)
	c.PullPatience = cmp.Or(c.PullPatience, DefaultPullPatience)
	c.NodePatience = cmp.Or(c.NodePatience, DefaultNodePatience)
	if len(c.Command) == 0 {
		c.Command = []string{"/opsplane-host"}
	}
	switch {
	case !c.Enabled:
		return c, errors.New("device.reset is not enabled for this cluster")
	case c.Image == "":
		return c, errors.New("device.reset: the image of the host program is not configured")
	case c.DriverRoot != "" && c.Recorded != "":
		return c, errors.New("device.reset: recorded answers and a driver root do not go together")
	}
	return c, nil
}

// jobRights are what asking the host needs of the agent's role.
var jobRights = []cluster.Right{
	{Verb: "create", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to look at, reset and check a device on its node"},
	{Verb: "list", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to find the reset that an earlier lease began"},
	{Verb: "get", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to tell whose Job has the name"},
	{Verb: "delete", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to take away a Job that cannot start, before it starts late"},
}

// Rights are what the type needs of the agent's role, no more.
var Rights = slices.Concat(jobRights, []cluster.Right{
	{Verb: "get", Resource: "nodes", Why: "to tell a Job that does not start from a node that is gone"},
	{Verb: "list", Resource: "pods", Why: "to read a Job's answer, and to find the pods that hold a device"},
	{Verb: "watch", Resource: "pods", Why: "to see a Job answer, and the pods that hold a device stop"},
	{Verb: "get", Resource: "configmaps", Namespace: cluster.OwnNamespace, Why: "to preview a reset from what the host reports of itself"},
	{Verb: "list", Resource: "events", Namespace: cluster.OwnNamespace, Why: "to read why a Job's pod cannot be made"},
	cluster.EventRight,
}, node.EvictRights)

// devices carries the type out.
type devices struct {
	c      *cluster.Cluster
	cfg    Config
	broken error // the configuration's
	drains *node.Drains

	denials cluster.Denials

	mu    sync.Mutex
	last  map[string]*outcome // by run of an operation
	order []string
}

// outcome is what this process knows of a run, for Observe.
type outcome struct {
	device  *report.Device
	source  string
	driver  string
	took    int64
	already bool
	reset   bool
	proof   *report.Answer // of the verify that was OK; nil: no lease of this process has it
	drained []string
	kept    []node.Kept // of the pods to evict, those that were not gone
	stages  []stage
}

type stage struct {
	Step string `json:"step"`
	MS   int64  `json:"ms"`
}

// maxKept bounds how many runs are remembered.
const maxKept = 1_000

// Reset is device.reset. The pods that hold a device are evicted by drains, the
// agent's one engine for that.
func Reset(c *cluster.Cluster, cfg Config, drains *node.Drains) cluster.Type {
	e := &devices{c: c, drains: drains, last: map[string]*outcome{}}
	e.cfg, e.broken = cfg.check()
	t := cluster.Type{
		Name: "device.reset",
		Steps: map[string]cluster.Step{
			"preflight":     {Probe: lookAnew, Execute: e.step(e.preflight)},
			"drain_holders": {Probe: lookAnew, Execute: e.step(e.drainHolders)},
			"reset":         {Probe: e.probeReset, Execute: e.step(e.reset)},
			"verify":        {Probe: lookAnew, Execute: e.step(e.verify)},
		},
		Observe: e.observe, Preview: e.preview,
	}
	if e.broken == nil {
		t.Capabilities = []protocol.Capability{{Name: "device.reset", Version: 1}}
	}
	return t
}

func lookAnew(context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("the device is looked at again")
}

// target is the device and the node of a task.
type target struct {
	uuid, node string
}

// step wraps a step: it finds the target, refuses what cannot be carried out, and
// counts the time. A missing right ends it only once it is believed, and an API server
// that does not answer never does: it is asked again within the attempt, so that a
// reset's Job has one name however often it is asked for.
func (e *devices) step(f func(ctx context.Context, t *executor.Task, d target) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.denials.Lenient(e.c.Now, func(ctx context.Context, t *executor.Task) executor.Outcome {
		ctx = cluster.Operation(ctx, t.Assignment)
		d, code, why := e.target(t.Assignment)
		if code != "" {
			return executor.Permanent(code, why)
		}
		begun := e.c.Now()
		defer func() {
			e.note(t.Assignment, func(o *outcome) {
				took := e.c.Now().Sub(begun).Milliseconds()
				if i := slices.IndexFunc(o.stages, func(s stage) bool { return s.Step == t.Step.Name }); i >= 0 {
					o.stages[i].MS += took
					return
				}
				o.stages = append(o.stages, stage{t.Step.Name, took})
			})
		}()
		return cluster.Patient(f(ctx, t, d), lookAgain)
	})
}

// target finds what the operation is about. A device whose UUID nobody knows is
// counted by Kubernetes alone: there is nothing to name to its driver.
func (e *devices) target(a *protocol.Assignment) (d target, code, why string) {
	if e.broken != nil {
		return d, report.CodeNotSupported, e.broken.Error()
	}
	uuid, ok := report.UUID(a.TargetUID)
	if !ok {
		uuid, ok = report.UUID(strings.TrimPrefix(a.TargetName, "device:"))
	}
	switch {
	case !ok:
		return d, report.CodeNotSupported, fmt.Sprintf("the UUID of device %s is not known: its node reports only how many there are. Install the host helper (hostHelper.enabled) or NVIDIA's DRA driver",
			cmp.Or(a.TargetUID, a.TargetName))
	case a.NodeName == "":
		return d, report.CodeGone, fmt.Sprintf("it is not known on which node device %s is", uuid)
	}
	return target{uuid, a.NodeName}, "", ""
}

// runOf is the key of a run: the next one of the operation begins with nothing.
func runOf(a *protocol.Assignment) string { return fmt.Sprintf("%s/%d", a.Operation, a.Run) }

// note changes what is remembered of a run.
func (e *devices) note(a *protocol.Assignment, f func(o *outcome)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	run := runOf(a)
	o := e.last[run]
	if o == nil {
		o = &outcome{}
		e.last[run] = o
		if e.order = append(e.order, run); len(e.order) > maxKept {
			delete(e.last, e.order[0])
			e.order = e.order[1:]
		}
	}
	f(o)
}

// absence is why no Job can run on a device's node.
type absence struct {
	code, why string
	since     time.Time // of an unreachable node; zero: it is gone
}

// blocker is the absence as what stands in the way of a resource.
func (a *absence) blocker(resource string) protocol.Blocker {
	b := protocol.Blocker{Code: a.code, Resource: resource, Detail: a.why}
	if !a.since.IsZero() {
		b.Since = &a.since
	}
	return b
}

// nodeState reads the device's node; nil: Jobs can run there.
func (e *devices) nodeState(ctx context.Context, name string) (*absence, error) {
	_, away, err := e.readNode(ctx, name)
	return away, err
}

func (e *devices) readNode(ctx context.Context, name string) (*corev1.Node, *absence, error) {
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	n, err := e.c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, &absence{code: report.CodeGone, why: fmt.Sprintf("node %s is gone, and its devices with it", name)}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if c := cluster.Readiness(n); c != nil && c.Status == corev1.ConditionUnknown {
		since, why := c.LastTransitionTime.UTC(), fmt.Sprintf("node %s is unreachable", name)
		if !since.IsZero() { // whoever writes conditions need not say
			why += " since " + since.Format(time.RFC3339)
		}
		return n, &absence{codeUnreachable, why + ": nothing can run there", since}, nil
	}
	return n, nil, nil
}

// codeUnreachable: the kubelet of the device's node does not report.
const (
	codeUnreachable = "node_unreachable"
	nodeAction      = "bring the node back, then reset again"
)

// without is the outcome of a step that needs the device's node and has begun
// nothing: for a while after it was lost it waits for the node, to the deadline where
// patient.
func (e *devices) without(t *executor.Task, d target, away *absence, patient bool) executor.Outcome {
	if away.since.IsZero() || !patient && e.c.Now().Sub(away.since) > e.cfg.NodePatience {
		o := executor.Permanent(away.code, away.why)
		if away.code == codeUnreachable {
			o.ActionText = nodeAction
		}
		return o
	}
	if t.Blocked != nil {
		t.Blocked([]protocol.Blocker{away.blocker("node/" + d.node)})
	}
	o := executor.Waiting(away.code, "waiting for the node: "+away.why)
	o.After = lookAgain
	return o
}

// blocked shows one thing that stands in the way, or none.
func blocked(t *executor.Task, now ...protocol.Blocker) {
	if t.Blocked != nil {
		t.Blocked(now)
	}
}

// escalate turns a permanent outcome into one for somebody at the machine.
func escalate(o executor.Outcome, text string) executor.Outcome {
	o.Retryable, o.ActionCode, o.ActionText = false, operation.ActEscalate, text
	return o
}
