package inventory

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/shared/protocol"
)

// Describe words a node that was just read the way Snapshot and Watch do, with
// what is known around it. Its revision is that of the object, and at least that
// of what was told of it last, so that it never takes the plane's inventory back.
// pods is how many the caller has counted; less than 0: as many as are known.
func (i *Inventory) Describe(o *corev1.Node, pods int) protocol.Node {
	m := i.model
	n, _ := m.stripNode(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.nodes[n.uid]
	if s == nil {
		s = &nodeState{node: n}
	}
	seen := *s
	if n.version >= s.version {
		seen.node = n
	}
	seen.changed = max(s.changed, n.version*subs)
	out := m.reportNode(&seen)
	if pods >= 0 {
		out.Pods = pods
	}
	return out
}

// Settled brings what an operation observed at its end to revisions that the
// plane can compare with the inventory's: the objects that the executors read
// carry plain resourceVersions. What the inventory knows of an object and the
// executor does not tell is filled in.
func (i *Inventory) Settled(in *protocol.Inventory) {
	if in == nil {
		return
	}
	m := i.model
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range in.Nodes {
		n := &in.Nodes[k]
		n.Revision = m.scaled(n.Revision)
	}
	for k := range in.Devices {
		d := &in.Devices[k]
		d.Revision = m.scaled(d.Revision)
		if s := m.devices[d.UID]; s != nil {
			known := m.reportDevice(s)
			d.Aliases, d.NodeUID, d.NodeName = known.Aliases, known.NodeUID, known.NodeName
		}
	}
	for k := range in.Deployments {
		d := &in.Deployments[k]
		d.Revision = m.scaled(d.Revision)
	}
	for k := range in.Components {
		c := &in.Components[k]
		c.UID, c.Revision = c.Name, m.scaled(c.Revision)
		if known := m.comps[c.Name]; known != nil {
			c.Namespace = known.namespace
		}
	}
}

// scaled turns a plain resourceVersion into a revision that is newer than all that
// was told. What is a revision already is left as it is.
func (m *model) scaled(revision int64) int64 {
	if revision > 0 && revision <= m.clock/subs+subs {
		revision *= subs
	}
	m.clock = max(m.clock+1, revision) // what is seen from here on is newer
	return m.clock
}

// NodeName is the name of the node with the UID.
func (i *Inventory) NodeName(ctx context.Context, uid types.UID) (string, error) {
	if err := i.wait(ctx); err != nil {
		return "", fmt.Errorf("find node %s: %w", uid, err)
	}
	i.model.mu.Lock()
	defer i.model.mu.Unlock()
	s := i.model.nodes[string(uid)]
	if s == nil {
		return "", fmt.Errorf("find node %s: the cluster has no such node", uid)
	}
	return s.name, nil
}
