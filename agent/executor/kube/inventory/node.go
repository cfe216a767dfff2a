package inventory

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	gpus "github.com/opsplane/opsplane/agent/executor/kube/inventory/capacity"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Kinds of what is reported.
const (
	kindNode       = operation.KindNode
	kindDevice     = operation.KindDevice
	kindDeployment = operation.KindDeployment
	kindComponent  = operation.KindComponent
)

// node is what is kept of a node.
type node struct {
	head
	ready       bool
	unreachable bool // its kubelet does not report
	why         string
	readySince  time.Time
	created     time.Time
	schedulable bool
	cordon      *protocol.Cordon
	lift        *protocol.Cordon // the operation that opened it last, nil: none
	labels      map[string]string
	provider    string
	gpus        capacity
	offers      []gpus.Offer
	bad         []badCondition
}

// nodeState is a node with what is known around it.
type nodeState struct {
	*node
	claims   map[string]*gpu // the devices that its sources name, by UID
	owned    int             // devices that are on it
	blockers []protocol.Blocker
	short    shortage
	changed  int64
	judged   time.Time
	unjudged bool
}

func (m *model) stripNode(obj any) (*node, bool) {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return nil, false
	}
	n := &node{head: headOf(o), created: o.CreationTimestamp.Time, provider: cut(o.Spec.ProviderID, maxLabelValue), schedulable: !o.Spec.Unschedulable, gpus: capacityOf(o), offers: gpus.Offers(o), bad: badConditions(o.Status.Conditions)}
	if c := cluster.Readiness(o); c != nil {
		n.ready, n.unreachable = c.Status == corev1.ConditionTrue, c.Status == corev1.ConditionUnknown
		n.why, n.readySince = c.Reason, c.LastTransitionTime.Time
	}
	n.cordon, n.labels = m.cordonOf(o), nodeLabels(o)
	if m.opts.Lift != nil {
		n.lift = m.opts.Lift(o)
	}
	for _, k := range m.opts.Labels {
		if v, ok := o.Labels[k]; ok && len(n.labels) < labelsMost {
			n.labels[k] = cut(v, maxLabelValue)
		}
	}
	return n, true
}

// cordonOf says who closed the node: what Options.Cordon reads, and where nobody's
// books tell since when, since the unschedulable taint was added.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-unschedulable
func (m *model) cordonOf(o *corev1.Node) *protocol.Cordon {
	if !o.Spec.Unschedulable {
		return nil
	}
	c := m.opts.Cordon(o)
	if c == nil || !c.Since.IsZero() {
		return c
	}
	for _, t := range o.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil {
			c.Since = t.TimeAdded.UTC()
		}
	}
	return c
}

// badCondition is a condition of a node that says that something is wrong.
type badCondition struct {
	typ, reason, message string
	status               corev1.ConditionStatus
	since                time.Time
}

// pressure are the kubelet's own conditions, true when something is wrong.
var pressure = map[corev1.NodeConditionType]bool{
	corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: true, corev1.NodePIDPressure: true, corev1.NodeNetworkUnavailable: true,
}

// badConditions lists what the node's conditions complain of. The node problem
// detector and those who work like it set a condition true for a problem; names
// that end in Ready, Healthy, OK or Available say the opposite.
// https://kubernetes.io/docs/tasks/debug/debug-cluster/monitor-node-health/
func badConditions(in []corev1.NodeCondition) []badCondition {
	var out []badCondition
	for i := range in {
		c := &in[i]
		if c.Type == corev1.NodeReady {
			continue
		}
		wrong := corev1.ConditionTrue
		if good(string(c.Type)) && !pressure[c.Type] {
			wrong = corev1.ConditionFalse
		}
		if c.Status == wrong && len(out) < badMost {
			out = append(out, badCondition{typ: intern(string(c.Type)), status: c.Status, reason: intern(c.Reason), message: cut(c.Message, 256), since: c.LastTransitionTime.Time})
		}
	}
	slices.SortFunc(out, func(a, b badCondition) int { return strings.Compare(a.typ, b.typ) })
	return out
}

const badMost = 16

func good(typ string) bool {
	for _, end := range []string{"Ready", "Healthy", "OK", "Ok", "Available"} {
		if strings.HasSuffix(typ, end) {
			return true
		}
	}
	return false
}

// reportedLabels say where a node is and what it is. Everything else on it, such
// as the hundred labels of feature discovery, stays out.
var reportedLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, "topology.kubernetes.io/rack", "topology.kubernetes.io/block", "rack",
	corev1.LabelInstanceTypeStable, corev1.LabelArchStable, corev1.LabelHostname,
	"cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool", "karpenter.sh/nodepool", "karpenter.sh/capacity-type",
	"cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-host",
	"topology.k8s.aws/network-node-layer-1", "topology.k8s.aws/network-node-layer-2", "topology.k8s.aws/network-node-layer-3",
	"nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.family", "nvidia.com/gpu.clique",
	"nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major", "nvidia.com/mig.strategy", "nvidia.com/mig.config", "nvidia.com/gpu.deploy.driver",
	"amd.com/gpu.product-name", "amd.com/gpu.vram",
}

const (
	labelsMost    = 100
	maxLabelValue = 256
)

