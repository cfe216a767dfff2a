package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

type clock = func() time.Time

func previewed(r protocol.PreviewRequest) *protocol.Assignment {
	return &protocol.Assignment{Operation: r.ID, Type: r.Type, TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload}
}

// rightsTo asks which of the rights to change the cluster are missing: no read of a
// preview would meet that.
func (e *nodes) rightsTo(ctx context.Context, a *protocol.Assignment, rights ...cluster.Right) ([]protocol.Blocker, error) {
	list := []protocol.Blocker{}
	for _, r := range rights {
		has, err := e.has(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("preview %s: %w", a.Type, err)
		}
		if !has {
			list = append(list, *r.Missing("node/" + nodeName(a)))
		}
	}
	return list, nil
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
	if blockers, err = e.rightsTo(ctx, a, patchRight); err != nil || r.Type != "node.uncordon" {
		return blockers, err
	}
	var p struct {
		TakeOver bool `json:"take_over"`
	}
	if err := decode(r.Payload, &p); err != nil {
		return []protocol.Blocker{{Code: "invalid_payload", Resource: r.TargetName, Detail: err.Error()}}, nil
	}
	if c := CordonOf(n); c != nil && c.Owner != "opsplane" && !p.TakeOver {
		blockers = append(blockers, protocol.Blocker{Code: "cordon_not_owned", Resource: "node/" + n.Name,
			Detail: fmt.Sprintf("node %s was cordoned by somebody else: %s", n.Name, describe(c))})
	}
	return blockers, nil
}
