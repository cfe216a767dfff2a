package deployment

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// maxConflicts is how often a patch is tried on an object that others write to:
// the controller writes its status at each step of a rollout.
const maxConflicts = 20

// restartPatch is the merge patch that restarts d, conditional on the
// resourceVersion that d was read at. made is what the API server makes of it; nil: what
// the patch alone does.
func restartPatch(d *rollout, by cluster.Mark, at time.Time, made *unstructured.Unstructured) ([]byte, error) {
	rec := record{At: at.UTC().Truncate(time.Second), Goal: d.goal()}
	patch := map[string]any{}
	if d.kind == dynamoGraphs {
		rec.ID = fmt.Sprintf("%s-%d", by.Operation, by.Run)
		put(patch, rec.ID, "spec", "restart", "id")
	} else {
		set := map[string]any{annotationRestarted: rec.At.Format(time.RFC3339), cluster.AnnotationMark: by.String()}
		for _, at := range d.templates() {
			now, _, err := unstructured.NestedStringMap(d.object.Object, annotationsOf(at)...)
			if err != nil {
				return nil, fmt.Errorf("read the template's annotations: %w", err)
			}
			before := map[string]*string{}
			for k := range set {
				before[k] = nil
				if v, found := now[k]; found {
					before[k] = &v
				}
			}
			rec.Before = append(rec.Before, before)
			put(patch, set, annotationsOf(at)...)
		}
		asked := d.patched(patch)
		if rec.Unrehearsed = made == nil; made == nil {
			made = asked
		}
		rec.Template, rec.Was = d.digestOf(made), digest(d.kind.bare(d.object))
		rec.admitted(d, asked, made)
		if d.observed >= d.generation {
			rec.Revision = d.object.GetAnnotations()[annotationRevision]
		}
	}
	return d.sealed(patch, by, rec)
}

// digestOf is the digest of another state of the object.
func (r *rollout) digestOf(u *unstructured.Unstructured) string {
	template, _, _ := unstructured.NestedMap(u.Object, r.kind.template...)
	return digest(template)
}

// undoPatch is the merge patch that takes the restart back, and what admission made of
// the template with it: it is issued only while that is as the restart left it. made is
// what the API server makes of it; nil: what the patch alone does.
func undoPatch(d *rollout, by cluster.Mark, made *unstructured.Unstructured) ([]byte, error) {
	patch := map[string]any{}
	templates := d.templates()
	if len(templates) != len(d.record.Before) {
		return nil, fmt.Errorf("the restart's record tells of %d pod templates, there are %d", len(d.record.Before), len(templates))
	}
	back, err := d.record.backPatch()
	if err != nil {
		return nil, err
	}
	put(patch, back, d.kind.template...)
	for i, at := range templates {
		for k, v := range d.record.Before[i] {
			put(patch, nil, append(annotationsOf(at), k)...)
			if v != nil {
				put(patch, *v, append(annotationsOf(at), k)...)
			}
		}
	}
	rec := *d.record
	rec.undone(d, d.patched(patch), made)
	return d.sealed(patch, by, rec)
}

// sealed adds what makes the patch an effect of kind (a): the resourceVersion
// and the mark.
func (r *rollout) sealed(patch map[string]any, by cluster.Mark, rec record) ([]byte, error) {
	text, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("write the restart's record: %w", err)
	}
	put(patch, map[string]any{
		"resourceVersion": r.object.GetResourceVersion(),
		"annotations":     map[string]any{cluster.AnnotationMark: by.String(), AnnotationRoll: string(text)},
	}, "metadata")
	out, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("write patch: %w", err)
	}
	return out, nil
}

// templates are the pod templates that the object has.
func (r *rollout) templates() [][]string {
	var list [][]string
	for _, at := range r.kind.annotated {
		if _, found, _ := unstructured.NestedMap(r.object.Object, at...); found {
			list = append(list, at)
		}
	}
	return list
}

func annotationsOf(template []string) []string {
	return append(append([]string{}, template...), "metadata", "annotations")
}

