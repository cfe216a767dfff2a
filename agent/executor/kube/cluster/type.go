package cluster

import (
	"context"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Step is how one step of a type is probed and executed.
type Step struct {
	Probe   func(ctx context.Context, t *executor.Task) executor.Finding
	Execute func(ctx context.Context, t *executor.Task) executor.Outcome
}

// Type is one operation type as it is carried out on Kubernetes.
type Type struct {
	Name         string // as in shared/operation
	Capabilities []protocol.Capability
	Steps        map[string]Step // by the plan's names
	// Observe fills in what is known of the target at the end.
	Observe func(ctx context.Context, a *protocol.Assignment, end *executor.Ending)
	// Preview tells what the operation would meet; nil: nothing is known before.
	Preview func(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error)
}

// Right is one permission that a package needs of the agent's role.
type Right struct {
	Verb     string
	Group    string // "" is the core group
	Resource string // with its subresource: pods/eviction
	// Namespace is "" for the whole cluster, or OwnNamespace.
	Namespace string
	Why       string
}

// OwnNamespace marks a right that is needed in the agent's own namespace alone.
const OwnNamespace = "own"
