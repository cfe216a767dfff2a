//go:build kubetest

package kuberig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// LabelJob is on the pods that a Kubelet runs; kwok leaves them alone.
const LabelJob = "opsplane.io/job"

// EnvTerminationLog tells a pod's program where its termination message goes: it
// runs beside the test, and /dev/termination-log is not its own.
const EnvTerminationLog = "OPSPLANE_TERMINATION_LOG"

// KubeletOptions are what a Kubelet works with.
type KubeletOptions struct {
	// Nodes are whose pods it runs; none: those of all nodes.
	Nodes []string
	// Programs are what is started for a container's command, by the base name of
	// the command, or by the image where there is no command. Others are looked for
	// in PATH.
	Programs map[string]string
	// Env is added to the containers' own.
	Env []string
	// HostRoot is the folder with the nodes' file system, which hostPath volumes
	// show; $NODE in it stands for the node's name. "": this machine's own.
	HostRoot string
	// Server is the API server's URL that pods are given, such as a Proxy's; "": its
	// own.
	Server string
	// Log is told what happens; nil: nobody.
	Log func(format string, args ...any)
}

// Kubelet runs pods with the label opsplane.io/job as processes of this machine,
// as the kubelet of their node does: environment, volumes of ConfigMaps and
// Secrets, a token of the service account (as KUBECONFIG), deadlines, deletion,
// exit code, termination message. One container a pod, never restarted.
type Kubelet struct {
	opts   KubeletOptions
	client kubernetes.Interface
	config *rest.Config
	dir    string // of the pods

	ctx  context.Context // ends all of it
	end  context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex // of what follows
	pods map[types.UID]*podRun
	past map[string]*podRun // by namespace/name, the latest
}

// Kubelet plays the kubelet until the test ends. When that has failed it shows
// what the pods wrote.
func (r *Rig) Kubelet(o KubeletOptions) *Kubelet {
	r.t.Helper()
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	k, err := StartKubelet(context.WithoutCancel(r.t.Context()), r.Config(Admin), r.t.TempDir(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		k.Close()
		if r.t.Failed() {
			for name, run := range k.past {
				r.t.Logf("pod %s wrote:\n%s", name, run.output())
			}
		}
	})
	return k
}

// StartKubelet plays the kubelet outside a test, until Close or until ctx ends.
// dir takes what the pods are given and write.
func StartKubelet(ctx context.Context, config *rest.Config, dir string, o KubeletOptions) (*Kubelet, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.QPS, config.Burst = "kuberig/kubelet", -1, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("start a kubelet: %w", err)
	}
	k := &Kubelet{opts: o, client: client, config: config, dir: dir, pods: map[types.UID]*podRun{}, past: map[string]*podRun{}}
	if k.opts.Server == "" {
		k.opts.Server = config.Host
	}
	if k.opts.Log == nil {
		k.opts.Log = func(string, ...any) {}
	}
	k.ctx, k.end = context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = LabelJob }))
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.see(o) },
		UpdateFunc: func(_, o any) { k.see(o) },
		DeleteFunc: func(o any) { k.gone(o) },
	}); err != nil {
		return nil, fmt.Errorf("start a kubelet: %w", err)
	}
	factory.Start(k.ctx.Done())
	k.wg.Go(func() {
		<-k.ctx.Done()
		factory.Shutdown()
	})
	if !cache.WaitForCacheSync(k.ctx.Done(), pods.HasSynced) {
		k.Close()
		return nil, errors.New("start a kubelet: its pods could not be listed")
	}
	return k, nil
}

// Close ends the kubelet as a node that loses power: its pods' processes are
// killed, and the API server is told nothing.
func (k *Kubelet) Close() {
	k.end()
	k.wg.Wait()
}

// HostPath is where a path of a node's file system lies on this machine.
func (k *Kubelet) HostPath(node, path string) string {
	return filepath.Join("/", strings.ReplaceAll(k.opts.HostRoot, "$NODE", node), path)
}

