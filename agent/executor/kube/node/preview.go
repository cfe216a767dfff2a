package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

type clock = func() time.Time

func previewed(r protocol.PreviewRequest) *protocol.Assignment {
	return &protocol.Assignment{Operation: r.ID, Type: r.Type, TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload,
		Reason: r.Reason, Actor: operation.Actor{ID: r.By}}
}

// rightsTo asks which of the rights to change the cluster are missing: no read of a
// preview would meet that.
func (e *nodes) rightsTo(ctx context.Context, rights ...cluster.Right) (missing []cluster.Right, err error) {
	for _, r := range rights {
		has, err := e.has(ctx, r)
		if err != nil {
			return nil, err
		}
		if !has {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// lacking words the rights that are missing.
func lacking(node string, missing []cluster.Right) []protocol.Blocker {
	list := []protocol.Blocker{}
	for _, r := range missing {
		list = append(list, *r.Missing("node/" + node))
	}
	return list
}

func (e *nodes) has(ctx context.Context, r cluster.Right) (bool, error) {
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	return e.c.Allowed(ctx, r.Attributes())
}

// previewNode reads the node; nil: the blockers say why it cannot be acted on.
func (e *nodes) previewNode(ctx context.Context, a *protocol.Assignment) (*corev1.Node, []protocol.Blocker, error) {
	n, code, detail, err := e.read(ctx, a)
	if denied := cluster.Denied("node/"+nodeName(a), err); denied != nil {
		return nil, []protocol.Blocker{*denied}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("preview %s: %w", a.Type, err)
	}
	if code != "" {
		return nil, []protocol.Blocker{{Code: code, Resource: "node/" + nodeName(a), Detail: detail}}, nil
	}
	return n, []protocol.Blocker{}, nil
}

// preview tells what a cordon or an uncordon would meet now.
func (e *nodes) preview(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	a := previewed(r)
	n, blockers, err := e.previewNode(ctx, a)
	if n == nil || err != nil {
		return blockers, err
	}
	missing, err := e.rightsTo(ctx, patchRight)
	if err != nil {
		return nil, fmt.Errorf("preview %s: %w", r.Type, err)
	}
	blockers = lacking(n.Name, missing)
	var w wish
	what := strings.TrimPrefix(r.Type, "node.")
	if r.Type == "node.uncordon" {
		var p uncordonPayload
		if err := decode(r.Payload, &p); err != nil {
			return []protocol.Blocker{{Code: "invalid_payload", Resource: r.TargetName, Detail: err.Error()}}, nil
		}
		var lifts *protocol.Cordon
		if w, lifts = p.toUncordon(n); lifts != nil {
			e.sign(a, lifts, w.set)
		}
	} else {
		w = e.toCordon(a, n, &placing{})
	}
	switch {
	case w.stop != nil:
		return append(blockers, protocol.Blocker{Code: w.stop.ErrorCode, Resource: "node/" + n.Name, Detail: w.stop.Detail}), nil
	case w.done != "" || len(missing) > 0:
		return blockers, nil
	}
	refused, err := e.rehearsePatch(ctx, a, what, n, w.set)
	if denied := cluster.Denied("node/"+n.Name, err); denied != nil {
		return append(blockers, *denied), nil
	}
	if err != nil {
		return nil, fmt.Errorf("preview %s: %w", r.Type, err)
	}
	if refused != nil {
		blockers = append(blockers, refused.blocker(n.Name))
	}
	return blockers, nil
}
