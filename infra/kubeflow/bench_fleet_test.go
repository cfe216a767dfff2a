//go:build kubetest

package kubeflow

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// podsEach is how many pods a node of the benchmarks has.
const podsEach = 8

// envNodes is how many nodes a wave drains; the figures of the docs are with 100.
const envNodes = "OPSPLANE_BENCH_NODES"

// parallel is how many nodes of a wave are drained at once, by everybody.
const parallel = 20

// envRounds is how often we and the loop drain the fleet, in turns.
const envRounds = "OPSPLANE_BENCH_ROUNDS"

func waveNodes(b *testing.B) int  { return setting(b, envNodes, 100) }
func waveRounds(b *testing.B) int { return setting(b, envRounds, 3) }

// setting is a number of the environment, or what it is without one.
func setting(b *testing.B, name string, without int) int {
	b.Helper()
	v := os.Getenv(name)
	if v == "" {
		return without
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		b.Fatalf("%s is %q: want a number above 0", name, v)
	}
	return n
}

// fleet is what a wave drains.
type fleet struct {
	b      *testing.B
	rig    *kuberig.Rig
	client kubernetes.Interface
	ns     string
	nodes  []string
	spare  []string
}

// newFleet makes nodes, and as many to take what is drained off them.
func newFleet(b *testing.B, rig *kuberig.Rig, nodes, spare int) *fleet {
	f := &fleet{b: b, rig: rig, client: rig.Client(kuberig.Admin), ns: rig.Namespace()}
	seed := rig.Node("seed")
	f.each(nodes+spare, func(ctx context.Context, i int) error {
		n := seed.DeepCopy()
		n.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("wave-%04d", i), Labels: map[string]string{}}
		for k, v := range seed.Labels {
			n.Labels[k] = v
		}
		n.Labels[corev1.LabelHostname] = n.Name
		n.Spec = corev1.NodeSpec{ProviderID: "kwok://" + n.Name}
		_, err := f.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	})
	for i := range nodes + spare {
		if name := fmt.Sprintf("wave-%04d", i); i < nodes {
			f.nodes = append(f.nodes, name)
		} else {
			f.spare = append(f.spare, name)
		}
	}
	f.cordon(seed.Name, true)
	f.await("the nodes are Ready", func(ctx context.Context) (bool, error) {
		all, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		ready := 0
		for i := range all.Items {
			if kuberig.Ready(&all.Items[i]) {
				ready++
			}
		}
		return ready >= nodes+spare, nil
	})
	return f
}

// each runs f for every number, some at once.
func (f *fleet) each(n int, do func(ctx context.Context, i int) error) {
	f.b.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, n)
	work := make(chan int)
	for range 32 {
		wg.Go(func() {
			for i := range work {
				if err := do(f.b.Context(), i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	close(errs)
	for err := range errs {
		f.b.Fatal(err)
	}
}

func (f *fleet) await(what string, ok func(ctx context.Context) (bool, error)) {
	f.b.Helper()
	for end := time.Now().Add(10 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		done, err := ok(f.b.Context())
		if err != nil {
			f.b.Fatalf("%s: %v", what, err)
		}
		if done {
			return
		}
		if time.Now().After(end) {
			f.b.Fatalf("not after 10 minutes: %s", what)
		}
	}
}

func (f *fleet) cordon(node string, closed bool) {
	f.b.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"opsplane.io/cordon":null,"opsplane.io/mark":null}},"spec":{"unschedulable":%v}}`, closed)
	if _, err := f.client.CoreV1().Nodes().Patch(f.b.Context(), node, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		f.b.Fatal(err)
	}
}

// fill gives every node its pods, none of which is made again elsewhere: their
// controller is an object that does nothing.
func (f *fleet) fill() {
	f.b.Helper()
	f.each(len(f.nodes), func(_ context.Context, i int) error { f.cordon(f.nodes[i], false); return nil })
	owner, err := f.client.CoreV1().ConfigMaps(f.ns).Create(f.b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}}, metav1.CreateOptions{})
	if err != nil {
		f.b.Fatal(err)
	}
	f.each(len(f.nodes)*podsEach, func(ctx context.Context, i int) error {
		_, err := f.client.CoreV1().Pods(f.ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "lone-", Labels: map[string]string{"app": "lone"}, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}},
			Spec: corev1.PodSpec{NodeName: f.nodes[i/podsEach], Containers: []corev1.Container{{Name: "main", Image: "sim/main:1"}}},
		}, metav1.CreateOptions{})
		return err
	})
	f.running("lone", len(f.nodes)*podsEach)
}

// deploy gives every node its pods, which are made again on the spare nodes.
func (f *fleet) deploy() {
	f.b.Helper()
	f.each(len(f.nodes), func(_ context.Context, i int) error { f.cordon(f.nodes[i], false); return nil })
	f.each(len(f.spare), func(_ context.Context, i int) error { f.cordon(f.spare[i], true); return nil })
	none := f.client.AppsV1().Deployments(f.ns)
	_ = none.Delete(f.b.Context(), "again", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
	f.await("the former pods are gone", func(ctx context.Context) (bool, error) {
		l, err := f.client.CoreV1().Pods(f.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=again", Limit: 1})
		if err != nil || len(l.Items) > 0 {
			return false, err
		}
		_, err = none.Get(ctx, "again", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	labels := map[string]string{"app": "again"}
	if _, err := none.Create(f.b.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "again"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(len(f.nodes) * podsEach)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "sim/main:1",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{kuberig.GPU: resource.MustParse("1")}}}}}}},
	}, metav1.CreateOptions{}); err != nil {
		f.b.Fatal(err)
	}
	f.running("again", len(f.nodes)*podsEach)
	f.each(len(f.spare), func(_ context.Context, i int) error { f.cordon(f.spare[i], false); return nil })
}

func (f *fleet) running(app string, n int) {
	f.b.Helper()
	f.await(fmt.Sprintf("%d pods of %s run", n, app), func(ctx context.Context) (bool, error) {
		l, err := f.client.CoreV1().Pods(f.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app, FieldSelector: "status.phase=Running", ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		there := 0
		for i := range l.Items {
			if l.Items[i].DeletionTimestamp == nil {
				there++
			}
		}
		return there >= n, nil
	})
}

// unlimited is the administrator's way in without the client's own limits.
func unlimited(rig *kuberig.Rig) *rest.Config {
	cfg := rest.CopyConfig(rig.Config(kuberig.Admin))
	cfg.QPS, cfg.Burst = -1, 0
	return cfg
}
