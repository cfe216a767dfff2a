package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/opsplane/opsplane/agent/executor"
)

// Defaults of Options. client-go's own 5 requests a second would make twenty
// drains at once crawl; past these the API server's priority and fairness decide.
const (
	DefaultQPS         = 200
	DefaultBurst       = 400
	DefaultCallTimeout = 8 * time.Second
	// readTimeout bounds one read of a probe or a step.
	readTimeout = 8 * time.Second
)

// Points at which Options.Pause is called around each effect.
const (
	BeforeFence = "before_fence" // nothing is asked yet
	AfterFence  = "after_fence"  // the fence said yes, the effect is not issued
)

// Options configure Open.
type Options struct {
	// Kubeconfig is a file; empty: the pod's own service account.
	Kubeconfig string
	Context    string // of the kubeconfig; empty: its current one
	// Namespace, NodeName, PodName and PodUID say where the agent itself runs;
	// empty outside of a cluster.
	Namespace, NodeName, PodName, PodUID string
	Version                              string // of the agent
	QPS                                  float32
	Burst                                int
	CallTimeout                          time.Duration    // of one effect
	Log                                  *slog.Logger     // nil: none
	Now                                  func() time.Time // nil: time.Now
	// Pause, if set, is called before and after the fence of each effect, for
	// tests that stop a holder there.
	Pause func(point string, t *executor.Task)
}

// Cluster is the API server as one agent reaches it.
type Cluster struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Config  *rest.Config
	Log     *slog.Logger
	Now     func() time.Time
	// Namespace is where the agent's own objects live; NodeName, PodName and
	// PodUID are empty when it runs outside of the cluster.
	Namespace, NodeName, PodName, PodUID, Version string

	// Pulse tells whether the API server answers; nil in a Cluster that was not opened.
	Pulse *Pulse

	callTimeout time.Duration
	pause       func(point string, t *executor.Task)
	hooks       hooks
	asked       outlasting
	server      serverClock

	mu       sync.Mutex
	noEvents string // why no event is put on an object; empty: nothing is known against it
}

// DefaultNamespace is the agent's namespace where nothing names another.
const DefaultNamespace = "opsplane"

// Open reads the credentials and makes the clients. It sends nothing.
func Open(o Options) (*Cluster, error) {
	cfg, err := load(o)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = cmp.Or(o.QPS, DefaultQPS), cmp.Or(o.Burst, DefaultBurst)
	agent := "opsplane-agent/" + product(o.Version)
	cfg.UserAgent = agent
	cfg.WarningHandler = rest.NoWarnings{} // deprecations are no business of whoever is paged
	p := NewPulse(nil)
	var c *Cluster
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &transport{next: next, agent: agent, heard: func(r *http.Response) {
			p.note(r)
			c.NoteDate(r.Header.Get("Date"))
		}}
	})
	c = &Cluster{
		Config: cfg, Log: o.Log, Now: o.Now, Namespace: cmp.Or(o.Namespace, DefaultNamespace), NodeName: o.NodeName,
		PodName: o.PodName, PodUID: o.PodUID, Version: o.Version,
		callTimeout: cmp.Or(o.CallTimeout, DefaultCallTimeout), pause: o.Pause, Pulse: p,
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if p.ask, err = readiness(cfg); err != nil {
		return nil, fmt.Errorf("open cluster: %w", err)
	}
	if c.Client, err = kubernetes.NewForConfig(inBinary(cfg)); err != nil {
		return nil, fmt.Errorf("open cluster: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("open cluster: %w", err)
	}
	return c, nil
}

// inBinary reads the built-in types in their binary form, which costs both sides less;
// what is read through Dynamic has none.
func inBinary(cfg *rest.Config) *rest.Config {
	typed := rest.CopyConfig(cfg)
	typed.ContentType, typed.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	return typed
}

func load(o Options) (*rest.Config, error) {
	if o.Kubeconfig == "" && o.Context == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("open cluster: no kubeconfig is named and this is no pod of a cluster")
		}
		if err != nil {
			return nil, fmt.Errorf("open cluster: %w", err)
		}
		return cfg, nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if o.Kubeconfig != "" {
		if _, err := os.Stat(o.Kubeconfig); err != nil {
			return nil, fmt.Errorf("open cluster: read kubeconfig: %w", err)
		}
		rules.ExplicitPath = o.Kubeconfig
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("open cluster: read kubeconfig: %w", err)
	}
	return cfg, nil
}

// product makes a version fit a user agent's token (RFC 9110, section 10.1.5).
func product(version string) string {
	clean := strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f && !strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) {
			return r
		}
		return -1
	}, version)
	return cmp.Or(clean, "unknown")
}
