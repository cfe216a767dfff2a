package plane

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Kill ends a component as a crash does and returns when it is gone.
func (p *Plane) Kill(name string) error {
	proc, err := p.process(name)
	if err != nil {
		return err
	}
	proc.kill()
	<-proc.done
	return nil
}

// Stop halts a component where it is, and returns when the last of its threads has
// halted: its connections stay and nothing answers.
func (p *Plane) Stop(name string) error {
	if err := p.signal(name, syscall.SIGSTOP); err != nil {
		return err
	}
	proc, err := p.process(name)
	if err != nil {
		return err
	}
	for {
		// The parent is told when all have (waitid(2)); that the process ended is not asked.
		err := unix.Waitid(unix.P_PID, proc.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("wait until %s has halted: %w", name, err)
			}
			return nil
		}
	}
}

// Cont lets a component that was halted go on.
func (p *Plane) Cont(name string) error { return p.signal(name, syscall.SIGCONT) }

func (p *Plane) signal(name string, s syscall.Signal) error {
	proc, err := p.process(name)
	if err != nil {
		return err
	}
	if proc.ended() {
		return fmt.Errorf("%s does not run: %s", name, proc.state())
	}
	if err := proc.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	return nil
}

// Restart starts a component again, after killing it if it runs, at the same
// address and with the same data, and returns when it is of use.
func (p *Plane) Restart(ctx context.Context, name string) error {
	if err := p.Kill(name); err != nil {
		return err
	}
	if err := p.start(name); err != nil {
		return err
	}
	return p.await(ctx, name)
}
