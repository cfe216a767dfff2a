package plane

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The components, by the names that everything here takes.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

// components in the order of their start.
var components = []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok}

// startWithin bounds how long a component may take to be of use. A cold start on
// two busy cores was seen to take 20 s.
const startWithin = 90 * time.Second

// stages tells kwok how pods and nodes behave.
//
//go:embed stages.yaml
var stages []byte

// audit tells the API server what to log of each request.
//
//go:embed audit.yaml
var audit []byte

// Options is what a control plane is started with.
type Options struct {
	Bin string // folder of kubebox and the links to it
	Dir string // state, made if need be

	// Audit logs requests into Dir/audit.log.
	Audit bool
	// NodeGrace is after how long without a heartbeat a node is NotReady; 0 leaves
	// Kubernetes' own 50 s. At least 4 s: kwok renews a lease each quarter of it,
	// and leases are set in seconds.
	NodeGrace time.Duration
	// Without names components that are not started.
	Without []string
}

func (o *Options) check() error {
	switch {
	case o.Bin == "" || o.Dir == "":
		return errors.New("start a control plane: the programs' folder and the state folder are needed")
	case o.NodeGrace != 0 && o.NodeGrace < 4*time.Second:
		return fmt.Errorf("start a control plane: the grace of nodes must be 4s or more, is %s", o.NodeGrace)
	}
	for _, name := range o.Without {
		if !slices.Contains(components, name) || name == Etcd || name == APIServer {
			return fmt.Errorf("start a control plane without %q: it must be %s, %s or %s", name, ControllerManager, Scheduler, Kwok)
		}
	}
	return nil
}

// Plane is a running control plane.
type Plane struct {
	opts  Options
	ports ports
	admin *api

	mu    sync.Mutex // of what follows
	procs map[string]*process
}

// Start starts a control plane and returns when it takes work: the API server is
// ready and the controllers run. Whoever got it calls Close.
func Start(ctx context.Context, o Options) (_ *Plane, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("find state folder: %w", err)
	}
	p := &Plane{opts: o, procs: map[string]*process{}}
	if p.ports, err = reserve(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err := p.prepare(); err != nil {
		return nil, err
	}
	// The API server waits for etcd by itself, the others do not wait for it.
	for _, name := range []string{Etcd, APIServer} {
		if err := p.start(name); err != nil {
			return nil, err
		}
	}
	if err := p.await(ctx, APIServer); err != nil {
		return nil, err
	}
	for _, name := range components[2:] {
		if slices.Contains(o.Without, name) {
			continue
		}
		if err := p.start(name); err != nil {
			return nil, err
		}
	}
	if slices.Contains(o.Without, ControllerManager) {
		return p, nil
	}
	return p, p.await(ctx, ControllerManager)
}

// prepare writes what the components read.
func (p *Plane) prepare() error {
	for _, dir := range []string{p.opts.Dir, p.path("log"), p.path("pki")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make state folder: %w", err)
		}
	}
	if err := writePKI(p.path("pki"), p.URL()); err != nil {
		return err
	}
	for name, b := range map[string][]byte{"stages.yaml": stages, "audit.yaml": audit} {
		if err := os.WriteFile(p.path(name), b, 0o600); err != nil {
			return fmt.Errorf("prepare a control plane: %w", err)
		}
	}
	var err error
	p.admin, err = newAPI(p.path("pki"), p.URL())
	return err
}

// URL is the API server's.
func (p *Plane) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", p.ports.api) }

// Kubeconfig is the administrator's.
func (p *Plane) Kubeconfig() string { return p.path("pki", admin+".kubeconfig") }

func (p *Plane) path(parts ...string) string {
	return filepath.Join(append([]string{p.opts.Dir}, parts...)...)
}

// start starts a component that does not run.
func (p *Plane) start(name string) error {
	proc, err := launch(filepath.Join(p.opts.Bin, name), p.path("log", name+".log"), p.arguments(name))
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.procs[name] = proc
	return nil
}

// process finds a component that was started.
func (p *Plane) process(name string) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, ok := p.procs[name]
	if !ok {
		return nil, fmt.Errorf("%q is no component of this control plane: it has %s", name, strings.Join(components, ", "))
	}
	return proc, nil
}

// await waits until a component is of use.
func (p *Plane) await(ctx context.Context, name string) error {
	// What shows that it is; nothing for those that nobody waits for.
	path, ok := map[string]string{
		APIServer:         "/readyz",
		Etcd:              "/readyz/etcd",
		ControllerManager: "/api/v1/namespaces/default/serviceaccounts/default",
	}[name]
	if !ok {
		return nil
	}
	proc, err := p.process(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.admin.ok(ctx, path)
		if err == nil {
			return nil
		}
		select {
		case <-proc.done:
			return fmt.Errorf("start %s: it ended: %s\n%s", name, proc.state(), proc.tail())
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w (%w)\n%s", name, context.Cause(ctx), err, proc.tail())
		case <-tick.C:
		}
	}
}

// Close ends every component at once and gives its ports back. The state folder
// stays.
func (p *Plane) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, proc := range p.procs {
		proc.kill()
	}
	for _, proc := range p.procs {
		<-proc.done
	}
	return p.ports.release()
}
