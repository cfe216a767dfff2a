package protocol

import "time"

// Inventory is a set of objects as the agent saw them. Revision of an object
// only grows; the plane keeps the newest it has seen.
type Inventory struct {
	Nodes       []Node       `json:"nodes,omitempty"`
	Devices     []Device     `json:"devices,omitempty"`
	Deployments []Deployment `json:"deployments,omitempty"`
	Components  []Component  `json:"components,omitempty"`
	// Unread are the kinds of deployments that the agent cannot read now. A full resend
	// says so with its last part: that it names none of them tells nothing.
	Unread []string `json:"unread,omitempty"`
}

// InventoryRequest is POST /v1/agent/inventory. A full resend is a run of
// requests with one Snapshot id and Part counted from 0; the one with Last set
// ends it, and what the run did not name is gone, but for what it could not read.
type InventoryRequest struct {
	AgentID  string    `json:"agent_id"`
	Boot     string    `json:"boot"`
	Snapshot string    `json:"snapshot,omitempty"`
	Part     int       `json:"part,omitempty"`
	Last     bool      `json:"last,omitempty"`
	Objects  Inventory `json:"objects"`
	// Gone names objects that went: "node/UID", "device/UID", ...
	Gone []string `json:"gone,omitempty"`
}

// InventoryAnswer answers an InventoryRequest.
type InventoryAnswer struct {
	Reporter      bool `json:"reporter"` // false: another agent reports; nothing was taken
	FullInventory bool `json:"full_inventory"`
}

// Cordon says who closed a node to new pods.
type Cordon struct {
	// Owner is "opsplane" or "external".
	Owner     string    `json:"owner"`
	Operation string    `json:"operation,omitempty"`
	By        string    `json:"by,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"`
}

// Node is a node as reported.
type Node struct {
	UID         string            `json:"uid"`
	Name        string            `json:"name"`
	Revision    int64             `json:"revision"`
	Schedulable bool              `json:"schedulable"`
	Ready       bool              `json:"ready"`
	Cordon      *Cordon           `json:"cordon,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	GPUs        int               `json:"gpus"`
	Pods        int               `json:"pods"`
	// ProviderID is the machine's name at its cloud, such as aws:///zone/i-1.
	ProviderID string `json:"provider_id,omitempty"`
	// Conditions are Ready, and the others that say that something is wrong.
	Conditions []Condition `json:"conditions,omitempty"`
	// Blockers are what a drain would meet, as last seen.
	Blockers []Blocker `json:"blockers,omitempty"`
}

// Condition is a node's condition, as Kubernetes has it.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"` // True, False, Unknown
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"` // zero: whoever set it does not say
}

// Device is a GPU as reported.
type Device struct {
	UID      string   `json:"uid"` // canonical: GPU-<lower-case uuid>
	Aliases  []string `json:"aliases,omitempty"`
	NodeUID  string   `json:"node_uid"`
	NodeName string   `json:"node_name"`
	Index    int      `json:"index"`
	Product  string   `json:"product"`
	Revision int64    `json:"revision"`
	Health   string   `json:"health"` // ok, degraded, unusable, unknown
	Detail   string   `json:"detail,omitempty"`
	Holders  int      `json:"holders"`
}

// Deployment is a deployment as reported.
type Deployment struct {
	UID       string `json:"uid"`
	Name      string `json:"name"` // namespace/name
	Kind      string `json:"kind"`
	Revision  int64  `json:"revision"`
	Desired   int    `json:"desired"`
	Ready     int    `json:"ready"`
	Updated   int    `json:"updated"`
	Image     string `json:"image,omitempty"`
	Available bool   `json:"available"`
}

// Component is an installed component of the cluster as reported.
type Component struct {
	UID      string `json:"uid"`
	Name     string `json:"name"` // operator, agent, platform, ...; NAMESPACE/NAME is what only has its labels
	Version  string `json:"version"`
	Revision int64  `json:"revision"`
	Healthy  bool   `json:"healthy"`
	// Namespace is where it is installed; "" where its parts are in several.
	Namespace string `json:"namespace,omitempty"`
}
