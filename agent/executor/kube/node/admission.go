package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Codes of what admission makes of a patch.
const (
	codeRefused = cluster.CodeAdmission
	// codeUntold: a webhook does not say beforehand. It stands in nobody's way: what it
	// says to the patch itself is met then.
	codeUntold = "not_rehearsed"
)

// A webhook that declares side effects, which only an old registration can, is asked
// by no dry run.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects
var withoutDryRun = regexp.MustCompile(`admission webhook "([^"]+)" does not support dry run`)

// refusedPatch reads whether admission refused a patch; nil: it was something else.
// Webhooks refuse with whatever status they like, also with those that mean a
// conflict or a busy server from anybody else: so the message comes first.
func refusedPatch(err error, what, node string) *refusal {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	st := status.Status()
	r := &refusal{code: codeRefused, why: fmt.Sprintf("%s of node %s is refused: %s", what, node, st.Message)}
	by := func(kind, name, then string) *refusal {
		r.rule = kind + "/" + name
		r.act = fmt.Sprintf(then, kind+" "+name) + operation.ThenRetry
		return r
	}
	hook := cluster.UncalledBy(err)
	switch {
	case withoutDryRun.MatchString(st.Message):
		r.code = codeUntold
		r.rule = "webhook/" + withoutDryRun.FindStringSubmatch(st.Message)[1]
		r.why = fmt.Sprintf("whether %s takes the %s of node %s cannot be told beforehand: it declares side effects, and so is asked by no dry run", r.rule, what, node)
		return r
	case hook != nil:
		r.away = hook
		return by("webhook", hook.Webhook, "bring back what answers for admission %s, or take it away")
	}
	if kind, name := cluster.DeniedBy(err); kind != "" {
		return by(kind, name, "ask the owner of admission %s, which refuses it")
	}
	return nil
}

// untaken tells what admission made of a patch that the API server took: it answers with
// the node as it is stored. nil: what was to be set is.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#what-are-they
func (c change) untaken(what string, n *corev1.Node) *refusal {
	if c.unschedulable == nil || n.Spec.Unschedulable == *c.unschedulable {
		return nil
	}
	stays := "schedulable"
	if n.Spec.Unschedulable {
		stays = "unschedulable"
	}
	return &refusal{code: codeRefused, rule: "admission",
		why: fmt.Sprintf("%s of node %s is refused: the API server took the change and left the node %s, so a webhook or policy that mutates nodes took it out", what, n.Name, stays),
		act: fmt.Sprintf("find the mutating admission webhook or policy that sets spec.unschedulable of node %s, and ask its owner", n.Name) + operation.ThenRetry}
}

// refusedUnnamed is of what the API server refused without a word on who did.
func refusedUnnamed(err error, what, node string) *refusal {
	return &refusal{code: codeRefused, rule: "admission", why: fmt.Sprintf("%s of node %s is refused: %v", what, node, err)}
}

// outcome is of a step whose patch was refused. A webhook that cannot be called may come
// back, as where its only pod was on a node that is drained: the step waits for it.
func (r *refusal) outcome() executor.Outcome {
	o := executor.Permanent(r.code, r.why)
	if r.away != nil {
		o = r.away.Outcome()
		o.Detail = r.why
	}
	if r.act != "" {
		o.ActionText = r.act
	}
	return o
}

// blocker is the refusal as what stands in the way of a patch of the node.
func (r *refusal) blocker(node string) protocol.Blocker {
	return protocol.Blocker{Code: r.code, Resource: "node/" + node, Rule: r.rule, Detail: r.why}
}

// rehearsePatch asks the API server for a patch of the node that it only judges, so
// that what refuses it is named before anything is touched: policies, webhooks that
// refuse or cannot be asked. nil: it would be taken, or the node changed meanwhile.
// A refusal of codeRefused is one that the patch itself meets; any other leaves open
// what it meets. The error is of a call that was not answered, or of a missing right.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (e *nodes) rehearsePatch(ctx context.Context, a *protocol.Assignment, what string, n *corev1.Node, set change) (*refusal, error) {
	body, err := set.body(n, markOf(a))
	if err != nil {
		return nil, err
	}
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, dryRunFor)
	defer cancel()
	would, err := e.c.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager, DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return set.untaken(what, would), nil
	}
	if r := refusedPatch(err, what, n.Name); r != nil {
		return r, nil
	}
	var status apierrors.APIStatus
	switch {
	case asked.Err() != nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil, nil // the patch itself reads again
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), ctx.Err() != nil:
		return &refusal{code: "api_error", rule: "api_server", why: fmt.Sprintf("the API server did not say within %s whether it takes the %s of node %s: a webhook may hang", dryRunFor, what, n.Name)}, nil
	case apierrors.IsForbidden(err):
		switch has, unknown := e.has(asked, patchRight); {
		case unknown != nil:
			return nil, unknown
		case !has:
			return nil, fmt.Errorf("rehearse the %s of node %s: %w", what, n.Name, err)
		}
		return refusedUnnamed(err, what, n.Name), nil
	case !errors.As(err, &status), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsUnauthorized(err):
		return nil, nil // it says nothing of this patch
	case status.Status().Code < http.StatusInternalServerError:
		return refusedUnnamed(err, what, n.Name), nil
	}
	return &refusal{code: "api_error", rule: "api_server", why: fmt.Sprintf("the API server fails at the %s of node %s: %v", what, n.Name, err)}, nil
}

func markOf(a *protocol.Assignment) cluster.Mark {
	return cluster.MarkOf(&executor.Task{Assignment: a})
}
