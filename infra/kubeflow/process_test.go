//go:build kubetest

package kubeflow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// Leases that run out in seconds, so that a test sees what follows.
const (
	lease        = 3 * time.Second
	callDeadline = 2 * time.Second
)

// patient are a plane's flags with a lease that outlasts a machine which stalls: for
// tests of what happens under one lease.
var patient = []string{"--lease", "2m", "--call-deadline", callDeadline.String(), "--ring-after", "1s", "--agent-silent", "5m"}

// process is a program of the project, killed with the test.
type process struct {
	t    testing.TB
	path string
	args []string
	env  []string
	log  string

	mu  sync.Mutex
	cmd *exec.Cmd
}

func (p *process) start() {
	p.t.Helper()
	if err := p.run(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) run() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := starts(cmd); err != nil {
		return err
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	p.t.Cleanup(p.kill)
	return nil
}

// starts starts a program from a thread that lasts as long as this process: the
// signal that ends a child with its parent comes with the end of the thread that
// started it (prctl(2), PR_SET_PDEATHSIG).
func starts(cmd *exec.Cmd) error {
	oneThread.Do(func() {
		go func() {
			runtime.LockOSThread()
			for s := range starting {
				s.result <- s.cmd.Start()
			}
		}()
	})
	s := start{cmd: cmd, result: make(chan error)}
	starting <- s
	return <-s.result
}

type start struct {
	cmd    *exec.Cmd
	result chan error
}

var (
	oneThread sync.Once
	starting  = make(chan start)
)

// kill ends the process at once; one that is gone is left alone.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// term asks it to end and waits.
func (p *process) term() { p.end(syscall.SIGTERM) }

func (p *process) end(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s)
	_ = p.cmd.Wait()
	p.cmd = nil
}

// signal returns, if it is to halt the process, when the last of its threads has halted.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.cmd.Process.Signal(s)
	for halts := s == syscall.SIGSTOP; halts && err == nil; {
		err = unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if halts = errors.Is(err, unix.EINTR); halts {
			err = nil
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	if len(b) > 4000 {
		b = b[len(b)-4000:]
	}
	return string(b)
}

// folder is a place for one test's files, kept when the test fails.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "opsplane-kubeflow")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what is left is in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// site is a plane with one cluster, which a rig's API server is.
type site struct {
	t       testing.TB
	rig     *kuberig.Rig
	dir     string
	plane   *process
	url     string
	token   string
	cluster string
	tokens  string // file of the agents' token
	user    string // of the API server, that the agents are
	agents  int
}

// newSite starts a plane and registers the cluster. Agents are the rig's
// administrator unless said otherwise.
func newSite(t testing.TB, rig *kuberig.Rig, args ...string) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	s := &site{t: t, rig: rig, dir: folder(t), url: "http://" + addr, user: kuberig.Admin}
	if args == nil {
		args = []string{"--lease", lease.String(), "--call-deadline", callDeadline.String(), "--ring-after", "1s", "--agent-silent", "12s"}
	}
	s.plane = &process{t: t, path: rig.Program("./infra/local/opsplane"), log: filepath.Join(s.dir, "plane.log"),
		args: append([]string{"up", "--addr", addr, "--data", filepath.Join(s.dir, "data"), "--rate", "100000", "--waits", "10000"}, args...)}
	s.startPlane()
	b, err := os.ReadFile(filepath.Join(s.dir, "data", "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	s.token = strings.TrimSpace(string(b))
	var made struct{ ID, Token string }
	s.post("/v1/clusters", map[string]any{"name": "rig"}, http.StatusCreated, &made)
	s.cluster, s.tokens = made.ID, filepath.Join(s.dir, "agent.token")
	if err := os.WriteFile(s.tokens, []byte(made.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) startPlane() {
	s.t.Helper()
	s.plane.start()
	s.await("the plane is ready", time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// agent starts an agent of the cluster and waits until the plane knows of it.
// kubeconfig is empty for the site's user on the rig's own API server.
func (s *site) agent(kubeconfig string, args ...string) *process {
	s.t.Helper()
	s.agents++
	name := fmt.Sprintf("agent-%d", s.agents)
	if kubeconfig == "" {
		kubeconfig = s.rig.Kubeconfig(s.user)
	}
	p := &process{t: s.t, path: s.rig.Program("./agent"), log: filepath.Join(s.dir, name+".log"),
		args: append([]string{"--plane", s.url, "--token-file", s.tokens, "--name", name, "--executor", "kube", "--kubeconfig", kubeconfig,
			"--state-dir", filepath.Join(s.dir, name)}, args...)}
	p.start()
	s.await(name+" is online", time.Minute, func() bool {
		for _, a := range list[struct {
			Name   string
			Online bool
		}](s, "/v1/agents") {
			if a.Name == name && a.Online {
				return true
			}
		}
		return false
	})
	return p
}

// await waits until ok says so.
func (s *site) await(what string, within time.Duration, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not after %s: %s\nplane:\n%s", within, what, s.plane.tail())
		}
	}
}
