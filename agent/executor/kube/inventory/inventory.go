package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Defaults of Options.
const (
	DefaultFoldWindow = time.Minute
	DefaultJudgeEvery = 3 * time.Second
	DefaultLookEvery  = 20 * time.Second
	// DefaultShortageHold outlasts a device plugin that is started again: it takes all
	// of a node's GPUs away for some seconds, longer while its image is pulled.
	DefaultShortageHold = time.Minute
	// snapshotWait is how long Snapshot waits for the first lists.
	snapshotWait = 30 * time.Second
	// gather is how long Watch lets changes gather before it tells them.
	gather = 50 * time.Millisecond
	// most is how many objects Watch tells in one delta.
	most = 2_000
)

// Options configure Open.
type Options struct {
	Cluster *cluster.Cluster
	// Exclude are namespaces whose deployments are not reported; nil:
	// kube-system. Their pods count on their nodes all the same.
	Exclude []string
	// Labels are reported of nodes beside the built-in ones.
	Labels []string
	// Components names components by the charts that install them, beside the
	// built-in ones.
	Components map[string]string
	// Namespaces are where a component is installed, by the component's name. They
	// replace its ComponentNamespaces.
	Namespaces map[string][]string
	// Cordon tells who closed a node that is unschedulable.
	Cordon func(node *corev1.Node) *protocol.Cordon
	// Lift tells which operation opened a node last, whether it is open or not; nil
	// as a function or an answer: none.
	Lift func(node *corev1.Node) *protocol.Cordon
	// LocalData tells whether a drain would lose data with the pod; nil: never.
	LocalData func(pod *corev1.Pod) bool
	// Judge tells what a drain of the node would meet; nil: nothing is told. The
	// objects are rebuilt from what is kept of them (see rebuild.go) and must not
	// be kept or changed.
	Judge func(node *corev1.Node, pods []*corev1.Pod, pdbs []*policyv1.PodDisruptionBudget) []protocol.Blocker
	// JudgeEvery is the least time between two judgements of one node.
	JudgeEvery time.Duration
	// FoldWindow is how long repeats of a fact are counted into one event.
	FoldWindow time.Duration
	// ShortageHold is how long a node gives fewer GPUs to pods than it has until that
	// is told.
	ShortageHold time.Duration
	// LookEvery is how often it is looked whether an optional API is served.
	LookEvery time.Duration
}

// Inventory is what is known of one cluster.
type Inventory struct {
	model   *model
	health  *health
	stop    context.CancelFunc
	done    sync.WaitGroup
	watched sync.Mutex // held by the Watch that runs
	// version reads at which version the API server is now.
	version func(ctx context.Context) (int64, error)

	entering sync.Mutex
	entered  bool // since the last Watch ended
}

// Open begins to watch the cluster. It returns before anything was read; errors
// of the API server show in Healthy and do not end it.
func Open(o Options) (*Inventory, error) {
	if o.Cluster == nil || o.Cluster.Client == nil {
		return nil, errors.New("open inventory: no cluster")
	}
	if o.Cordon == nil {
		return nil, errors.New("open inventory: nothing that tells whose a cordon is")
	}
	o.JudgeEvery = cmp.Or(o.JudgeEvery, DefaultJudgeEvery)
	o.FoldWindow = cmp.Or(o.FoldWindow, DefaultFoldWindow)
	o.LookEvery = cmp.Or(o.LookEvery, DefaultLookEvery)
	o.ShortageHold = cmp.Or(o.ShortageHold, DefaultShortageHold)
	if o.Exclude == nil {
		o.Exclude = []string{"kube-system"}
	}
	client, err := watching(o.Cluster)
	if err != nil {
		return nil, fmt.Errorf("open inventory: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	i := &Inventory{model: newModel(&o, o.Cluster.Now), health: newHealth(o.Cluster.Log, o.Cluster.Now), stop: stop}
	i.model.server = o.Cluster.ServerNow
	i.version = func(ctx context.Context) (int64, error) {
		l, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return 0, fmt.Errorf("read the API server's version: %w", err)
		}
		return number(l.ResourceVersion), nil
	}
	i.run(ctx, &o, client)
	return i, nil
}

// watching is the client that the sources use: protobuf, which costs a quarter
// of JSON to read, and a limiter of its own, so that reading again after a
// restart of the server takes nothing from operations.
func watching(c *cluster.Cluster) (kubernetes.Interface, error) {
	if c.Config == nil {
		return c.Client, nil
	}
	cfg := rest.CopyConfig(c.Config)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(cfg)
}

// Close stops watching.
func (i *Inventory) Close() error {
	i.stop()
	i.done.Wait()
	return nil
}

// Healthy tells why the inventory does not follow the cluster: a source that has
// not been listed yet, or that fails now. It is nil when all is well.
func (i *Inventory) Healthy() error { return i.health.err() }

// Synced is closed when every source has been listed once.
func (i *Inventory) Synced() <-chan struct{} { return i.model.ready }

func (i *Inventory) wait(ctx context.Context) error {
	select {
	case <-i.model.ready:
		return nil
	default:
	}
	select {
	case <-i.model.ready:
		return nil
	case <-ctx.Done():
		if err := i.health.err(); err != nil {
			return err
		}
		return ctx.Err()
	}
}

// enter makes this agent's word newer than that of the one that reported before:
// both read the same changes, and not in the same order. It is asked before the
// first snapshot or Watch, whichever comes first.
func (i *Inventory) enter(ctx context.Context) error {
	i.entering.Lock()
	defer i.entering.Unlock()
	if i.entered {
		return nil
	}
	version, err := i.version(ctx)
	if err != nil {
		return err
	}
	i.model.raise(version)
	i.entered = true
	return nil
}

func (i *Inventory) leave() {
	i.model.end()
	i.entering.Lock()
	i.entered = false
	i.entering.Unlock()
}

// Snapshot returns the whole inventory. Before the first lists are read it waits
// for them, 30 s at most, and then says what keeps them.
func (i *Inventory) Snapshot(ctx context.Context) (protocol.Inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotWait)
	defer cancel()
	if err := i.wait(ctx); err != nil {
		return protocol.Inventory{}, fmt.Errorf("read inventory: %w", err)
	}
	if err := i.enter(ctx); err != nil {
		return protocol.Inventory{}, fmt.Errorf("read inventory: %w", err)
	}
	return i.model.snapshot(), nil
}

// Watch calls f with changes until ctx ends. One Watch runs at a time.
func (i *Inventory) Watch(ctx context.Context, f func(executor.Delta)) error {
	if !i.watched.TryLock() {
		return errors.New("watch inventory: it is being watched")
	}
	defer i.watched.Unlock()
	select {
	case <-i.model.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	_ = i.enter(ctx) // if it cannot be asked now, the snapshot does it
	i.model.begin()
	defer i.leave()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.model.ring:
		}
		pause.Reset(gather)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
		for {
			d, more := i.model.take(most)
			if len(d.Events) > 0 || len(d.Gone) > 0 || !empty(d.Objects) || d.Whole {
				f(d)
			}
			if !more || ctx.Err() != nil {
				break
			}
		}
	}
}

func empty(in protocol.Inventory) bool {
	return len(in.Nodes)+len(in.Devices)+len(in.Deployments)+len(in.Components) == 0
}
