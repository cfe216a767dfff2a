package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// KeepArg as a program's first argument makes it a keeper: see Keep.
const KeepArg = "keep"

// graceful is how long a kept process has to end by itself.
const graceful = 15 * time.Second

// child is a process behind its keeper.
type child struct {
	name  string
	log   string
	stdin io.Closer // its end ends the process
	done  chan struct{}
	err   error // why it ended, once done is closed
}

// start runs a program until Close, or until this process is gone. Its output
// goes to a file in the state folder.
func (r *Rig) start(name, dir string, env []string, argv ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	c := &child{name: name, log: filepath.Join(r.state, name+".log"), done: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", name, err)
	}
	cmd := exec.Command(exe, append([]string{KeepArg}, argv...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process: it ends the others in order
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, errors.Join(err, log.Close()))
	}
	go func() {
		c.err = errors.Join(cmd.Wait(), log.Close())
		close(c.done)
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.children = append(r.children, c)
	r.closing = append(r.closing, c.stop)
	return c, nil
}

// stop ends the process and waits for it.
func (c *child) stop() {
	_ = c.stdin.Close() // closed already when the process ended by itself
	<-c.done
}

// Logs prints the end of what each started program wrote.
func (r *Rig) Logs(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.children {
		fmt.Fprintf(w, "---- %s\n%s\n", c.name, c.tail())
	}
}

// tail is the end of the process's output.
func (c *child) tail() string {
	const most = 4 << 10
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// Keep runs a program in a process group of its own until the program or stdin
// ends, and then ends the whole group. Stdin is a pipe from whoever wants the
// program: it closes also when that process is killed. It returns the exit code.
func Keep(argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(argv) == 0 {
		fmt.Fprintln(stderr, "keep: no program named")
		return 2
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(stderr, "keep:", err)
		return 1
	}
	group := -cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	parentGone := make(chan struct{})
	go func() {
		_ = drain(stdin)
		close(parentGone)
	}()
	var err error
	select {
	case err = <-ended:
	case <-parentGone:
		_ = syscall.Kill(group, syscall.SIGTERM)
		select {
		case err = <-ended:
		case <-time.After(graceful):
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // what it left behind in its group
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(stderr, "keep:", err)
		return 1
	}
	return 0
}