func put(m map[string]any, v any, fields ...string) {
	for _, f := range fields[:len(fields)-1] {
		next, ok := m[f].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[f] = next
		}
		m = next
	}
	m[fields[len(fields)-1]] = v
}

func (r *roller) patch(ctx context.Context, d *rollout, patch []byte, o metav1.PatchOptions) (*unstructured.Unstructured, error) {
	o.FieldManager = cluster.ManagedBy
	return r.Dynamic.Resource(d.resource).Namespace(d.object.GetNamespace()).Patch(ctx, d.object.GetName(), types.MergePatchType, patch, o)
}

// rehearse asks the API server for the restart without doing it: a missing
// right, an admission policy that refuses it and an operator too old for it are
// known before anything is touched.
func (r *roller) rehearse(ctx context.Context, t *executor.Task, d *rollout, by cluster.Mark) (*protocol.Blocker, error) {
	patch, err := restartPatch(d, by, r.Now(), nil)
	if err != nil {
		return nil, err
	}
	u, _, err := r.ask(ctx, t, d, patch)
	hold := &protocol.Blocker{Resource: "deployment/" + d.name()}
	hook := cluster.UncalledBy(err)
	switch {
	case hook != nil && t == nil: // a dry run waits for nothing
		*hold = hook.Blocker(hold.Resource)
		return hold, nil
	case err == nil && d.kind == dynamoGraphs:
		if id, _, _ := unstructured.NestedString(u.Object, "spec", "restart", "id"); id == "" {
			hold.Code, hold.Rule = "not_supported", "spec.restart"
			hold.Detail = fmt.Sprintf("DynamoGraphDeployment %s: its operator's version has no spec.restart", d.name())
			return hold, nil
		}
		return nil, nil
	case err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil, nil // the restart itself reads again
	case cluster.AdmissionDenied(err) && !apierrors.IsForbidden(err):
	case apierrors.IsForbidden(err):
		allowed, unknown := r.Allowed(ctx, &authorizationv1.ResourceAttributes{
			Verb: "patch", Group: d.resource.Group, Resource: d.resource.Resource, Namespace: d.object.GetNamespace(), Name: d.object.GetName()})
		if unknown != nil || !allowed {
			return nil, cmp.Or(unknown, err)
		}
	case apierrors.IsInvalid(err):
	case apierrors.IsBadRequest(err): // a webhook that knows no dry run: it cannot be told
		return nil, nil
	default:
		return nil, err
	}
	hold.Code, hold.Rule, hold.Detail = "admission_refused", "admission", fmt.Sprintf("the restart of %s is refused: %s", d.name(), bound(err.Error()))
	return hold, nil
}

// answered is what the API server makes of a patch: admission may add to what is asked
// for, and that is nobody else's change. It is nil where it cannot be told. slow:
// admission takes its time, or may.
func (r *roller) answered(ctx context.Context, t *executor.Task, d *rollout, what string, patch []byte) (made *unstructured.Unstructured, slow bool, err error) {
	if d.kind.template == nil {
		return nil, false, nil
	}
	u, took, err := r.askFor(ctx, t, d, what, patch)
	slow = took >= cluster.SlowFrom || cluster.TakesNoDryRun(err)
	switch {
	case err == nil:
		return u, slow, nil
	case apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		return nil, slow, nil // a webhook that knows no dry run, or a refusal that the patch itself meets
	}
	return nil, slow, err
}

func (r *roller) probeRestart(ctx context.Context, t *executor.Task) executor.Finding {
	d, err := r.find(cluster.Operation(ctx, t.Assignment), t.Assignment)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case d == nil:
		return executor.Lost("deployment_gone", gone(t.Assignment))
	case d.restarted(cluster.MarkOf(t)):
		return executor.Found(fmt.Sprintf("%s was restarted by generation %d", d.name(), d.mark.Generation))
	}
	return executor.ToRun("this operation did not restart it yet")
}

