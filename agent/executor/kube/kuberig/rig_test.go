//go:build kubetest

package kuberig_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// evict asks for an eviction of exactly this pod.
func evict(ctx context.Context, c kubernetes.Interface, p *corev1.Pod) error {
	return c.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
}

// TestSharedPlane: what a test makes is its own, and behaves as its options say.
func TestSharedPlane(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	node, other, ns := r.Node("gpu"), r.Node("gpu", kuberig.GPUs(4)), r.Namespace()
	if n := other.Status.Allocatable[kuberig.GPU]; n.Value() != 4 {
		t.Errorf("the node has %s GPUs, want 4", n.String())
	}

	t.Run("pods run on the rig's nodes", func(t *testing.T) {
		r := r.For(t)
		r.Deployment(ns, "web", 3, kuberig.PreferNode(node.Name, other.Name), kuberig.WantsGPUs(1))
		for _, p := range r.Pods(ns, "web") {
			if p.Spec.NodeName != node.Name {
				t.Errorf("pod %s is on %s, want %s", p.Name, p.Spec.NodeName, node.Name)
			}
		}
	})
	t.Run("a budget blocks, and the eviction names its pod", func(t *testing.T) {
		r := r.For(t)
		user := r.User("agent")
		r.PDB(ns, "web-all", "web", kuberig.MinAvailable("3"))
		r.AwaitPDB(ns, "web-all", "counts 3", func(b *policyv1.PodDisruptionBudget) bool { return b.Status.CurrentHealthy == 3 })
		pod := &r.Pods(ns, "web")[0]
		if err := evict(t.Context(), r.Client(user), pod); !apierrors.IsForbidden(err) {
			t.Errorf("an eviction without rights: %v, want forbidden", err)
		}
		revoke := r.Grant(user, ns, kuberig.Rule("", "pods/eviction", []string{"create"}))
		if err := evict(t.Context(), r.Client(user), pod); !apierrors.IsTooManyRequests(err) {
			t.Errorf("an eviction against the budget: %v, want too many requests", err)
		}
		revoke()
		if err := evict(t.Context(), r.Client(user), pod); !apierrors.IsForbidden(err) {
			t.Errorf("an eviction after the rights were taken back: %v, want forbidden", err)
		}
		var codes []int
		for _, e := range r.Audit(user) {
			if e.Verb != "create" || e.Resource != "pods" || e.Subresource != "eviction" || e.Namespace != ns || e.Name != pod.Name || e.Code != 403 && e.PreconditionUID() != pod.UID ||
				!strings.HasPrefix(e.UserAgent, "kuberig/") || e.Received.IsZero() || e.Done.Before(e.Received) {
				t.Errorf("the audit log has %+v", e)
			}
			codes = append(codes, e.Code)
		}
		if got := fmt.Sprint(codes); got != "[403 429 403]" {
			t.Errorf("the evictions were answered %s, want [403 429 403]", got)
		}
	})
	t.Run("a pod that is stuck stays", func(t *testing.T) {
		r := r.For(t)
		r.Pod(ns, "stuck", kuberig.OnNode(node.Name), kuberig.Stuck())
		quick := r.Pod(ns, "quick", kuberig.OnNode(node.Name), kuberig.Shutdown(100*time.Millisecond))
		for _, name := range []string{"stuck", "quick"} {
			if err := r.Client(kuberig.Admin).CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		r.AwaitPodGone(ns, "quick", string(quick.UID))
		r.AwaitPod(ns, "stuck", "is being deleted", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	})
}

// TestComponents: halting, killing and starting parts of a control plane has the
// effect that tests of agents stand on.
func TestComponents(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Nodes: 1, Audit: true, NodeGrace: 4 * time.Second})
	ns := r.Namespace()
	client := r.Client(kuberig.Admin)
	get := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := client.CoreV1().Nodes().Get(ctx, "node-0", metav1.GetOptions{})
		return err
	}

	t.Run("an API server that is halted answers nothing, and goes on", func(t *testing.T) {
		r := r.For(t)
		r.Stop(kuberig.APIServer)
		if err := get(300 * time.Millisecond); err == nil || t.Context().Err() != nil {
			t.Errorf("a halted API server answered: %v", err)
		}
		r.Cont(kuberig.APIServer)
		if err := get(10 * time.Second); err != nil {
			t.Errorf("after it goes on: %v", err)
		}
	})
	t.Run("an API server that is killed refuses, and comes back at its address", func(t *testing.T) {
		r := r.For(t)
		r.Kill(kuberig.APIServer)
		if err := get(time.Second); err == nil {
			t.Error("a killed API server answered")
		}
		r.Restart(kuberig.APIServer)
		if err := get(5 * time.Second); err != nil {
			t.Errorf("after the restart: %v", err)
		}
	})
	t.Run("without its scheduler pods wait", func(t *testing.T) {
		r := r.For(t)
		r.Kill(kuberig.Scheduler)
		r.Pod(ns, "waits", kuberig.NoWait())
		r.Pod(ns, "bound", kuberig.OnNode("node-0")) // runs: kwok does its part
		if p := r.Pods(ns, "waits")[0]; p.Spec.NodeName != "" {
			t.Errorf("the pod was bound to %s without a scheduler", p.Spec.NodeName)
		}
		r.Restart(kuberig.Scheduler)
		r.AwaitPod(ns, "waits", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	})
	t.Run("a node without its kubelet is NotReady, and its pods stay Terminating", func(t *testing.T) {
		r := r.For(t)
		node := r.Node("dies")
		r.Pod(ns, "left", kuberig.OnNode(node.Name))
		r.KillKubelet(node.Name)
		r.AwaitNode(node.Name, "is NotReady", func(n *corev1.Node) bool { return !kuberig.Ready(n) })
		if err := client.CoreV1().Pods(ns).Delete(t.Context(), "left", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.ReviveKubelet(node.Name)
		r.AwaitNode(node.Name, "is Ready again", kuberig.Ready)
		r.AwaitPodGone(ns, "left", "")
	})
}
