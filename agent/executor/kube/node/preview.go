package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/shared/protocol"
)

type clock = func() time.Time

func previewed(r protocol.PreviewRequest) *protocol.Assignment {
	return &protocol.Assignment{Operation: r.ID, Type: r.Type, TargetUID: r.TargetUID, TargetName: r.TargetName, NodeName: r.NodeName, Payload: r.Payload}
}

// previewNode reads the node; nil: the blockers say why it cannot be acted on.
func (e *nodes) previewNode(ctx context.Context, a *protocol.Assignment) (*corev1.Node, []protocol.Blocker, error) {
	n, code, detail, err := e.read(ctx, a)
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
	n, blockers, err := e.previewNode(ctx, previewed(r))
	if n == nil || err != nil || r.Type != "node.uncordon" {
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
