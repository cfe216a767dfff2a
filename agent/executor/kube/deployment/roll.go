package deployment

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Bounds are how long a rollout may hang before it counts as failed.
type Bounds struct {
	// Stall: without a new pod made or ready, on kinds whose controller does not
	// tell. Ten minutes, a Deployment's own default.
	// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#progress-deadline-seconds
	Stall time.Duration
	// Patience: with a cause that no waiting mends, when an undo is asked for. It
	// outlasts a registry's hiccup and a first crash.
	Patience time.Duration
	// Undo: until the pods of the revision before are ready again.
	Undo time.Duration
	// Silence: of a controller that has something to do and does nothing, until it is
	// named as what is waited for. 0: DefaultBounds'.
	Silence time.Duration
	// Start: of a pod whose containers run, until it is named that it is not ready, see
	// fair. 0: DefaultBounds'.
	Start time.Duration
}

// DefaultBounds is what Roll uses.
var DefaultBounds = Bounds{Stall: 10 * time.Minute, Patience: 30 * time.Second, Undo: 3 * time.Minute, Silence: 10 * time.Second, Start: 30 * time.Second}

// again is when a step that could not read the API server looks again.
const again = time.Second

// roller carries rolls out on one cluster.
type roller struct {
	*cluster.Cluster
	bounds  Bounds
	learned learned
}

// Roll is deployment.roll on Kubernetes.
func Roll(c *cluster.Cluster) cluster.Type { return RollWithin(c, DefaultBounds) }

// RollWithin is Roll with bounds of its own.
func RollWithin(c *cluster.Cluster, b Bounds) cluster.Type {
	r, denials := &roller{Cluster: c, bounds: b}, &cluster.Denials{}
	lenient := func(f func(ctx context.Context, t *executor.Task) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
		return denials.Lenient(c.Now, func(ctx context.Context, t *executor.Task) executor.Outcome {
			o := f(ctx, t)
			cluster.ShowUnconverted(t, o, "deployment/"+strings.TrimPrefix(t.Assignment.TargetName, "deployment:"))
			return o
		})
	}
	return cluster.Type{
		Name:         "deployment.roll",
		Capabilities: []protocol.Capability{{Name: "deployment.roll", Version: 2}}, // 2: undo
		Steps: map[string]cluster.Step{
			"preflight": {Probe: r.toCheck, Execute: lenient(r.preflight)},
			"restart":   {Probe: r.probeRestart, Execute: lenient(r.restart)},
			"wait":      {Probe: r.probeWait, Execute: lenient(r.wait)},
			"confirm":   {Probe: r.toCheck, Execute: lenient(r.confirm)},
			"undo":      {Probe: r.probeUndo, Execute: lenient(r.undo)},
		},
		Observe: r.observe,
		Preview: r.preview,
	}
}

// toCheck: the step only reads, so it is run again.
func (r *roller) toCheck(context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("it only reads, and reads again")
}

// payload reads the payload; the plane has checked it.
func payload(raw json.RawMessage) (operation.RollPayload, error) {
	p := operation.RollPayload{Undo: "never"}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &p); err != nil {
			return p, fmt.Errorf("read payload: %w", err)
		}
	}
	return p, nil
}

// find reads the target, whatever kind it is of; nil when it is gone. One of the
// same name and another UID is another object. A version of a kind that nobody converts
// is passed over: the target may be of another kind, or stored in another version.
func (r *roller) find(ctx context.Context, a *protocol.Assignment) (*rollout, error) {
	var unconverted error
	namespace, name, ok := strings.Cut(strings.TrimPrefix(a.TargetName, "deployment:"), "/")
	if !ok {
		return nil, nil
	}
	for _, k := range kinds {
		for _, resource := range k.resources {
			rctx, cancel := r.Read(ctx)
			u, err := r.Dynamic.Resource(resource).Namespace(namespace).Get(rctx, name, metav1.GetOptions{})
			cancel()
			switch {
			case apierrors.IsNotFound(err): // the object, or the kind
				continue
			case apierrors.IsForbidden(err) && resource.Group != "apps" && !r.serves(ctx, resource.GroupVersion().String(), resource.Resource):
				continue // whoever may not read a kind learns no more of it
			case cluster.UnconvertedBy(err) != "":
				unconverted = cmp.Or(unconverted, err)
				continue
			case err != nil:
				return nil, err
			case a.TargetUID != "" && string(u.GetUID()) != a.TargetUID:
				continue
			}
			return r.read(k, resource, u)
		}
	}
	return nil, unconverted
}

// serves tells whether the API server has the resource; if that cannot be read
// it may.
func (r *roller) serves(ctx context.Context, version, resource string) bool {
	ctx, cancel := r.Read(ctx)
	defer cancel()
	var list metav1.APIResourceList
	raw, err := r.Client.Discovery().RESTClient().Get().AbsPath("/apis/" + version).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	for _, x := range list.APIResources {
		if x.Name == resource {
			return true
		}
	}
	return false
}

func gone(a *protocol.Assignment) string {
	return fmt.Sprintf("%s (%s) is gone", a.TargetName, a.TargetUID)
}

// unread is the outcome of a step that could not read the API server: it waits,
// bounded by the operation's deadline, unless a right is missing.
func unread(err error) executor.Outcome {
	return cluster.Patient(cluster.Broken(err), again)
}

// preflight names what would keep the restart from coming to its end, before
// anything is touched.
func (r *roller) preflight(ctx context.Context, t *executor.Task) executor.Outcome {
	ctx = cluster.Operation(ctx, t.Assignment)
	p, err := payload(t.Assignment.Payload)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	d, err := r.find(ctx, t.Assignment)
	switch {
	case err != nil:
		return unread(err)
	case d == nil:
		return executor.Permanent("deployment_gone", gone(t.Assignment))
	case d.restarted(cluster.MarkOf(t)):
		return executor.Done(d.name() + " is restarted already")
	}
	holds, warnings, err := r.check(ctx, t, d, cluster.MarkOf(t), p)
	switch {
	case err != nil:
		return r.unasked(ctx, t, d, err)
	case len(holds) > 0:
		var why []string
		for _, hold := range holds {
			why = append(why, hold.Detail)
		}
		return executor.Permanent(holds[0].Code, strings.Join(why, "; "))
	}
	text := fmt.Sprintf("%s %s has %d replicas, %d ready", d.kind.name, d.name(), d.desired, d.ready)
	for _, w := range warnings {
		text += "; " + w.Detail
	}
	return executor.Done(text)
}

// check finds what a restart would meet: what no restart gets past (one blocker, or
// each right that is missing), and what is worth knowing. t is nil for a dry run.
func (r *roller) check(ctx context.Context, t *executor.Task, d *rollout, by cluster.Mark, p operation.RollPayload) (holds, warnings []protocol.Blocker, err error) {
	if hold := d.barred(p); hold != nil {
		return []protocol.Blocker{*hold}, nil, nil
	}
	if holds, err = r.lacking(ctx, d, p); len(holds) > 0 || err != nil {
		return holds, d.warnings(), err
	}
	if hold, err := r.rehearse(ctx, t, d, by); err != nil {
		return nil, d.warnings(), err
	} else if hold != nil {
		holds = []protocol.Blocker{*hold}
	}
	return holds, d.warnings(), nil
}
