//go:build kubetest

package kuberig

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// podsOf is the template of a workload's pods.
func (r *Rig) podsOf(app string, opts []PodOption) (t *template, selector *metav1.LabelSelector) {
	t = r.newTemplate(app, opts)
	if t.node != "" {
		t.Spec.NodeSelector[corev1.LabelHostname] = t.node
	}
	return t, &metav1.LabelSelector{MatchLabels: map[string]string{labelApp: app}}
}

// Deployment makes a Deployment whose pods have the label app=NAME, and returns
// once they are available (Running with Unready; at once with NoWait or
// NeverReady).
func (r *Rig) Deployment(namespace, name string, replicas int32, opts ...PodOption) *appsv1.Deployment {
	r.t.Helper()
	t, selector := r.podsOf(name, opts)
	d, err := r.admin().AppsV1().Deployments(namespace).Create(r.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: t.PodTemplateSpec},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make deployment %s: %v", name, err)
	}
	if t.nowait {
		return d
	}
	r.awaitRunning(namespace, name, int(replicas), t)
	return d
}

// StatefulSet makes a StatefulSet, as Deployment does.
func (r *Rig) StatefulSet(namespace, name string, replicas int32, opts ...PodOption) *appsv1.StatefulSet {
	r.t.Helper()
	t, selector := r.podsOf(name, opts)
	s, err := r.admin().AppsV1().StatefulSets(namespace).Create(r.t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas, ServiceName: name, Selector: selector, Template: t.PodTemplateSpec},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make statefulset %s: %v", name, err)
	}
	if !t.nowait {
		r.awaitRunning(namespace, name, int(replicas), t)
	}
	return s
}

// DaemonSet makes a DaemonSet that tolerates everything, with a pod on each of the
// rig's nodes.
func (r *Rig) DaemonSet(namespace, name string, opts ...PodOption) *appsv1.DaemonSet {
	r.t.Helper()
	t, selector := r.podsOf(name, append([]PodOption{Tolerates("", "")}, opts...))
	d, err := r.admin().AppsV1().DaemonSets(namespace).Create(r.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: t.PodTemplateSpec},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make daemonset %s: %v", name, err)
	}
	if t.nowait {
		return d
	}
	r.await("pods of daemonset "+name, func(ctx context.Context) (bool, error) {
		if d, err = r.admin().AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		return d.Status.ObservedGeneration == d.Generation && d.Status.DesiredNumberScheduled > 0 && d.Status.NumberAvailable == d.Status.DesiredNumberScheduled, nil
	})
	return d
}

// Job makes a Job of pods that run once each (see RunTime and Fails), and returns
// at once.
func (r *Rig) Job(namespace, name string, completions int32, opts ...PodOption) *batchv1.Job {
	r.t.Helper()
	t := r.newTemplate(name, opts)
	if t.node != "" {
		t.Spec.NodeSelector[corev1.LabelHostname] = t.node
	}
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	j, err := r.admin().BatchV1().Jobs(namespace).Create(r.t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       batchv1.JobSpec{Completions: &completions, Parallelism: &completions, Template: t.PodTemplateSpec},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make job %s: %v", name, err)
	}
	return j
}

// awaitRunning waits until as many pods of the app are Ready, or Running if they
// never are.
func (r *Rig) awaitRunning(namespace, app string, n int, t *template) {
	r.t.Helper()
	r.await(fmt.Sprintf("%d pods of %s", n, app), func(ctx context.Context) (bool, error) {
		l, err := r.admin().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labelApp + "=" + app})
		if err != nil {
			return false, err
		}
		up := 0
		for _, p := range l.Items {
			if p.Status.Phase == corev1.PodRunning && (t.Labels[labelReady] == "false" || podReady(&p)) {
				up++
			}
		}
		return up >= n, nil
	})
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Budget says what a PodDisruptionBudget allows.
type Budget func(*policyv1.PodDisruptionBudgetSpec)

// MinAvailable is how many pods must stay, such as "2" or "50%".
func MinAvailable(n string) Budget {
	return func(s *policyv1.PodDisruptionBudgetSpec) { v := intstr.Parse(n); s.MinAvailable = &v }
}

// MaxUnavailable is how many pods may be away, such as "1" or "10%".
func MaxUnavailable(n string) Budget {
	return func(s *policyv1.PodDisruptionBudgetSpec) { v := intstr.Parse(n); s.MaxUnavailable = &v }
}

// AlwaysAllow lets unhealthy pods go whatever the budget says.
func AlwaysAllow() Budget {
	return func(s *policyv1.PodDisruptionBudgetSpec) {
		p := policyv1.AlwaysAllow
		s.UnhealthyPodEvictionPolicy = &p
	}
}

// PDB makes a PodDisruptionBudget over the pods with the label app=APP, and
// returns once the disruption controller has counted them.
func (r *Rig) PDB(namespace, name, app string, rules ...Budget) *policyv1.PodDisruptionBudget {
	r.t.Helper()
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{labelApp: app}}
	for _, rule := range rules {
		rule(&b.Spec)
	}
	_, err := r.admin().PolicyV1().PodDisruptionBudgets(namespace).Create(r.t.Context(), b, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make disruption budget %s: %v", name, err)
	}
	return r.AwaitPDB(namespace, name, "is counted", func(b *policyv1.PodDisruptionBudget) bool { return b.Status.ObservedGeneration == b.Generation })
}

// AwaitPDB waits until the budget is as ok says, and returns it.
func (r *Rig) AwaitPDB(namespace, name, what string, ok func(*policyv1.PodDisruptionBudget) bool) (b *policyv1.PodDisruptionBudget) {
	r.t.Helper()
	r.await(fmt.Sprintf("disruption budget %s/%s %s", namespace, name, what), func(ctx context.Context) (_ bool, err error) {
		if b, err = r.admin().PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		return ok(b), nil
	})
	return b
}

// PriorityClass makes a priority class and returns its name, which nobody else of
// the test run has. It is deleted with the test.
func (r *Rig) PriorityClass(prefix string, value int32) string {
	r.t.Helper()
	name := r.Name(prefix)
	if _, err := r.admin().SchedulingV1().PriorityClasses().Create(r.t.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{}); err != nil {
		r.t.Fatalf("make priority class %s: %v", name, err)
	}
	r.afterwards(func(ctx context.Context) {
		_ = r.admin().SchedulingV1().PriorityClasses().Delete(ctx, name, metav1.DeleteOptions{})
	})
	return name
}
