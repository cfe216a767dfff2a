package cluster

import (
	"context"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

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

// Attributes are the right as an access review asks for it. One that is needed in the
// agent's own namespace is asked for everywhere.
func (r Right) Attributes() *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: sub}
}

// String words the right: its verb and resource.
func (r Right) String() string { return inWords(r.Attributes()) }

// OwnNamespace marks a right that is needed in the agent's own namespace alone.
const OwnNamespace = "own"
