//go:build kubetest

package kuberig

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
)

// What `make test-kube` tells the tests.
const (
	envBin      = "KUBETEST_BIN"      // folder of the control plane's programs
	envProgram  = "KUBETEST_PROGRAM"  // what starts them
	envShared   = "KUBETEST_SHARED"   // state folder of the shared control plane
	envPrograms = "KUBETEST_PROGRAMS" // folder of programs that tests build, see Program
)

// The components that Kill, Stop, Cont and Restart take.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok" // the kubelets of all nodes
)

// T is what a rig wants of a test; testing.TB has it.
type T interface {
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Failed() bool
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
	Logf(format string, args ...any)
	TempDir() string
}

// Rig is a control plane, as one test uses it.
type Rig struct {
	t      T
	dir    string // the control plane's state
	id     string // marks what this test made, see LabelRig
	shared bool
	audit  int64 // size of the audit log when the rig was given out
	*plane       // nil when shared

	mu      sync.Mutex // of what follows
	clients map[string]*kubernetes.Clientset
}

// Options are those of a private control plane.
type Options struct {
	// Nodes makes this many nodes, node-0 and on.
	Nodes int
	// Audit logs requests: see Rig.Audit. The shared control plane always does.
	Audit bool
	// NodeGrace is after how long without a heartbeat a node is NotReady, at least
	// 4s; 0 leaves Kubernetes' own 50 s.
	NodeGrace time.Duration
	// Without names components that are not started: ControllerManager, Scheduler, Kwok.
	Without []string
}

// Shared is the control plane of the whole test run. Others use it at the same
// time: make nodes and namespaces by this rig, whose names nobody else has, and
// leave the components alone.
func Shared(t T) *Rig {
	t.Helper()
	r := &Rig{t: t, dir: env(t, envShared), id: id(), shared: true, clients: map[string]*kubernetes.Clientset{}}
	if info, err := os.Stat(filepath.Join(r.dir, "audit.log")); err == nil {
		r.audit = info.Size()
	}
	return r
}

// Start starts a private control plane, which ends with the test. It takes two to
// four seconds and 400 MB: use Shared where it will do.
func Start(t T, o Options) *Rig {
	t.Helper()
	r := &Rig{t: t, dir: t.TempDir(), id: id(), clients: map[string]*kubernetes.Clientset{}}
	args := []string{"plane", "--bin", env(t, envBin), "--dir", r.dir, "--node-grace", o.NodeGrace.String(), "--without", strings.Join(o.Without, ",")}
	if o.Audit {
		args = append(args, "--audit")
	}
	var err error
	if r.plane, err = open(env(t, envProgram), args...); err != nil {
		t.Fatalf("start a control plane: %v", err)
	}
	t.Cleanup(func() {
		if err := r.plane.close(); err != nil {
			t.Errorf("end the control plane: %v", err)
		}
	})
	for i := range o.Nodes {
		r.Node(fmt.Sprintf("node-%d", i))
	}
	return r
}

// Attach is a control plane that somebody else started and nobody else uses, by
// the folder of its state: names stay as they are given, and nothing is deleted.
func Attach(t T, dir string) *Rig {
	t.Helper()
	return &Rig{t: t, dir: dir, id: id(), clients: map[string]*kubernetes.Clientset{}}
}

// For is the same rig for a subtest: what that makes ends with it.
func (r *Rig) For(t T) *Rig {
	c := &Rig{t: t, dir: r.dir, id: r.id, shared: r.shared, audit: r.audit, plane: r.plane, clients: map[string]*kubernetes.Clientset{}}
	return c
}

// Name makes a name that nobody else of the test run has.
func (r *Rig) Name(prefix string) string { return prefix + "-" + id() }

// Kill ends a component as a crash does and returns when it is gone.
func (r *Rig) Kill(component string) { r.t.Helper(); r.do("kill", component) }

// Stop halts a component where it is: connections stay and nothing answers.
func (r *Rig) Stop(component string) { r.t.Helper(); r.do("stop", component) }

// Cont lets a component that was halted go on.
func (r *Rig) Cont(component string) { r.t.Helper(); r.do("cont", component) }

// Restart starts a component again, after killing it if it runs, at the same
// address and with the same data, and returns when it is of use.
func (r *Rig) Restart(component string) { r.t.Helper(); r.do("restart", component) }

// Log is what a component wrote.
func (r *Rig) Log(component string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, "log", component+".log"))
	if err != nil {
		r.t.Fatalf("read log of %s: %v", component, err)
	}
	return string(b)
}

func (r *Rig) do(verb, component string) {
	r.t.Helper()
	if r.plane == nil {
		r.t.Fatalf("%s %s: this control plane is others' too, use Start", verb, component)
	}
	if err := r.plane.do(verb, component); err != nil {
		r.t.Fatalf("%s %s: %v", verb, component, err)
	}
}

func env(t T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run this by `make test-kube`, or export what `bin/kubetest up` prints", name)
	}
	return v
}

func id() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b)                    // never fails (crypto/rand)
	return "x" + hex.EncodeToString(b)[1:] // never a number, for YAML that nobody quotes
}

// plane is a process that runs a control plane for this one. It ends when its
// stdin does: also when this process is killed.
type plane struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr strings.Builder

	mu      sync.Mutex // one command at a time
	answers *json.Decoder
}

func open(program string, args ...string) (*plane, error) {
	p := &plane{cmd: exec.Command(program, args...)}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals are for the test: it ends the plane in order
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(bufio.NewReader(stdout))
	if err := p.answer(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *plane) do(verb, component string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := json.Marshal(map[string]string{"do": verb, "component": component})
	if err != nil {
		return err
	}
	if _, err := p.stdin.Write(append(b, '\n')); err != nil {
		return err
	}
	return p.answer()
}

func (p *plane) answer() error {
	var a struct {
		Err string `json:"err"`
	}
	if err := p.answers.Decode(&a); err != nil {
		return fmt.Errorf("read answer of what runs the control plane: %w", err)
	}
	if a.Err != "" {
		return errors.New(a.Err)
	}
	return nil
}

func (p *plane) close() error {
	err := p.stdin.Close()
	if werr := p.cmd.Wait(); werr != nil {
		return errors.Join(err, fmt.Errorf("%w\n%s", werr, p.stderr.String()))
	}
	return err
}

// await waits until ok says so, which asks the API server; what names it in the
// failure.
func (r *Rig) await(what string, ok func(ctx context.Context) (bool, error)) {
	r.t.Helper()
	if err := await(r.t.Context(), what, ok); err != nil {
		r.t.Fatal(err)
	}
}

// Await waits until ok returns true, asking again every 25 ms; the test ends when
// it does not within a minute. An error is asked again too, and told in the end.
func (r *Rig) Await(what string, ok func(ctx context.Context) (bool, error)) {
	r.t.Helper()
	r.await(what, ok)
}

const (
	awaitWithin = time.Minute
	awaitEvery  = 25 * time.Millisecond
)

func await(ctx context.Context, what string, ok func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, awaitWithin)
	defer cancel()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		done, err := ok(ctx)
		if err == nil && done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s (last error: %w)", what, awaitWithin, errors.Join(err))
		case <-tick.C:
		}
	}
}

// Bin is the folder of the control plane's programs, kubectl among them.
func Bin(t T) string {
	t.Helper()
	return env(t, envBin)
}
