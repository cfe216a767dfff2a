//go:build kubetest

package kuberig

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What tells kwok how a pod behaves; infra/kubetest/plane/stages.yaml heeds them.
const (
	labelReady         = "rig.opsplane.io/ready"
	labelIgnoreSigterm = "rig.opsplane.io/ignore-sigterm"
	labelOutcome       = "rig.opsplane.io/outcome"
	labelStuck         = "rig.opsplane.io/stuck"
	annotationReady    = "rig.opsplane.io/ready-delay"
	annotationShutdown = "rig.opsplane.io/shutdown"
	annotationRunTime  = "rig.opsplane.io/run-time"
	labelApp           = "app"
)

// PodOption says what a pod is like, or the pods of a workload.
type PodOption func(*template)

// template is a pod in the making.
type template struct {
	corev1.PodTemplateSpec
	node   string // where a bare pod is put, past the scheduler
	nowait bool
}

// OnNode puts a pod on a node: a bare pod past the scheduler, as static pods and
// DaemonSets of old did, those of a workload by a selector.
func OnNode(name string) PodOption {
	return func(t *template) { t.node = name }
}

// PreferNode puts the pods of a workload on the first node as long as there is
// room, and else on the others, which replacements go to when it is cordoned.
func PreferNode(name string, others ...string) PodOption {
	return func(t *template) {
		in := func(names ...string) []corev1.NodeSelectorRequirement {
			return []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}
		}
		t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: in(append([]string{name}, others...)...)}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: in(name)}}},
		}}
	}
}

// Label puts a label on a pod.
func Label(key, value string) PodOption { return func(t *template) { t.Labels[key] = value } }

// Annotation puts an annotation on a pod.
func Annotation(key, value string) PodOption {
	return func(t *template) { t.Annotations[key] = value }
}

// ReadyDelay is the time from bound to Ready, 300 ms unless said.
func ReadyDelay(d time.Duration) PodOption { return Annotation(annotationReady, d.String()) }

// Shutdown is the time from deleted to gone, 300 ms unless said.
func Shutdown(d time.Duration) PodOption { return Annotation(annotationShutdown, d.String()) }

// IgnoreSigterm makes a pod go only when its grace period ends.
func IgnoreSigterm() PodOption { return Label(labelIgnoreSigterm, "true") }

// Stuck makes a pod whose deletion never ends.
func Stuck() PodOption { return Label(labelStuck, "true") }

// NeverReady keeps a pod Pending: a rollout with it is stuck.
func NeverReady() PodOption { return Label(labelReady, "never") }

// Unready makes a pod that is Running and never Ready: a PDB sees it unhealthy.
func Unready() PodOption { return Label(labelReady, "false") }

// Fails makes the pod of a Job end Failed.
func Fails() PodOption { return Label(labelOutcome, "fail") }

// RunTime is how long the pod of a Job runs, 500 ms unless said.
func RunTime(d time.Duration) PodOption { return Annotation(annotationRunTime, d.String()) }

// Grace is the pod's termination grace period, in seconds; 30 unless said.
func Grace(seconds int64) PodOption {
	return func(t *template) { t.Spec.TerminationGracePeriodSeconds = &seconds }
}

// Finalizer holds a pod after its deletion until somebody removes it.
func Finalizer(name string) PodOption {
	return func(t *template) { t.Finalizers = append(t.Finalizers, name) }
}

// EmptyDir gives a pod local data.
func EmptyDir() PodOption {
	return func(t *template) {
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		t.Spec.Containers[0].VolumeMounts = append(t.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "scratch", MountPath: "/scratch"})
	}
}

// WantsGPUs makes a pod ask for n GPUs.
func WantsGPUs(n int) PodOption {
	return func(t *template) {
		q := *resource.NewQuantity(int64(n), resource.DecimalSI)
		t.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{GPU: q}, Limits: corev1.ResourceList{GPU: q}}
	}
}

// Priority names the pod's priority class: see PriorityClass.
func Priority(class string) PodOption {
	return func(t *template) { t.Spec.PriorityClassName = class }
}