// restart is an effect of kind (a): a patch conditional on the resourceVersion
// that carries operation, run and generation.
func (r *roller) restart(ctx context.Context, t *executor.Task) executor.Outcome {
	ctx = cluster.Operation(ctx, t.Assignment)
	by := cluster.MarkOf(t)
	p, err := payload(t.Assignment.Payload)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	for range maxConflicts {
		d, err := r.find(ctx, t.Assignment)
		switch {
		case err != nil:
			return unread(err)
		case d == nil:
			return executor.Permanent("deployment_gone", gone(t.Assignment))
		case d.restarted(by):
			return executor.Done(d.name() + " is restarted")
		case d.marked && d.mark.Stale(by):
			return executor.Transient("fenced", "nothing was issued: a newer lease of this operation has changed "+d.name())
		}
		if hold := d.barred(p); hold != nil { // since the preflight
			return executor.Permanent(hold.Code, hold.Detail)
		}
		if s := executor.Halted(ctx, t); s != "" {
			return executor.Waiting(s, "stopped before the restart of "+d.name())
		}
		at := r.Now()
		patch, err := restartPatch(d, by, at, nil)
		if err != nil {
			return executor.Permanent("api_error", err.Error())
		}
		made, slow, err := r.answered(ctx, t, d, "restart", patch)
		switch {
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			continue
		case err != nil:
			return r.unasked(ctx, t, d, err)
		}
		if patch, err = restartPatch(d, by, at, made); err != nil {
			return executor.Permanent("api_error", err.Error())
		}
		after, again, stop := r.change(ctx, t, d, "restart", patch, slow)
		if stop != nil {
			return *stop
		}
		if !again {
			r.learn(t, d, patch, after)
			r.Event(ctx, t, reference(d), corev1.EventTypeNormal, "OpsplaneRestart", "Restarted by Opsplane")
			return executor.Done("restart of " + d.name() + " accepted")
		}
	}
	return executor.Transient("conflict", "the deployment is written to all the time")
}

// change issues one patch, and returns the object that it made. slow: admission was seen to
// take its time, or cannot be asked how much. again: somebody else wrote first.
func (r *roller) change(ctx context.Context, t *executor.Task, d *rollout, what string, patch []byte, slow bool) (made *unstructured.Unstructured, again bool, stop *executor.Outcome) {
	limit := time.Duration(0)
	if slow {
		limit = cluster.AdmissionMost
	}
	reply, stop := r.EffectWithin(ctx, t, limit, what, "deployment/"+string(d.object.GetUID()), d.name(), func(ctx context.Context) (err error) {
		made, err = r.patch(ctx, d, patch, metav1.PatchOptions{})
		return err
	})
	if stop != nil {
		if stop.Class == operation.OutcomeAmbiguous {
			stop.ActionCode = operation.ActRestoreDependency
			stop.ActionText = fmt.Sprintf("%s; look whether the %s came through, then retry", d.change(what).SeeTo(), what)
		}
		return nil, false, stop
	}
	if stop := reply.Uncalled(t, "deployment/"+d.name()); stop != nil {
		return nil, false, stop
	}
	if reply.Category == cluster.OK {
		tell(t, nil) // what an earlier try waited for
	}
	again, stop = judged(reply, d)
	return made, again, stop
}

func judged(reply cluster.Reply, d *rollout) (again bool, stop *executor.Outcome) {
	var o executor.Outcome
	switch {
	case reply.Category == cluster.OK:
		return false, nil
	case reply.Category == cluster.Conflict || reply.NotFound():
		return true, nil
	case reply.Category == cluster.Throttled:
		o = executor.Transient("api_unavailable", "the API server is busy: "+bound(reply.Err.Error()))
		o.After = max(reply.RetryAfter, o.After)
	case reply.Category == cluster.Refused:
		o = executor.Permanent("admission_refused", fmt.Sprintf("the change of %s is refused: %s", d.name(), bound(reply.Err.Error())))
	default:
		o = executor.Transient("api_error", bound(reply.Err.Error()))
	}
	o.CommandID = reply.Command
	return false, &o
}

func reference(d *rollout) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: d.object.GetAPIVersion(), Kind: d.object.GetKind(), Namespace: d.object.GetNamespace(),
		Name: d.object.GetName(), UID: d.object.GetUID(), ResourceVersion: d.object.GetResourceVersion()}
}
