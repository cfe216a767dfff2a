// Package auth says who calls and what they may do: principals, roles, API
// tokens in the ledger, OpenID Connect tokens of an issuer, and limits per
// principal.
//
// It is domain code: the API's and the agents' endpoints (and on AWS the
// authorizer, which only asks who) call it with the bearer credential that they
// took from the request.
package auth

import (
	"fmt"
	"slices"
)

// Kind is what kind of principal calls.
type Kind string

// The kinds.
const (
	KindToken Kind = "token" // an API token of a person or a program
	KindOIDC  Kind = "oidc"  // somebody whom the issuer vouches for
	KindAgent Kind = "agent" // an agent, by its own token
)

// Role is what a principal is trusted with. Each of viewer, operator and admin
// includes the one before; agent is apart.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // also runs operations
	Admin    Role = "admin"    // also manages the plane, and settles what no probe can
	Agent    Role = "agent"    // carries out its own cluster's operations, nothing else
)

var rank = map[Role]int{Viewer: 1, Operator: 2, Admin: 3}

// Includes tells whether the role has all rights of the other.
func (r Role) Includes(other Role) bool {
	if r == Agent || other == Agent {
		return r == other
	}
	return rank[other] > 0 && rank[r] >= rank[other]
}

// Valid tells whether the role is one of the four.
func (r Role) Valid() bool { return r == Agent || rank[r] > 0 }

// Principal is who calls.
type Principal struct {
	// ID is stable and unique over all kinds: the token's id, or the issuer and
	// the subject.
	ID    string
	Kind  Kind
	Name  string // for people; not unique
	Roles []Role // none: may do nothing
	// Clusters are the ids of the clusters that it is confined to; empty means
	// all, and what belongs to no cluster.
	Clusters []string
	// Force is the right of its own to overrule safeguards.
	Force bool
	// Token is the id of the API token used, if one was.
	Token string
}

// Action is something that needs a right.
type Action string

// The actions; actions is the table of who may.
const (
	// Read: operations, journals, events, alerts, inventory, artifacts.
	Read Action = "read"
	// Operate: create, cancel and retry operations and plans.
	Operate Action = "operate"
	// Force: use what overrules safeguards, with the right of its own.
	Force Action = "force"
	// RecordChange: record a repair made by hand.
	RecordChange Action = "record_change"
	// Silence: silence and acknowledge alerts.
	Silence Action = "silence"
	// Resolve: settle a step whose outcome no probe can read.
	Resolve Action = "resolve"
	// ManageClusters: register, change and remove clusters.
	ManageClusters Action = "manage_clusters"
	// ManageTokens: create, list and revoke tokens.
	ManageTokens Action = "manage_tokens"
	// ManageRules: create, change and remove alert rules.
	ManageRules Action = "manage_rules"
	// ReadAudit: read the audit records.
	ReadAudit Action = "read_audit"
	// ReadMetrics: read the plane's metrics, which are of all clusters.
	ReadMetrics Action = "read_metrics"
	// Serve: what an agent does: claim, renew, report, receive.
	Serve Action = "serve"
)

type right struct {
	role Role
	// anywhere: a principal confined to clusters may also do it where no cluster
	// is named; the handler then filters by Sees.
	anywhere bool
	force    bool // needs the principal's Force too
}

var actions = map[Action]right{
	Read:           {role: Viewer, anywhere: true},
	Operate:        {role: Operator},
	Force:          {role: Operator, force: true},
	RecordChange:   {role: Operator},
	Silence:        {role: Operator},
	Resolve:        {role: Admin},
	ManageClusters: {role: Admin},
	ManageTokens:   {role: Admin},
	ManageRules:    {role: Admin},
	ReadAudit:      {role: Admin},
	ReadMetrics:    {role: Viewer},
	Serve:          {role: Agent},
}

// Sees tells whether something of the cluster may be shown to the principal; the
// empty cluster means what belongs to none.
func (p Principal) Sees(cluster string) bool {
	if len(p.Clusters) == 0 {
		return p.Kind != KindAgent // an agent without its cluster is nobody
	}
	return slices.Contains(p.Clusters, cluster)
}

// Can tells whether the principal may do the action in the cluster, or, with an
// empty cluster, fleet-wide.
func (p Principal) Can(a Action, cluster string) bool { return p.Authorize(a, cluster) == nil }

// Authorize is Can with the reason: a *ForbiddenError.
func (p Principal) Authorize(a Action, cluster string) error {
	r, ok := actions[a]
	if !ok || !slices.ContainsFunc(p.Roles, func(have Role) bool { return have.Includes(r.role) }) {
		return &ForbiddenError{Action: a, Cluster: cluster, Need: r.role}
	}
	if !p.Sees(cluster) && !(cluster == "" && r.anywhere) {
		return &ForbiddenError{Action: a, Cluster: cluster, OutOfScope: true}
	}
	if r.force && !p.Force {
		return &ForbiddenError{Action: a, Cluster: cluster, NoForce: true}
	}
	return nil
}

// ForbiddenError says what right was missing.
type ForbiddenError struct {
	Action     Action
	Cluster    string
	Need       Role // the role that it takes, when that is what is missing
	OutOfScope bool // the cluster is not among the principal's
	NoForce    bool // the right to force is missing
}

func (e *ForbiddenError) Error() string {
	switch {
	case e.NoForce:
		return "force is a right of its own, which this principal does not have"
	case e.OutOfScope && e.Cluster == "":
		return fmt.Sprintf("%q over all clusters is not for a principal confined to some", e.Action)
	case e.OutOfScope:
		return fmt.Sprintf("cluster %s is not among this principal's clusters", e.Cluster)
	}
	return fmt.Sprintf("%q needs the role %s", e.Action, e.Need)
}

// Code is the error code of package problem.
func (e *ForbiddenError) Code() string {
	if e.NoForce {
		return "force_not_allowed"
	}
	return "forbidden"
}
