//go:build kubetest

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

type (
	pod          = corev1.Pod
	podSpec      = corev1.PodSpec
	budgetObject = policyv1.PodDisruptionBudget
)

// TestCameAfter: a pod that tolerates the cordon is evicted, its replacement on the
// same node is left alone, and the result says so.
func TestCameAfter(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("tolerant"), r.Namespace()
	r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name), kuberig.Tolerates(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), kuberig.Shutdown(time.Second))
	a := newAgent(t, r, nil)
	if got := codes(preview(t, a, "node.drain", n, `{}`)); !slices.Equal(got, []string{"tolerates_cordon"}) {
		t.Errorf("the dry run shows %q", got)
	}
	j := newJob(r, "node.drain", n, `{}`)
	a.mustRun(j)
	r.Await("the replacements are there", func(context.Context) (bool, error) { return len(r.PodsOn(n.Name)) == 2, nil })
	<-time.After(observedFor) // what confirm read is old now
	end, d := a.observe(j)
	if d.Counts.Planned != 2 || d.Counts.Gone != 2 || d.Counts.CameAfter != 2 || !strings.Contains(strings.Join(end.NotVerified, "\n"), "2 pods that tolerate the cordon came after") {
		t.Errorf("counts %+v, not verified %q", d.Counts, end.NotVerified)
	}
	if o := a.execute(t.Context(), j.generation(2), "confirm"); o.Class != operation.OutcomeDone {
		t.Errorf("a successor's confirm: %+v", o)
	}
}

// TestBoundLate: a pod that does not tolerate the cordon and is bound after the plan
// (the scheduler was faster) joins it.
func TestBoundLate(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("late"), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{"force":true}`)
	for _, step := range []string{"preflight", "cordon"} {
		if o := a.execute(t.Context(), j, step); o.Class != operation.OutcomeDone {
			t.Fatalf("%s: %+v", step, o)
		}
	}
	r.Pod(ns, "late", kuberig.OnNode(n.Name))
	a.mustRun(j)
	if _, d := a.observe(j); d.Counts.Planned != 2 || d.Counts.Gone != 2 {
		t.Errorf("counts %+v", d.Counts)
	}
}

// TestStillServing: a stopping pod that is an endpoint is named as such.
func TestStillServing(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("serving"), r.Namespace()
	_, err := r.Client(kuberig.Admin).CoreV1().Services(ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name), kuberig.Shutdown(4*time.Second))
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{}`)
	a.mustRun(j)
	if said := strings.Join(j.progress, "\n"); !strings.Contains(said, "it still serves requests of service front") {
		t.Errorf("progress %s", said)
	}
	end, d := a.observe(j)
	if len(d.Pods) != 1 || d.Pods[0].Served == nil || d.Pods[0].Dangling != "" {
		t.Errorf("details %s", end.Details)
	}
}

// claimed gives a pod a bound volume, made by hand.
func claimed(t *testing.T, r *kuberig.Rig, ns string) kuberig.PodOption {
	t.Helper()
	volume(t, r, ns, "kept")
	return kuberig.Spec(func(_ *metav1.ObjectMeta, spec *corev1.PodSpec) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "kept"}}})
	})
}

func volume(t *testing.T, r *kuberig.Rig, ns, name string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).CoreV1()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	class := ""
	_, err := admin.PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.PersistentVolumes().Delete(context.Background(), ns+"-"+name, metav1.DeleteOptions{})
	})
	_, err = admin.PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeName: ns + "-" + name, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Await("the claim is bound", func(ctx context.Context) (bool, error) {
		c, err := admin.PersistentVolumeClaims(ns).Get(ctx, name, metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	})
}

// TestVolumeDetach: the drain waits until the node's volumes are detached, those of
// pods that stay on it apart.
func TestVolumeDetach(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("volumes"), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	r.DaemonSet(ns, "exporter", claimed(t, r, ns))
	admin := r.Client(kuberig.Admin).StorageV1().VolumeAttachments()
	attach(t, r, n.Name, ns+"-kept")
	attach(t, r, n.Name, ns+"-moving")
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{"await_volume_detach":true}`)
	result := make(chan error, 1)
	go func() {
		step, o := a.run(context.Background(), j)
		if step != "" {
			result <- fmt.Errorf("at %s with %+v", step, o)
		}
		result <- nil
	}()
	j.await(t, "the volume is named", func() bool { return j.blocked("volume_attached") })
	j.mu.Lock()
	last := j.blockers[len(j.blockers)-1]
	j.mu.Unlock()
	if len(last) != 1 || last[0].Resource != "volume/"+ns+"-moving" || last[0].Rule != "attacher/csi.example.com" {
		t.Errorf("blockers %+v", last)
	}
	release(admin.Patch, ns+"-moving")
	if err := admin.Delete(t.Context(), ns+"-moving", metav1.DeleteOptions{}); err != nil && !strings.Contains(err.Error(), "not found") {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

// attach attaches a volume to a node, with a finalizer as the external attacher's:
// it stays until that is released.
func attach(t *testing.T, r *kuberig.Rig, node, pv string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).StorageV1().VolumeAttachments()
	_, err := admin.Create(t.Context(), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: pv, Finalizers: []string{"example.com/hold"}},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		release(admin.Patch, pv)
		_ = admin.Delete(context.Background(), pv, metav1.DeleteOptions{})
	})
}

func release(patch func(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*storagev1.VolumeAttachment, error), name string) {
	_, _ = patch(context.Background(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
}

// TestDevice: a drain of one device evicts the pods on it and cordons the node.
func TestDevice(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("device"), r.Namespace()
	r.Deployment(ns, "web", 3, kuberig.OnNode(n.Name), kuberig.EmptyDir())
	pods := r.Pods(ns, "web")
	on := func(_ context.Context, node types.UID, device string) ([]types.UID, string, error) {
		switch {
		case node != n.UID:
			return nil, "another node", nil
		case device == "GPU-1":
			return []types.UID{pods[0].UID}, "", nil
		}
		return nil, "its host's report is an hour old", nil
	}
	a := newAgent(t, r, nil, Options{PodsOn: on})
	if step, o := a.run(t.Context(), newJob(r, "node.drain", n, `{"device":"GPU-2"}`)); step != "preflight" || !strings.Contains(o.Detail, "an hour old") {
		t.Fatalf("at %s with %+v", step, o)
	}
	j := newJob(r, "node.drain", n, `{"device":"GPU-1","delete_emptydir_data":true}`)
	a.mustRun(j)
	end, d := a.observe(j)
	if d.Counts.Planned != 1 || d.Counts.Gone != 1 || d.Counts.Stayed != 2 || len(d.Pods) != 1 || d.Pods[0].UID != string(pods[0].UID) || !r.NodeNow(n.Name).Spec.Unschedulable {
		t.Errorf("%s", end.Details)
	}
	// The pod is on no device any more; the plan on the node still names it.
	heir := newAgent(t, r, nil, Options{PodsOn: func(context.Context, types.UID, string) ([]types.UID, string, error) {
		return nil, "nobody answers", nil
	}})
	j = j.generation(2)
	if step, o := heir.takeOver(t.Context(), j); step != "" {
		t.Fatalf("a successor ended at %s with %+v", step, o)
	}
	if _, d := heir.observe(j); d.Counts.Planned != 1 || d.Counts.Gone != 1 {
		t.Errorf("a successor counts %+v", d.Counts)
	}
}
