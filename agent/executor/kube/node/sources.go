package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// objects makes a list's items runtime objects.
func objects[T any, P interface {
	*T
	runtime.Object
}](items []T) []runtime.Object {
	list := make([]runtime.Object, len(items))
	for i := range items {
		list[i] = P(&items[i])
	}
	return list
}

// podsOf reads the pods that are bound to a node. The API server keeps an index of
// them, so neither list nor watch costs it a look at other pods.
func podsOf(c *cluster.Cluster, node string) source {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return source{
		what: "the pods of node " + node, read: c.Read,
		list: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			o.FieldSelector = selector
			l, err := c.Client.CoreV1().Pods("").List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return objects(l.Items), l.ResourceVersion, nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return c.Client.CoreV1().Pods("").Watch(ctx, o)
		},
	}
}

func takePod(o runtime.Object) (string, *corev1.Pod) {
	p := o.(*corev1.Pod)
	p.ManagedFields = nil // half of a pod's size, and nobody asks
	return "", p
}

// nodeNamed reads one node.
func nodeNamed(c *cluster.Cluster, name string) source {
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	return source{
		what: "node " + name, read: c.Read,
		list: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			o.FieldSelector = selector
			l, err := c.Client.CoreV1().Nodes().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return objects(l.Items), l.ResourceVersion, nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return c.Client.CoreV1().Nodes().Watch(ctx, o)
		},
	}
}

func takeNode(o runtime.Object) (string, *corev1.Node) { return "", o.(*corev1.Node) }

// budgetsOf reads the cluster's disruption budgets.
func budgetsOf(c *cluster.Cluster) source {
	return source{
		what: "the disruption budgets", read: c.Read,
		list: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			l, err := c.Client.PolicyV1().PodDisruptionBudgets("").List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return objects(l.Items), l.ResourceVersion, nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Client.PolicyV1().PodDisruptionBudgets("").Watch(ctx, o)
		},
	}
}

func takeBudget(o runtime.Object) (string, *budget) {
	p := o.(*policyv1.PodDisruptionBudget)
	return p.Namespace, newBudget(p)
}

// slicesOf reads the EndpointSlices of a namespace.
func slicesOf(c *cluster.Cluster, namespace string) source {
	return source{
		what: "the endpoint slices of namespace " + namespace, read: c.Read,
		list: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			l, err := c.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return objects(l.Items), l.ResourceVersion, nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Client.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, o)
		},
	}
}

func takeSlice(o runtime.Object) (string, *discoveryv1.EndpointSlice) {
	s := o.(*discoveryv1.EndpointSlice)
	s.ManagedFields = nil
	return "", s
}

// attachmentsOf reads the cluster's volume attachments: the API server cannot
// select them by node.
func attachmentsOf(c *cluster.Cluster) source {
	return source{
		what: "the volume attachments", read: c.Read,
		list: func(ctx context.Context, o metav1.ListOptions) ([]runtime.Object, string, error) {
			l, err := c.Client.StorageV1().VolumeAttachments().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			return objects(l.Items), l.ResourceVersion, nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Client.StorageV1().VolumeAttachments().Watch(ctx, o)
		},
	}
}

func takeAttachment(o runtime.Object) (string, *storagev1.VolumeAttachment) {
	a := o.(*storagev1.VolumeAttachment)
	a.ManagedFields = nil
	return a.Spec.NodeName, a
}
