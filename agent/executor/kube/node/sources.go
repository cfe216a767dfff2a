package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// linger is how long the feeds that all drains share go on after the last of them:
// drains come in waves. Those of a namespace's endpoints end sooner.
const (
	linger       = 2 * time.Minute
	lingerSlices = 10 * time.Second
)

// podsOf reads the pods that are bound to a node. The API server keeps an index of
// them, so neither list nor watch costs it a look at other pods.
func podsOf(c *cluster.Cluster, node string) follow.Source {
	return follow.Of("the pods of node "+node, c.Read, c.Client.CoreV1().Pods(""),
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
}

func takePod(o runtime.Object) (string, *corev1.Pod) {
	p := o.(*corev1.Pod)
	keepBooks(p)
	return "", p
}

// nodeNamed reads one node.
func nodeNamed(c *cluster.Cluster, name string) follow.Source {
	return follow.Of("node "+name, c.Read, c.Client.CoreV1().Nodes(),
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
}

func takeNode(o runtime.Object) (string, *corev1.Node) { return "", o.(*corev1.Node) }

// budgetsOf reads the cluster's disruption budgets.
func budgetsOf(c *cluster.Cluster) *follow.Shared[*budget] {
	return &follow.Shared[*budget]{Linger: linger, Open: func() *follow.Feed[*budget] {
		return follow.New(follow.Of("the disruption budgets", c.Read, c.Client.PolicyV1().PodDisruptionBudgets(""), metav1.ListOptions{}), takeBudget)
	}}
}

func takeBudget(o runtime.Object) (string, *budget) {
	p := o.(*policyv1.PodDisruptionBudget)
	return p.Namespace, newBudget(p)
}

// slicesOf reads the EndpointSlices of a namespace.
func slicesOf(c *cluster.Cluster, namespace string) *follow.Shared[*discoveryv1.EndpointSlice] {
	return &follow.Shared[*discoveryv1.EndpointSlice]{Linger: lingerSlices, Open: func() *follow.Feed[*discoveryv1.EndpointSlice] {
		return follow.New(follow.Of("the endpoint slices of namespace "+namespace, c.Read, c.Client.DiscoveryV1().EndpointSlices(namespace), metav1.ListOptions{}), takeSlice)
	}}
}

func takeSlice(o runtime.Object) (string, *discoveryv1.EndpointSlice) {
	s := o.(*discoveryv1.EndpointSlice)
	s.ManagedFields = nil
	return "", s
}

// attachmentSource reads the cluster's volume attachments: the API server cannot
// select them by node.
func attachmentSource(c *cluster.Cluster) follow.Source {
	return follow.Of("the volume attachments", c.Read, c.Client.StorageV1().VolumeAttachments(), metav1.ListOptions{})
}

func attachmentsOf(c *cluster.Cluster) *follow.Shared[*storagev1.VolumeAttachment] {
	return &follow.Shared[*storagev1.VolumeAttachment]{Linger: linger, Open: func() *follow.Feed[*storagev1.VolumeAttachment] {
		return follow.New(attachmentSource(c), takeAttachment)
	}}
}

func takeAttachment(o runtime.Object) (string, *storagev1.VolumeAttachment) {
	a := o.(*storagev1.VolumeAttachment)
	a.ManagedFields = nil
	return a.Spec.NodeName, a
}
