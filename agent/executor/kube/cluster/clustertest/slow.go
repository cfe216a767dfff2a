package clustertest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// BeforeNodes is a client that calls before ahead of each get ("get"), patch ("patch")
// and rehearsal ("rehearse") of a node; its error is the answer. It may sleep, which a
// reactor of a fake client may not: that has the fake's lock meanwhile, and who waits for
// a lock stops the time of a bubble (testing/synctest).
func BeforeNodes(client kubernetes.Interface, before func(ctx context.Context, verb string) error) kubernetes.Interface {
	return nodesClient{client, before}
}

type nodesClient struct {
	kubernetes.Interface
	before func(ctx context.Context, verb string) error
}

func (c nodesClient) CoreV1() typedcorev1.CoreV1Interface {
	return nodesCore{c.Interface.CoreV1(), c.before}
}

type nodesCore struct {
	typedcorev1.CoreV1Interface
	before func(ctx context.Context, verb string) error
}

func (c nodesCore) Nodes() typedcorev1.NodeInterface {
	return nodes{c.CoreV1Interface.Nodes(), c.before}
}

type nodes struct {
	typedcorev1.NodeInterface
	before func(ctx context.Context, verb string) error
}

func (n nodes) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	if err := n.before(ctx, "get"); err != nil {
		return nil, err
	}
	return n.NodeInterface.Get(ctx, name, o)
}

func (n nodes) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Node, error) {
	verb := "patch"
	if len(o.DryRun) > 0 {
		verb = "rehearse"
	}
	if err := n.before(ctx, verb); err != nil {
		return nil, err
	}
	return n.NodeInterface.Patch(ctx, name, pt, data, o, subresources...)
}
