package deployment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// observe describes the deployment at the end of the operation.
func (r *roller) observe(ctx context.Context, a *protocol.Assignment, end *executor.Ending) {
	ctx = cluster.Operation(ctx, a)
	d, err := r.find(ctx, a)
	switch {
	case err != nil:
		end.Message = "the deployment could not be read: " + err.Error()
		return
	case d == nil:
		end.Message = gone(a)
		return
	}
	by := cluster.Mark{Operation: a.Operation, Run: a.Run, Generation: a.Generation}
	end.Observed = &protocol.Inventory{Deployments: []protocol.Deployment{d.report()}}
	end.NotVerified = []string{"application readiness"}
	end.Message = d.String()
	if !d.restarted(by) { // what its pods are is nothing that this operation did
		end.Message = fmt.Sprintf("%s does not carry a restart of this operation, %s", d.name(), tally(d.ready, d.desired, "ready"))
		return
	}
	if !executor.StepUnknown(a, "restart") {
		switch {
		case d.record.Undone:
			d.observeUndo(a, end)
		case d.superseded() != "":
			end.Message += "; " + supersededBy(d)
		default:
			end.Verified = append(end.Verified, "the pod template carries this restart")
			r.leftover(ctx, a, d, by, end)
		}
	}
	end.Verified = append(end.Verified, tally(d.updated, d.target(), "updated"), tally(d.ready, d.desired, "ready"))
}

// observeUndo says whether the template is that of before, of a restart that was taken
// back.
func (r *rollout) observeUndo(a *protocol.Assignment, end *executor.Ending) {
	const goal = "the pod template is that of before the restart"
	is := r.takenBack()
	if is.whole {
		end.Verified = append(end.Verified, goal)
		end.Message += ", taken back to the template of before"
		return
	}
	end.NotVerified = append(end.NotVerified, "that "+goal)
	end.Message += "; " + is.text
	if is.known {
		end.Leave(a, "undo", is.text+"; next: "+is.act)
	}
}

// details are a roll's own findings.
type details struct {
	Restarted int `json:"restarted"` // pods of the restarted template that are ready
	Before    int `json:"before"`    // pods of a template before it
	// Kept are those of them that a partition keeps, of Partition; at most maxKept
	// are named.
	Kept      []string `json:"kept,omitempty"`
	Partition int      `json:"partition,omitempty"`
}

const maxKept = 100

// leftover says what came of a restart that is in force, and what is not done of it.
func (r *roller) leftover(ctx context.Context, a *protocol.Assignment, d *rollout, by cluster.Mark, end *executor.Ending) {
	s, err := r.look(ctx, d)
	if err != nil { // how far it is stays what the object says
		end.NotVerified = append(end.NotVerified, "which pods are of before the restart")
		return
	}
	v := r.weigh(ctx, s, map[types.UID]words{}, func() verdict { return s.judge(by, r.bounds, false, map[string]time.Time{}, r.Now()) })
	for _, c := range s.holds() {
		if !v.rolled || c.code == codeScaled {
			end.Message += "; " + c.detail
		}
	}
	if d.kind == dynamoGraphs { // its pods are told by the clock alone
		end.NotVerified = append(end.NotVerified, "that no pod of before is left: the operator's word was taken")
		if !v.rolled {
			end.Leave(a, "wait", "the rollout is incomplete: "+cmp.Or(v.why, d.String()))
		}
		return
	}
	found := details{Restarted: v.renewed, Before: len(v.old)}
	kept := len(v.old) - len(v.leaving)
	if kept > 0 {
		found.Partition = d.partition
		for _, p := range v.old {
			if len(found.Kept) < min(kept, maxKept) && !slices.Contains(v.leaving, p) {
				found.Kept = append(found.Kept, p.Name)
			}
		}
	}
	end.Details, _ = json.Marshal(found) // plain values always marshal
	switch {
	case !v.rolled && s.emptied():
	case !v.rolled:
		why := v.why
		if why == "" {
			why = d.String()
			if first, is := v.first(); is {
				why = first.detail + " (" + why + ")"
			}
		}
		end.Leave(a, "wait", "the rollout is incomplete: "+why)
	case len(v.leaving) > 0:
		end.Leave(a, "confirm", fmt.Sprintf("%d old pods have not gone", len(v.leaving)))
	case d.desired == 0:
		end.Verified = append(end.Verified, "it has no replicas: none was restarted")
	case kept > 0:
		end.Verified = append(end.Verified, fmt.Sprintf("%d pods restarted, %d of before are kept by a partition of %d", v.renewed, kept, d.partition))
		named := strings.Join(found.Kept[:min(len(found.Kept), maxNamed)], ", ")
		if kept > maxNamed {
			named += ", ..."
		}
		end.NotVerified = append(end.NotVerified, fmt.Sprintf("a restart of the %d pods that a partition of %d keeps as they are: %s", kept, d.partition, named))
	default:
		end.Verified = append(end.Verified, fmt.Sprintf("%d pods restarted", v.renewed), "the pods of before are gone")
	}
}

// report is the deployment as the inventory has it.
func (r *rollout) report() protocol.Deployment {
	revision, _ := strconv.ParseInt(r.object.GetResourceVersion(), 10, 64)
	d := protocol.Deployment{UID: string(r.object.GetUID()), Name: r.name(), Kind: r.kind.name, Revision: revision,
		Desired: r.desired, Ready: r.ready, Updated: r.updated, Available: r.available >= r.desired}
	for _, at := range r.templates() {
		list, _, _ := unstructured.NestedSlice(r.object.Object, append(append([]string{}, at...), "spec", "containers")...)
		if len(list) > 0 {
			c, _ := list[0].(map[string]any)
			d.Image, _ = c["image"].(string)
			break
		}
	}
	return d
}

// preview tells what a restart would meet, changing nothing.
func (r *roller) preview(ctx context.Context, q protocol.PreviewRequest) ([]protocol.Blocker, error) {
	p, err := payload(q.Payload)
	if err != nil {
		return nil, err
	}
	a := &protocol.Assignment{Operation: q.ID, TargetName: q.TargetName, TargetUID: q.TargetUID}
	d, err := r.find(ctx, a)
	denied := cluster.Denied(q.TargetName, err)
	switch {
	case denied != nil:
		return []protocol.Blocker{*denied}, nil
	case cluster.UnconvertedBy(err) != "":
		return []protocol.Blocker{cluster.Unconverted(err, q.TargetName)}, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", q.TargetName, err)
	case d == nil:
		return []protocol.Blocker{{Code: "deployment_gone", Resource: q.TargetName, Detail: gone(a)}}, nil
	}
	holds, warnings, err := r.check(ctx, nil, d, cluster.Mark{Operation: q.ID}, p)
	denied = cluster.Denied("deployment/"+d.name(), err)
	var h *cluster.Hung
	switch {
	case errors.As(err, &h):
		b := h.Blocker()
		b.Since = nil
		holds = []protocol.Blocker{b}
	case denied != nil:
		return []protocol.Blocker{*denied}, nil
	case err != nil:
		return nil, fmt.Errorf("preview the restart of %s: %w", d.name(), err)
	}
	list := append(append([]protocol.Blocker{}, warnings...), holds...)
	if short := d.short(r.bounds, time.Duration(q.DeadlineMS)*time.Millisecond); short != nil {
		list = append(list, *short)
	}
	return list, nil
}