// Tolerates makes a pod tolerate a taint, with an empty key all of them.
func Tolerates(key string, effect corev1.TaintEffect) PodOption {
	return func(t *template) {
		t.Spec.Tolerations = append(t.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
}

// Mirror makes a pod look like the API's picture of a static pod.
func Mirror() PodOption { return Annotation(corev1.MirrorPodAnnotationKey, "mirror") }

// Spec changes anything else of a pod.
func Spec(change func(meta *metav1.ObjectMeta, spec *corev1.PodSpec)) PodOption {
	return func(t *template) { change(&t.ObjectMeta, &t.Spec) }
}

// NoWait returns what was made without waiting for its pods.
func NoWait() PodOption { return func(t *template) { t.nowait = true } }

// newTemplate is a pod of one container on the rig's own nodes.
func (r *Rig) newTemplate(app string, opts []PodOption) *template {
	t := &template{}
	t.Labels, t.Annotations = map[string]string{labelApp: app}, map[string]string{}
	t.Spec.NodeSelector = map[string]string{LabelRig: r.id}
	t.Spec.Containers = []corev1.Container{{Name: "main", Image: "sim/main:1"}}
	for _, o := range opts {
		o(t)
	}
	if t.Labels[labelReady] == "never" {
		t.nowait = true
	}
	return t
}

// Pod makes a pod that nothing manages, and returns it once it is Running (or at
// once with NoWait or NeverReady).
func (r *Rig) Pod(namespace, name string, opts ...PodOption) *corev1.Pod {
	r.t.Helper()
	t := r.newTemplate(name, opts)
	pod := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	pod.Name, pod.Namespace, pod.Spec.NodeName = name, namespace, t.node
	if t.node != "" {
		pod.Spec.NodeSelector = nil
	}
	made, err := r.admin().CoreV1().Pods(namespace).Create(r.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatalf("make pod %s: %v", name, err)
	}
	if len(t.Finalizers) > 0 {
		r.afterwards(func(ctx context.Context) { r.release(ctx, namespace, name) })
	}
	if t.nowait {
		return made
	}
	return r.AwaitPod(namespace, name, "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

// release removes a pod's finalizers.
func (r *Rig) release(ctx context.Context, namespace, name string) {
	p, err := r.admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return // gone
	}
	p.Finalizers = nil
	_, _ = r.admin().CoreV1().Pods(namespace).Update(ctx, p, metav1.UpdateOptions{})
}

// Release removes a pod's finalizers: whoever set them has let it go.
func (r *Rig) Release(namespace, name string) {
	r.t.Helper()
	r.await("pod "+name+" without finalizers", func(ctx context.Context) (bool, error) {
		p, err := r.admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), absent(err)
		}
		p.Finalizers = nil
		_, err = r.admin().CoreV1().Pods(namespace).Update(ctx, p, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// AwaitPod waits until the pod is as ok says, and returns it.
func (r *Rig) AwaitPod(namespace, name, what string, ok func(*corev1.Pod) bool) (pod *corev1.Pod) {
	r.t.Helper()
	r.await(fmt.Sprintf("pod %s/%s %s", namespace, name, what), func(ctx context.Context) (_ bool, err error) {
		if pod, err = r.admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		return ok(pod), nil
	})
	return pod
}

// AwaitPodGone waits until the pod, or one of the same name and another UID, is no
// longer there. uid may be empty.
func (r *Rig) AwaitPodGone(namespace, name string, uid string) {
	r.t.Helper()
	r.await(fmt.Sprintf("pod %s/%s is gone", namespace, name), func(ctx context.Context) (bool, error) {
		p, err := r.admin().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), absent(err)
		}
		return uid != "" && string(p.UID) != uid, nil
	})
}

// PodsOn are the pods on a node, of all namespaces.
func (r *Rig) PodsOn(node string) []corev1.Pod {
	r.t.Helper()
	l, err := r.admin().CoreV1().Pods("").List(r.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		r.t.Fatalf("list pods on %s: %v", node, err)
	}
	return l.Items
}

// Pods are the pods of a namespace with a label app=APP, or all with an empty app.
func (r *Rig) Pods(namespace, app string) []corev1.Pod {
	r.t.Helper()
	var o metav1.ListOptions
	if app != "" {
		o.LabelSelector = labelApp + "=" + app
	}
	l, err := r.admin().CoreV1().Pods(namespace).List(r.t.Context(), o)
	if err != nil {
		r.t.Fatalf("list pods of %s: %v", namespace, err)
	}
	return l.Items
}

// AwaitPods waits until the pods of the app are as ok says.
func (r *Rig) AwaitPods(namespace, app, what string, ok func([]corev1.Pod) bool) {
	r.t.Helper()
	r.await(fmt.Sprintf("pods of %s: %s", app, what), func(ctx context.Context) (bool, error) {
		l, err := r.admin().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labelApp + "=" + app})
		if err != nil {
			return false, err
		}
		return ok(l.Items), nil
	})
}