// Output is what the latest pod of this name wrote.
func (k *Kubelet) Output(namespace, pod string) string {
	k.mu.Lock()
	run := k.past[namespace+"/"+pod]
	k.mu.Unlock()
	if run == nil {
		return ""
	}
	return run.output()
}

// Running are the names of the pods whose processes run, as namespace/name.
func (k *Kubelet) Running() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, run := range k.pods {
		if run.pid() != 0 {
			out = append(out, run.name())
		}
	}
	slices.Sort(out)
	return out
}

// see is told of a pod as it is now.
func (k *Kubelet) see(o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || len(k.opts.Nodes) > 0 && !slices.Contains(k.opts.Nodes, pod.Spec.NodeName) || k.ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	run, ok := k.pods[pod.UID]
	if !ok {
		if done(pod) && pod.DeletionTimestamp == nil {
			return
		}
		run = &podRun{k: k, pod: pod, dir: filepath.Join(k.dir, string(pod.UID)), deleted: make(chan struct{}), removed: make(chan struct{}), moved: make(chan struct{}, 1)}
		k.pods[pod.UID], k.past[pod.Namespace+"/"+pod.Name] = run, run
		k.wg.Go(func() {
			run.run(k.ctx)
			k.mu.Lock()
			defer k.mu.Unlock()
			if run.isRemoved() {
				delete(k.pods, pod.UID)
			}
		})
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		run.delete(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	}
}

// gone is told of a pod that the API server has no longer.
func (k *Kubelet) gone(o any) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if run, ok := k.pods[pod.UID]; ok {
		run.remove()
		delete(k.pods, pod.UID)
	}
}

func done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// podRun is a pod on its node. Its own goroutine runs it from beginning to end.
type podRun struct {
	k   *Kubelet
	pod *corev1.Pod // as it was first seen
	dir string

	mu       sync.Mutex    // of what follows
	deadline time.Time     // of its deletion
	left     time.Duration // its grace
	deleted  chan struct{} // closed once its deletion was asked for
	removed  chan struct{} // closed once the API server has it no longer
	moved    chan struct{} // told that deadline has changed
	process  *os.Process
	out      []byte
}

func (p *podRun) name() string { return p.pod.Namespace + "/" + p.pod.Name }

// delete says that the pod is to be gone after its grace; a later call may shorten
// that.
func (p *podRun) delete(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.deadline.IsZero():
		close(p.deleted)
	case grace >= p.left:
		return
	}
	p.left, p.deadline = grace, time.Now().Add(grace)
	select {
	case p.moved <- struct{}{}:
	default: // it is told already
	}
}

func (p *podRun) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.removed:
	default:
		close(p.removed)
	}
}

func (p *podRun) isRemoved() bool {
	select {
	case <-p.removed:
		return true
	default:
		return false
	}
}

func (p *podRun) dieBy() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline
}

func (p *podRun) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0
	}
	return p.process.Pid
}

func (p *podRun) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.out)
}

// Write takes what the program writes.
func (p *podRun) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = append(p.out, b...)
	return len(b), nil
}

// retry does something until it succeeds or there is no more sense in it.
func (p *podRun) retry(ctx context.Context, what string, do func(ctx context.Context) error) bool {
	return p.retryUntil(ctx, nil, what, do)
}

// retryUntil does not begin again once stop is closed. What has begun goes on: it
// must not reach the API server after what comes next.
func (p *podRun) retryUntil(ctx context.Context, stop <-chan struct{}, what string, do func(ctx context.Context) error) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		if ctx.Err() != nil || p.isRemoved() {
			return false
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := do(call)
		cancel()
		if err == nil {
			return true
		}
		p.k.opts.Log("kubelet: %s of pod %s: %v", what, p.name(), err)
		select {
		case <-ctx.Done():
		case <-stop:
		case <-p.removed:
		case <-time.After(100 * time.Millisecond):
		}
	}
}
