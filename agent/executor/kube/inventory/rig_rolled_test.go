//go:build kubetest

package inventory

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/protocol"
)

// A StatefulSet is told rolled when no partition keeps pods of before any more.
func TestRigPartitionIsNotRolled(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	f := follow(t, r, kuberig.Admin, ns)
	o := r.Node("inv")
	r.StatefulSet(ns, "db", 2, kuberig.OnNode(o.Name))
	f.event("deployment.available", ns+"/db", 1)
	change := func(text string) {
		t.Helper()
		if _, err := r.Client(kuberig.Admin).AppsV1().StatefulSets(ns).Patch(t.Context(), "db", types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}},"template":{"metadata":{"annotations":{"again":"1"}}}}}`)
	f.await("one of two updated", func(all []executor.Delta) bool {
		return told(all, ns+"/db", func(d protocol.Deployment) bool { return d.Updated == 1 && d.Ready == 2 })
	})
	if n, e := of(f.all(), "deployment.rolled", ns+"/db"); n > 0 {
		t.Errorf("half of it is of before, and it was told %+v", e)
	}
	change(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	if e := f.event("deployment.rolled", ns+"/db", 1); !strings.Contains(string(e.Detail), `"updated":2`) {
		t.Errorf("told %s", e.Detail)
	}
}

func (f *follower) all() []executor.Delta {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told
}

func told(all []executor.Delta, name string, ok func(protocol.Deployment) bool) bool {
	for _, d := range all {
		for _, w := range d.Objects.Deployments {
			if w.Name == name && ok(w) {
				return true
			}
		}
	}
	return false
}

// What befalls the pods of a Deployment is told, also where its name is too long for
// that of its ReplicaSets.
func TestRigTroublesOfALongName(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	f := follow(t, r, kuberig.Admin, ns)
	o := r.Node("inv")
	name, c := "model.v1-"+strings.Repeat("x", 238), r.Client(kuberig.Admin)
	d := r.Deployment(ns, "web", 0, kuberig.OnNode(o.Name))
	one := int32(1)
	long := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: *d.Spec.DeepCopy()}
	long.Spec.Replicas, long.Spec.Selector.MatchLabels["app"], long.Spec.Template.Labels["app"] = &one, "long", "long"
	if _, err := c.AppsV1().Deployments(ns).Create(t.Context(), long, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.event("deployment.available", ns+"/"+name, 1)
	r.Await("the container is killed", func(ctx context.Context) (bool, error) {
		p := r.Pods(ns, "long")[0]
		if len(p.Status.ContainerStatuses) == 0 {
			return false, nil
		}
		p.Status.ContainerStatuses[0].RestartCount = 1
		p.Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(time.Now().Add(time.Second))}}
		_, err := c.CoreV1().Pods(ns).UpdateStatus(ctx, &p, metav1.UpdateOptions{})
		return err == nil, nil // it may change meanwhile
	})
	f.event("deployment.oom", ns+"/"+name, 1)
}
