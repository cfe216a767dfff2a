// Package fleet is the domain of what operations act on: clusters, their
// agents, and the inventory that agents report.
package fleet

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Cluster is a set of nodes served by one queue and one or more agents.
type Cluster struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Queue     string          `json:"queue"`
	TokenID   string          `json:"token_id"` // the agents' current token
	CreatedAt time.Time       `json:"created_at"`
	CreatedBy operation.Actor `json:"created_by"`
	Deleting  bool            `json:"deleting,omitempty"`
}

// QueueName is the name of a cluster's queue.
func QueueName(cluster string) string { return "cluster-" + cluster }

// Agent is one agent of a cluster, by its stable name.
type Agent struct {
	ID           string                `json:"id"`
	Cluster      string                `json:"cluster"`
	Name         string                `json:"name"`
	Boot         string                `json:"boot"`
	Version      string                `json:"version"`
	Capabilities []protocol.Capability `json:"capabilities"`
	FirstSeen    time.Time             `json:"first_seen"`
	LastSeen     time.Time             `json:"last_seen"`
	// SkewMS is how far the agent's wall clock is ahead of the plane's.
	SkewMS int64 `json:"skew_ms"`
	// ClockSkewed: the plane has told that the clock is wrong.
	ClockSkewed bool `json:"clock_skewed,omitempty"`
	Leases      int  `json:"leases"`
	Capacity    int  `json:"capacity"`
	Stopping    bool `json:"stopping,omitempty"`
	// CutOff: what it works on did not answer it at its last heartbeat.
	CutOff bool `json:"cut_off,omitempty"`
	// Silent: the plane has told that the agent was not heard of.
	Silent bool `json:"silent,omitempty"`
	// OfferDue: it has arrived, and what waited for an agent is yet to be rung for.
	OfferDue bool `json:"offer_due,omitempty"`
}

// Online tells whether the agent was heard of within the time.
func (a Agent) Online(now time.Time, within time.Duration) bool {
	return !a.Stopping && now.Sub(a.LastSeen) <= within
}

// Missing returns the first capability of the plan that the agent lacks, or "".
func (a Agent) Missing(steps []operation.PlanStep) string {
	for _, st := range steps {
		if have := a.capability(st.Capability); have < st.MinVersion {
			return fmt.Sprintf("%s version %d (it has %d)", st.Capability, st.MinVersion, have)
		}
	}
	return ""
}

func (a Agent) capability(name string) int {
	for _, c := range a.Capabilities {
		if c.Name == name {
			return c.Version
		}
	}
	return 0
}

// Reporter is the lease of the agent that reports a cluster's inventory.
type Reporter struct {
	Agent string    `json:"agent"`
	Boot  string    `json:"boot"`
	Until time.Time `json:"until"`
	// Snapshot is the last full inventory that ended; empty: one is due.
	Snapshot string `json:"snapshot,omitempty"`
	// Asked is set while a full resend is asked for.
	Asked bool `json:"asked,omitempty"`
	// Mark is protocol.HeartbeatAnswer.Mark as it was told last.
	Mark int64 `json:"mark,omitempty"`
}

// Object is one thing of the inventory.
type Object struct {
	ID         string               `json:"id"`
	Kind       string               `json:"kind"` // operation.Kind*
	Cluster    string               `json:"cluster"`
	Name       string               `json:"name"`
	UID        string               `json:"uid"`
	Revision   int64                `json:"revision"`
	FirstSeen  time.Time            `json:"first_seen"`
	ObservedAt time.Time            `json:"observed_at"`
	Node       *protocol.Node       `json:"node,omitempty"`
	Device     *protocol.Device     `json:"device,omitempty"`
	Deployment *protocol.Deployment `json:"deployment,omitempty"`
	Component  *protocol.Component  `json:"component,omitempty"`
}

// Target returns the object as an operation's target.
func (o Object) Target() operation.Target {
	t := operation.Target{Kind: o.Kind, ID: o.ID, Name: o.Name, UID: o.UID, Cluster: o.Cluster}
	switch {
	case o.Node != nil:
		t.NodeID, t.NodeName = o.ID, o.Name
	case o.Device != nil:
		t.NodeID, t.NodeName = NodeID(o.Cluster, o.Device.NodeUID), o.Device.NodeName
	}
	return t
}

// NodeID is the id of the node with the identity in the cluster: a node that is
// made again under its old name is another node.
func NodeID(cluster, uid string) string { return id.Derive(id.Node, cluster, "node", uid) }

// DeviceID is the id of a device.
func DeviceID(cluster, uid string) string { return id.Derive(id.Device, cluster, "device", uid) }

// DeploymentID is the id of a deployment.
func DeploymentID(cluster, uid string) string {
	return id.Derive(id.Deployment, cluster, "deployment", uid)
}