func nodeLabels(o *corev1.Node) map[string]string {
	out := map[string]string{}
	for _, k := range reportedLabels {
		if v, ok := o.Labels[k]; ok {
			out[k] = intern(v)
		}
	}
	for k := range o.Labels {
		if strings.HasPrefix(k, "node-role.kubernetes.io/") && len(out) < len(reportedLabels)+8 {
			out[k] = ""
		}
	}
	return out
}

// cut shortens a text to at most n bytes, at the edge of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return strings.Clone(s)
	}
	return strings.ToValidUTF8(s[:n], "")
}

func sameCordon(a, b *protocol.Cordon) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Owner == b.Owner && a.Operation == b.Operation && a.By == b.By && a.Reason == b.Reason && a.Since.Equal(b.Since)
}

func sameNode(a, b *node) bool {
	return a.ready == b.ready && a.unreachable == b.unreachable && a.schedulable == b.schedulable && sameCordon(a.cordon, b.cordon) &&
		maps.Equal(a.labels, b.labels) && a.provider == b.provider && a.gpus == b.gpus && slices.Equal(a.offers, b.offers) && slices.Equal(a.bad, b.bad)
}

// applyNode takes a node as it is now.
func (m *model) applyNode(was, is *node) {
	if is == nil {
		m.dropNode(was)
		return
	}
	s := m.nodes[is.uid]
	if s == nil {
		if old := m.nodeNames[is.name]; old != nil { // its deletion was not seen: another node has its name now
			m.dropNode(old.node)
		}
		s = &nodeState{node: is, unjudged: true}
		m.nodes[is.uid], m.nodeNames[is.name] = s, s
		s.changed = m.mark(kindNode, is.uid)
		m.tell("node.joined", kindNode, is.uid, is.name, time.Time{}, map[string]any{"ready": is.ready})
		m.refreshDevices(is.name)
		return
	}
	was = s.node
	s.node = is
	if sameNode(was, is) {
		return
	}
	m.touchNode(s)
	m.nodeEvents(was, is)
	m.refreshDevices(is.name)
}

func (m *model) touchNode(s *nodeState) {
	s.changed = m.mark(kindNode, s.uid)
	s.unjudged = true
}

func (m *model) dropNode(n *node) {
	s := m.nodes[n.uid]
	if s == nil {
		return
	}
	delete(m.nodes, n.uid)
	if m.nodeNames[n.name] == s {
		delete(m.nodeNames, n.name)
	}
	m.mark(kindNode, n.uid)
	m.tell("node.left", kindNode, n.uid, n.name, time.Time{}, nil)
	m.claim(s, nil)
}

func (m *model) nodeEvents(was, is *node) {
	if was.ready != is.ready {
		typ, detail := "node.ready", map[string]any(nil)
		if !is.ready {
			typ, detail = "node.not_ready", map[string]any{"unreachable": is.unreachable, "reason": is.why}
		}
		m.tell(typ, kindNode, is.uid, is.name, is.readySince, detail)
	}
	switch {
	case was.schedulable && !is.schedulable:
		m.tell("node.cordoned", kindNode, is.uid, is.name, time.Time{}, executor.Cordoned(is.cordon))
	case !was.schedulable && is.schedulable:
		by := is.lift
		if sameCordon(was.lift, is.lift) { // it is of an earlier time
			by = nil
		}
		m.tell("node.uncordoned", kindNode, is.uid, is.name, time.Time{}, executor.Uncordoned(by, was.cordon))
	}
}

// report adds what is known of the object; false: it is gone.
func (m *model) report(o object, to *protocol.Inventory) bool {
	switch o.kind {
	case kindNode:
		s := m.nodes[o.uid]
		if s == nil {
			return false
		}
		to.Nodes = append(to.Nodes, m.reportNode(s))
	case kindDevice:
		d := m.devices[o.uid]
		if d == nil {
			return false
		}
		to.Devices = append(to.Devices, m.reportDevice(d))
	case kindDeployment:
		w := m.byUID(o.uid)
		if w == nil {
			return false
		}
		to.Deployments = append(to.Deployments, m.reportDeployment(w))
	case kindComponent:
		c := m.comps[o.uid]
		if c == nil {
			return false
		}
		to.Components = append(to.Components, m.reportComponent(c))
	}
	return true
}

func (m *model) reportNode(s *nodeState) protocol.Node {
	ready := corev1.ConditionFalse
	switch {
	case s.ready:
		ready = corev1.ConditionTrue
	case s.unreachable:
		ready = corev1.ConditionUnknown
	}
	conditions := []protocol.Condition{{Type: string(corev1.NodeReady), Status: string(ready), Reason: s.why, Since: s.readySince.UTC()}}
	conditions = append(conditions, s.shortageCondition()...)
	for _, b := range s.bad {
		conditions = append(conditions, protocol.Condition{Type: b.typ, Status: string(b.status), Reason: b.reason, Message: b.message, Since: b.since.UTC()})
	}
	return protocol.Node{UID: s.uid, Name: s.name, Revision: m.revision(s.changed), Schedulable: s.schedulable, Ready: s.ready, Cordon: s.cordon,
		ProviderID: s.provider, Conditions: conditions, Labels: s.labels, GPUs: s.owned, Pods: len(m.pods[s.name]), Blockers: s.blockers}
}
