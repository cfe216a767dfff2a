//go:build kubetest

package kuberig

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Animal is a node with pods on it that a drain is not simply done with, and what
// an eviction of each of its pods is answered: Kubernetes' own words, which
// TestZoo holds them to. Many are let go that a drain thinks twice about.
type Animal struct {
	Name  string
	About string
	// Make puts it on a node. What is evicted may go to the spare.
	Make func(r *Rig, namespace, node, spare string)
	// Pods is how many are on the node, and Evicts the HTTP status of an eviction of
	// one of them, asked as a dry run.
	Pods   int
	Evicts int
}

// HTTP statuses of an eviction.
const (
	evicted    = 201
	overBudget = 429
	twoBudgets = 500
)

// Zoo are the animals, each with a node of its own when Put puts it there.
var Zoo = []Animal{
	{Name: "full", About: "8 pods of a deployment without a budget", Pods: 8, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "full", 8, PreferNode(node, spare), WantsGPUs(1))
	}},
	{Name: "one-at-a-time", About: "8 pods of which one may be away", Pods: 8, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "one-at-a-time", 8, PreferNode(node, spare), WantsGPUs(1))
		r.budget(ns, "one-at-a-time", 8, MaxUnavailable("1"))
	}},
	{Name: "blocked", About: "a budget that lets none go", Pods: 2, Evicts: overBudget, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "blocked", 2, PreferNode(node, spare))
		r.budget(ns, "blocked", 2, MinAvailable("2"))
	}},
	{Name: "two-budgets", About: "two budgets over the same pods: the API server refuses to choose", Pods: 3, Evicts: twoBudgets, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "two-budgets", 3, PreferNode(node, spare))
		r.budget(ns, "two-budgets", 3, MaxUnavailable("2"))
		r.PDB(ns, "two-budgets-2", "two-budgets", MaxUnavailable("2"))
	}},
	{Name: "unready", About: "a pod that is never Ready, under a budget that wants one healthy (IfHealthyBudget)", Pods: 1, Evicts: overBudget, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "unready", 1, PreferNode(node, spare), Unready())
		r.budget(ns, "unready", 0, MinAvailable("1"))
	}},
	{Name: "unready-allowed", About: "the same with AlwaysAllow", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "unready-allowed", 1, PreferNode(node, spare), Unready())
		r.budget(ns, "unready-allowed", 0, MinAvailable("1"), AlwaysAllow())
	}},
	{Name: "bare", About: "a pod that nothing makes again", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) { r.Pod(ns, "bare", OnNode(node)) }},
	{Name: "finalizer", About: "a pod that a finalizer holds", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) {
		r.Pod(ns, "finalizer", OnNode(node), Finalizer("rig.opsplane.io/hold"))
	}},
	{Name: "local-data", About: "a pod with an emptyDir", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "local-data", 1, PreferNode(node, spare), EmptyDir())
	}},
	{Name: "slow", About: "a pod that ignores SIGTERM for its 300 s of grace", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "slow", 1, PreferNode(node, spare), IgnoreSigterm(), Grace(300))
	}},
	{Name: "stuck", About: "a pod whose deletion never ends", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.Deployment(ns, "stuck", 1, PreferNode(node, spare), Stuck())
	}},
	{Name: "stateful", About: "pods whose replacements have their names", Pods: 2, Evicts: evicted, Make: func(r *Rig, ns, node, spare string) {
		r.StatefulSet(ns, "stateful", 2, PreferNode(node, spare))
	}},
	{Name: "daemon", About: "a pod of a DaemonSet, which would be there again at once", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) {
		r.DaemonSet(ns, "daemon", OnNode(node))
	}},
	{Name: "job", About: "a running pod of a Job", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) {
		r.Job(ns, "job", 1, OnNode(node), RunTime(time.Hour))
		r.awaitPhase(ns, "job", 1, corev1.PodRunning)
	}},
	{Name: "job-done", About: "pods of a Job that have succeeded", Pods: 3, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) {
		r.Job(ns, "job-done", 3, OnNode(node), RunTime(50*time.Millisecond))
		r.awaitPhase(ns, "job-done", 3, corev1.PodSucceeded)
	}},
	{Name: "mirror", About: "a static pod's picture, which no deletion ends", Pods: 1, Evicts: evicted, Make: func(r *Rig, ns, node, _ string) {
		r.Pod(ns, "mirror", OnNode(node), Mirror())
	}},
}

// Put makes a node with the animal on it and returns the node's name. It lives in
// the namespace; what is evicted may go to a spare node.
func (r *Rig) Put(namespace string, a Animal) (node string) {
	r.t.Helper()
	node = r.Node("zoo-" + a.Name).Name
	a.Make(r, namespace, node, r.Node("spare-"+a.Name).Name)
	return node
}

// budget makes a budget and waits until it has counted the healthy pods.
func (r *Rig) budget(ns, app string, healthy int32, rules ...Budget) {
	r.t.Helper()
	r.PDB(ns, app, app, rules...)
	r.AwaitPDB(ns, app, fmt.Sprintf("counts %d healthy pods", healthy), func(b *policyv1.PodDisruptionBudget) bool {
		return b.Status.CurrentHealthy == healthy && b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0
	})
}

// awaitPhase waits until as many pods of the app are in the phase.
func (r *Rig) awaitPhase(ns, app string, n int, phase corev1.PodPhase) {
	r.t.Helper()
	r.AwaitPods(ns, app, fmt.Sprintf("%d are %s", n, phase), func(pods []corev1.Pod) bool {
		in := 0
		for _, p := range pods {
			if p.Status.Phase == phase {
				in++
			}
		}
		return in >= n
	})
}

// DryEvict asks for an eviction of the pod as a dry run, confined to this very pod:
// the API server answers as if it were in earnest.
func DryEvict(p *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}, Preconditions: &metav1.Preconditions{UID: &p.UID}},
	}
}
