package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// PodsOn tells which pods of a node hold one of its devices, named in any of its
// spellings. A reason says why that cannot be told; the device is not drained
// then.
type PodsOn func(ctx context.Context, node types.UID, device string) (pods []types.UID, reason string, err error)

// Options are what the types need beside the cluster.
type Options struct {
	// PodsOn narrows a drain to a device; nil: no drain can be.
	PodsOn PodsOn
	// Describe words a node for the plane's inventory, the way the inventory
	// does; nil: only what is known from the node itself.
	Describe func(n *corev1.Node, pods int) protocol.Node
}

// nodes reads and patches nodes.
type nodes struct {
	c *cluster.Cluster
	o Options

	denials cluster.Denials
}

// lenient wraps a step so that a missing right ends it only once it is believed.
func (e *nodes) lenient(f func(ctx context.Context, t *executor.Task) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return e.denials.Lenient(e.c.Now, func(ctx context.Context, t *executor.Task) executor.Outcome {
		return f(cluster.Operation(ctx, t.Assignment), t)
	})
}

// nodeName is the name of the node that the assignment is about.
func nodeName(a *protocol.Assignment) string {
	if a.NodeName != "" {
		return a.NodeName
	}
	return strings.TrimPrefix(a.TargetName, "node:")
}

// read reads the target node, or why it cannot be acted on: a node that was
// re-created under the old name is another node.
func (e *nodes) read(ctx context.Context, a *protocol.Assignment) (n *corev1.Node, code, detail string, err error) {
	name := nodeName(a)
	if name == "" {
		return nil, "node_gone", "the operation names no node", nil
	}
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	n, err = e.c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		code, detail = absent(a)
		return nil, code, detail, nil
	}
	if err != nil {
		return nil, "", "", fmt.Errorf("read node %s: %w", name, err)
	}
	if code, detail = another(a, n); code != "" {
		return nil, code, detail, nil
	}
	return honest(n), "", "", nil
}

func absent(a *protocol.Assignment) (code, detail string) {
	if a.TargetUID == "" {
		return "node_gone", fmt.Sprintf("there is no node %s", nodeName(a))
	}
	return "node_gone", fmt.Sprintf("there is no node %s (%s)", nodeName(a), a.TargetUID)
}

// another tells that the node is not the one that the operation was asked for.
func another(a *protocol.Assignment, n *corev1.Node) (code, detail string) {
	if a.TargetUID == "" || string(n.UID) == a.TargetUID {
		return "", ""
	}
	return "node_replaced", fmt.Sprintf("node %s is another one now (%s, not %s)", n.Name, n.UID, a.TargetUID)
}

func broken(err error) executor.Outcome { return cluster.Patient(cluster.Broken(err), apiPause) }

// reference names the node in an event.
func reference(n *corev1.Node) corev1.ObjectReference {
	// Events of a node carry its name as UID, as the kubelet's do: kubectl describe
	// looks them up by it.
	return corev1.ObjectReference{Kind: "Node", Name: n.Name, UID: types.UID(n.Name), APIVersion: "v1"}
}

// sayForced puts an event on a pod that is deleted past a rule: whoever owns it sees
// no eviction refused, and nothing else there would say why it went.
func (d *drive) sayForced(p *planned) {
	ns, name, _ := strings.Cut(p.name, "/")
	on := corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: name, UID: p.uid, APIVersion: "v1"}
	go d.c.Event(context.Background(), d.t, on, corev1.EventTypeWarning, "Forced", "Opsplane "+p.forced)
}

// say puts an event on the node, beside the step's work.
func (e *nodes) say(ctx context.Context, t *executor.Task, n *corev1.Node, reason, message string) {
	go e.c.Event(context.WithoutCancel(ctx), t, reference(n), corev1.EventTypeNormal, reason, message)
}