// ComponentID is the id of a cluster's component, by its name.
func ComponentID(cluster, name string) string {
	return id.Derive(id.Component, cluster, "component", name)
}

// AgentID is the id of an agent, by its stable name.
func AgentID(cluster, name string) string { return id.Derive(id.Agent, cluster, "agent", name) }

// Limits of what agents may report.
const (
	MaxNameBytes   = 512
	MaxLabels      = 200
	MaxLabelBytes  = 512
	MaxBlockers    = 100
	MaxConditions  = 50
	maxDetailBytes = protocol.MaxDetailBytes
	// MaxObjectBytes bounds an object as it is kept, so that 50 go into one
	// commit.
	MaxObjectBytes = 56 << 10
)

// Refused is an object that broke a limit. It exists all the same: what is known
// under its id stays.
type Refused struct{ ID, Kind, UID string }

// Objects turns a reported inventory into objects of the cluster. Each object
// that breaks a limit is left out and told. Of one object that is there twice
// (a GPU under two spellings) the newer counts.
func Objects(cluster string, inv *protocol.Inventory, now time.Time) (objects []Object, refused []Refused) {
	if inv == nil {
		return nil, nil
	}
	at := map[string]int{}
	add := func(o Object, ok bool) {
		if !ok || o.UID == "" || o.Name == "" || len(o.UID) > MaxNameBytes || len(o.Name) > MaxNameBytes ||
			!operation.CleanText(o.Name) || !operation.CleanText(o.UID) || tooLarge(o) {
			refused = append(refused, Refused{ID: o.ID, Kind: o.Kind, UID: strings.ToValidUTF8(truncate(o.UID, 64), "?")})
			return
		}
		o.Cluster, o.FirstSeen, o.ObservedAt = cluster, now, now
		if i, ok := at[o.ID]; ok {
			if o.Revision > objects[i].Revision {
				objects[i] = o
			}
			return
		}
		at[o.ID] = len(objects)
		objects = append(objects, o)
	}
	for i := range inv.Nodes {
		n := inv.Nodes[i]
		add(Object{ID: NodeID(cluster, n.UID), Kind: operation.KindNode, Name: n.Name, UID: n.UID, Revision: n.Revision, Node: &n},
			labelsFit(n.Labels) && len(n.Blockers) <= MaxBlockers && len(n.Conditions) <= MaxConditions && len(n.ProviderID) <= MaxNameBytes)
	}
	for i := range inv.Devices {
		d := inv.Devices[i]
		d.UID = CanonicalDevice(d.UID)
		add(Object{ID: DeviceID(cluster, d.UID), Kind: operation.KindDevice, Name: d.UID, UID: d.UID, Revision: d.Revision, Device: &d},
			len(d.NodeName) <= MaxNameBytes && len(d.Detail) <= maxDetailBytes && len(d.Aliases) <= 16)
	}
	for i := range inv.Deployments {
		d := inv.Deployments[i]
		add(Object{ID: DeploymentID(cluster, d.UID), Kind: operation.KindDeployment, Name: d.Name, UID: d.UID, Revision: d.Revision, Deployment: &d}, true)
	}
	for i := range inv.Components {
		c := inv.Components[i]
		add(Object{ID: ComponentID(cluster, c.Name), Kind: operation.KindComponent, Name: c.Name, UID: c.UID, Revision: c.Revision, Component: &c}, true)
	}
	return objects, refused
}

func tooLarge(o Object) bool {
	b, err := json.Marshal(o)
	return err != nil || len(b) > MaxObjectBytes
}

func labelsFit(labels map[string]string) bool {
	if len(labels) > MaxLabels {
		return false
	}
	for k, v := range labels {
		if len(k) > MaxLabelBytes || len(v) > MaxLabelBytes {
			return false
		}
	}
	return true
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// GoneID returns the id of the object that "kind/UID" names, or "".
func GoneID(cluster, gone string) string {
	kind, uid, ok := strings.Cut(gone, "/")
	if !ok {
		return ""
	}
	switch kind {
	case operation.KindNode:
		return NodeID(cluster, uid)
	case operation.KindDevice:
		return DeviceID(cluster, CanonicalDevice(uid))
	case operation.KindDeployment:
		return DeploymentID(cluster, uid)
	case operation.KindComponent:
		return ComponentID(cluster, uid)
	}
	return ""
}

var gpuUUID = regexp.MustCompile(`(?i)^(gpu-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// CanonicalDevice is the one spelling of a device's name: NVIDIA's tools print a
// GPU's UUID with and without its prefix and in either case.
func CanonicalDevice(s string) string {
	if m := gpuUUID.FindStringSubmatch(s); m != nil {
		return "GPU-" + strings.ToLower(m[2])
	}
	return s
}
