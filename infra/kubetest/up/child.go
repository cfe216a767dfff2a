package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/infra/kubetest/plane"
)

// graceful is how long a child has to end by itself.
const graceful = 10 * time.Second

// child is a program of the demo. It ends with this process, however that ends.
type child struct {
	name, log string
	cmd       *exec.Cmd
	stdin     io.Closer
	stdout    io.ReadCloser
	done      chan struct{}
	err       error // how it ended, once done is closed
}

// start runs a program until close. What it writes goes to a file of its name in
// the state folder, but for standard output if that is wanted here.
func (r *runner) start(name string, env []string, wantStdout bool, argv ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(r.state, name+".log"), cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }() // the program has its own
	c.cmd.Dir, c.cmd.Env, c.cmd.Stderr, c.cmd.Stdout = r.root, append(os.Environ(), env...), log, log
	if wantStdout {
		c.cmd.Stdout = nil
		if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := plane.Fork(c.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if !wantStdout {
		c.wait()
	}
	r.closing = append(r.closing, c.stop)
	return c, nil
}

// wait watches for the program's end. What is read of its output is read before.
func (c *child) wait() {
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
}

// stop asks the program to end, and kills it when it does not.
func (c *child) stop() error {
	select {
	case <-c.done:
		return nil // it was told of where it ended
	default:
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
		return nil
	case <-time.After(graceful):
		return errors.Join(fmt.Errorf("%s did not end within %s", c.name, graceful), c.cmd.Process.Kill())
	}
}

// until asks again and again until ok, for as long as the program runs.
func (c *child) until(ctx context.Context, within time.Duration, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return c.ended()
		case <-ctx.Done():
			return fmt.Errorf("start %s: not within %s: %w\n%s", c.name, within, err, c.tail())
		case <-tick.C:
		}
	}
}

func (c *child) ended() error { return fmt.Errorf("%s ended: %w\n%s", c.name, c.err, c.tail()) }

// tail is the end of what the program wrote.
func (c *child) tail() string {
	const most = 2 << 10
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}
