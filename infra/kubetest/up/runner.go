package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/infra/kubetest/plane"
)

// cacheEnv names the folder that keeps what was built between runs; the default
// is opsplane/kubetest in the user's cache folder.
const cacheEnv = "OPSPLANE_KUBETEST_CACHE"

// What the tests are told. Package kuberig reads it.
const (
	envBin      = "KUBETEST_BIN"      // folder of kubebox and the links to it
	envProgram  = "KUBETEST_PROGRAM"  // this program
	envShared   = "KUBETEST_SHARED"   // state folder of the shared control plane
	envPrograms = "KUBETEST_PROGRAMS" // folder of what the tests build for all of them
)

// runner builds and starts what a verb needs.
type runner struct {
	root string // the repository
	out  io.Writer
	// runWith is the command that runs the tests, with flags as gotestsum has them; ""
	// is go test.
	runWith string
	began   time.Time

	cache string // kept
	state string // of this run
	bin   string // of kubebox, see build

	closing []func() error // what close does, the last first
}

// open makes the folders.
func (r *runner) open() (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	if r.cache = os.Getenv(cacheEnv); r.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("find the cache folder (or set %s): %w", cacheEnv, err)
		}
		r.cache = filepath.Join(dir, "opsplane", "kubetest")
	}
	if err := os.MkdirAll(r.cache, 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	if err := sweep(os.TempDir()); err != nil {
		return err
	}
	if r.state, err = os.MkdirTemp("", statePrefix); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	r.closing = append(r.closing, func() error { return os.RemoveAll(r.state) })
	unlock, err := lock(filepath.Join(r.state, stateLock))
	if err != nil {
		return errors.Join(err, r.close())
	}
	r.closing = append(r.closing, func() error { unlock(); return nil })
	return nil
}

const (
	statePrefix = "opsplane-kubetest-" // of state folders
	stateLock   = "running"            // in each: locked for as long as its run lasts
)

// sweep removes what runs that were killed have left. A run that has just made its
// folder has no lock in it yet, and is let alone.
func sweep(dir string) error {
	locks, err := filepath.Glob(filepath.Join(dir, statePrefix+"*", stateLock))
	if err != nil {
		return fmt.Errorf("find what is left of runs: %w", err)
	}
	for _, file := range locks {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			continue // it has just ended
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(filepath.Dir(file))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("remove what is left of a run: %w", err)
		}
	}
	return nil
}

// close ends what was started, the last first, and removes the state.
func (r *runner) close() error {
	var errs []error
	for _, do := range slices.Backward(r.closing) {
		errs = append(errs, do())
	}
	return errors.Join(errs...)
}

func (r *runner) path(parts ...string) string {
	return filepath.Join(append([]string{r.root}, parts...)...)
}

// say prints a line of progress.
func (r *runner) say(format string, args ...any) {
	fmt.Fprintf(r.out, "kubetest: %5.1fs  "+format+"\n", append([]any{time.Since(r.began).Seconds()}, args...)...)
}

// shared starts a control plane that ends with this run.
func (r *runner) shared(ctx context.Context) (*plane.Plane, error) {
	if err := r.build(ctx); err != nil {
		return nil, err
	}
	p, err := plane.Start(ctx, plane.Options{Bin: r.bin, Dir: filepath.Join(r.state, "shared"), Audit: true})
	if err != nil {
		return nil, err
	}
	r.closing = append(r.closing, p.Close)
	r.say("a control plane is up at %s", p.URL())
	return p, nil
}

// environment is what the tests are told, as shell words and for a process.
func (r *runner) environment() ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	return []string{
		envBin + "=" + r.bin, envProgram + "=" + exe,
		envShared + "=" + filepath.Join(r.state, "shared"), envPrograms + "=" + filepath.Join(r.state, "programs"),
	}, nil
}

// foreground keeps a control plane until ctx ends.
func (r *runner) foreground(ctx context.Context) error {
	p, err := r.shared(ctx)
	if err != nil {
		return err
	}
	env, err := r.environment()
	if err != nil {
		return err
	}
	fmt.Printf("\nA control plane is up at %s.\n\nUse it, and run tests on it:\n\n  export KUBECONFIG=%s PATH=%s:$PATH\n  export %s\n  kubectl get nodes\n  go test -tags %s ./agent/executor/kube/...\n\nCtrl-C ends it, and nothing is kept.\n",
		p.URL(), p.Kubeconfig(), r.bin, strings.Join(env, " "), tag)
	<-ctx.Done()
	return nil
}
