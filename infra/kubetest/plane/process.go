package plane

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// process is one run of a component.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed once it is gone
	err  error         // how it ended, once done is closed
}

// forks are the starts of processes. Linux ends a child with the thread that
// started it (prctl(2), PR_SET_PDEATHSIG), so one thread starts them all and
// stays.
var forks = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fork := range c {
			fork()
		}
	}()
	return c
})

// Fork starts a command that is killed when this process is gone, however that
// comes about, and that the terminal's signals do not reach.
func Fork(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	done := make(chan error)
	forks() <- func() { done <- cmd.Start() }
	return <-done
}

func launch(program, log string, args []string) (*process, error) {
	name := filepath.Base(program)
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) // a restart goes on in it
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // the process has its own
	p := &process{cmd: exec.Command(program, args...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.Dir = filepath.Dir(log)
	if err := Fork(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill ends the process, also one that is halted.
func (p *process) kill() { _ = p.cmd.Process.Kill() } // it may have ended

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// state tells how the process ended.
func (p *process) state() string {
	switch {
	case !p.ended():
		return "running"
	case p.err != nil:
		return p.err.Error()
	}
	return "exit status 0"
}

// tail is the end of the process's output.
func (p *process) tail() string {
	const most = 4 << 10
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-most), io.SeekStart) // else all of it is read
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
