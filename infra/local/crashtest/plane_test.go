package crashtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program under test, built once without the race detector.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "opsplane-bin")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "opsplane")
		build := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/opsplane/opsplane/infra/local/opsplane")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// timing is what the engine is started with, so that leases run out in seconds.
type timing struct{ lease, call, ring, silent time.Duration }

var (
	short = timing{lease: 2 * time.Second, call: time.Second, ring: time.Second, silent: 12 * time.Second}
	// steady is for tests in which no lease may end because the machine is busy.
	steady = timing{lease: 6 * time.Second, call: time.Second, ring: time.Second, silent: 12 * time.Second}
)

func (t timing) flags() []string {
	return []string{"--lease", t.lease.String(), "--call-deadline", t.call.String(), "--ring-after", t.ring.String(), "--agent-silent", t.silent.String()}
}

// folder makes a place for one test's files, kept when the test fails.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "opsplane-test")
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

// freeAddr returns a loopback address that nobody listens on, of an IP address of its
// own: a port of 127.0.0.1 could be somebody else's by the next start, if only that of
// a connection.
func freeAddr(t *testing.T) string {
	t.Helper()
	ip := net.IPv4(127, byte(1+rand.IntN(254)), byte(rand.IntN(256)), byte(1+rand.IntN(254)))
	l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// interval is a time in which the plane was not there.
type interval struct{ from, to time.Time }

// plane is one engine process after another over one data folder.
type plane struct {
	t    *testing.T
	dir  string
	data string
	addr string
	log  string
	args []string

	cmd *exec.Cmd

	mu   sync.Mutex
	down []interval
}

// newPlane prepares an engine over a fresh folder; args are added to up's.
func newPlane(t *testing.T, args ...string) *plane {
	t.Helper()
	dir := folder(t)
	p := &plane{t: t, dir: dir, data: filepath.Join(dir, "data"), addr: freeAddr(t), log: filepath.Join(dir, "plane.log"), args: args}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.killGroup()
		}
	})
	return p
}

// spawn starts the process without waiting for anything.
func (p *plane) spawn() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"up", "--addr", p.addr, "--data", p.data, "--rate", "100000", "--waits", "10000"}, p.args...)
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// start starts the process and waits until it is ready.
func (p *plane) start() {
	p.t.Helper()
	p.spawn()
	ended := make(chan struct{})
	cmd := p.cmd
	go func() {
		// Only to notice an early end; kill and term wait for it as well.
		for syscall.Kill(cmd.Process.Pid, 0) == nil && !zombie(cmd.Process.Pid) {
			time.Sleep(20 * time.Millisecond)
		}
		close(ended)
	}()
	end := time.Now().Add(time.Minute)
	for {
		if status, _ := ready(p.url()); status == http.StatusOK {
			break
		}
		select {
		case <-ended:
			p.t.Fatalf("the engine ended at its start:\n%s", tail(p.log))
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			p.t.Fatalf("the engine is not ready after a minute:\n%s", tail(p.log))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.down); n > 0 && p.down[n-1].to.IsZero() {
		p.down[n-1].to = time.Now()
	}
}

// zombie tells whether the process has ended and nobody has waited for it.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

func ready(url string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return res.StatusCode, nil
}

func (p *plane) url() string { return "http://" + p.addr }

func (p *plane) token() string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.data, "admin.token"))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (p *plane) wentDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.down); n == 0 || !p.down[n-1].to.IsZero() {
		p.down = append(p.down, interval{from: time.Now()})
	}
}

// away is how long the plane was down between two times.
func (p *plane) away(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum time.Duration
	for _, d := range p.down {
		a, b := later(d.from, from), to
		if !d.to.IsZero() && d.to.Before(to) {
			b = d.to
		}
		if b.After(a) {
			sum += b.Sub(a)
		}
	}
	return sum
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// kill kills the plane alone, at once.
func (p *plane) kill() {
	p.wentDown()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// killGroup kills the plane and its agents, at once.
func (p *plane) killGroup() {
	p.wentDown()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// term asks the engine to stop and returns its exit code and how long it took.
func (p *plane) term(within time.Duration) (int, time.Duration) {
	p.t.Helper()
	return p.stop(p.cmd.Process.Pid, syscall.SIGTERM, within)
}

// stop sends a signal to a process or, with a negative number, a process group,
// and waits for the engine's end.
func (p *plane) stop(pid int, s syscall.Signal, within time.Duration) (int, time.Duration) {
	p.t.Helper()
	began := time.Now()
	_ = syscall.Kill(pid, s)
	done := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(within):
		p.t.Errorf("the engine did not end within %s of signal %d:\n%s", within, s, tail(p.log))
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-done
	}
	p.wentDown()
	return p.cmd.ProcessState.ExitCode(), time.Since(began)
}

// agentPIDs returns the process ids of the simulated fleet's agents by cluster.
func (p *plane) agentPIDs() map[string]int {
	names, _ := filepath.Glob(filepath.Join(p.data, "agents", "*.pid"))
	out := map[string]int{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && pid > 1 {
			out[strings.TrimSuffix(filepath.Base(name), ".pid")] = pid
		}
	}
	return out
}

// alive tells whether a process is there, and is this test's program.
func alive(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.HasPrefix(exe, binary) && !zombie(pid)
}

// verify runs "opsplane verify" on the data folder or another path.
func (p *plane) verify(path string) {
	p.t.Helper()
	out, err := run("verify", path)
	if err != nil {
		p.t.Errorf("verify %s: %v\n%s", path, err, out)
	}
}

// run runs the program to its end.
func run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	return string(out), err
}

// tail is the end of a log.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(b, []byte("\n"))
	return string(bytes.Join(lines[max(len(lines)-25, 0):], []byte("\n")))
}

// agent is an agent process that a test started itself.
type agent struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	in   func()
	log  string
}

// startAgent starts an agent of a registered cluster.
func (p *plane) startAgent(name, tokenFile, scenario, state string, args ...string) *agent {
	p.t.Helper()
	a := &agent{t: p.t, name: name, log: filepath.Join(p.dir, name+".log")}
	all := append([]string{"agent", "--plane", p.url(), "--token-file", tokenFile, "--name", name, "--executor", "sim",
		"--sim-scenario", scenario, "--sim-state", state, "--state-dir", filepath.Join(p.dir, name+"-state"), "--parent-pipe"}, args...)
	a.cmd = exec.Command(binary, all...)
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	in, err := a.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	a.in = func() { _ = in.Close() }
	if err := a.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		a.signal(syscall.SIGCONT)
		a.kill()
	})
	return a
}

func (a *agent) signal(s syscall.Signal) {
	if err := a.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.t.Errorf("signal agent %s: %v", a.name, err)
	}
}

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}
