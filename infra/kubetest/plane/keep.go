package plane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// graceful is how long a kept program has to end by itself.
const graceful = 10 * time.Second

// Keep runs a program in a process group of its own until it ends or stdin does,
// and then ends the whole group. Stdin is a pipe from whoever wants the program:
// it closes also when that process is killed. The terminal's signals and SIGTERM
// are left to that process.
func Keep(argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(argv) == 0 {
		return errors.New("keep: no program named")
	}
	// Taken and dropped: a signal that is ignored would be ignored by the program too.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := Fork(cmd); err != nil {
		return fmt.Errorf("keep %s: %w", argv[0], err)
	}
	group := -cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	parentGone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
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
			err = fmt.Errorf("it did not end within %s", graceful)
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // what it left behind in its group
	return err
}
