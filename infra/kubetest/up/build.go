package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/infra/kubetest/plane"
)

// programs are the names that kubebox goes by.
var programs = []string{plane.Etcd, plane.APIServer, plane.ControllerManager, plane.Scheduler, plane.Kwok, "kubectl"}

// builds is how many builds of kubebox are kept: of the sources at hand, and of
// those of before.
const builds = 2

// build makes kubebox, unless it is there for these sources and this Go, and sets
// r.bin to its folder. Modules and objects are kept beside it: the first build
// takes minutes and 5 GB, a later one as long as the link.
func (r *runner) build(ctx context.Context) error {
	key, err := r.key(ctx)
	if err != nil {
		return err
	}
	r.bin = filepath.Join(r.cache, "bin", key)
	unlock, err := lock(filepath.Join(r.cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(r.bin, "kubebox")); err == nil {
		now := time.Now()
		return os.Chtimes(r.bin, now, now) // see prune
	}
	began := time.Now()
	r.say("building the control plane; the first time this takes 7 to 15 minutes and 5 GB in %s", r.cache)
	if err := os.RemoveAll(r.bin); err != nil {
		return fmt.Errorf("build kubebox: %w", err)
	}
	if err := os.MkdirAll(r.bin, 0o755); err != nil {
		return fmt.Errorf("build kubebox: %w", err)
	}
	version, err := r.module(ctx, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	for _, name := range programs {
		if err := os.Symlink("kubebox", filepath.Join(r.bin, name)); err != nil {
			return fmt.Errorf("build kubebox: %w", err)
		}
	}
	part := filepath.Join(r.bin, "part") // under its own name only when it is whole
	if _, err := r.module(ctx, "build", "-trimpath", "-ldflags", ldflags(strings.TrimSpace(version)), "-o", part, "./kubebox"); err != nil {
		return err
	}
	if err := os.Rename(part, filepath.Join(r.bin, "kubebox")); err != nil {
		return fmt.Errorf("build kubebox: %w", err)
	}
	r.say("built the control plane in %s", time.Since(began).Round(time.Second))
	return prune(filepath.Join(r.cache, "bin"))
}

// ldflags tell the programs their version, as Kubernetes' own builds do: the API
// server answers /version with it.
func ldflags(version string) string {
	const pkg = "k8s.io/component-base/version"
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	return fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=%[2]s",
		pkg, version, minor)
}

// key stands for what kubebox is built from.
func (r *runner) key(ctx context.Context) (string, error) {
	version, err := r.module(ctx, "version")
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(r.path("infra", "kubetest", "kubebox", "*.go"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("find kubebox in %s (run this in the repository, or give --root): %w", r.root, err)
	}
	h := sha256.New()
	fmt.Fprintln(h, version)
	for _, f := range append(files, r.path("infra", "kubetest", "go.mod"), r.path("infra", "kubetest", "go.sum")) {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("read what kubebox is built from: %w", err)
		}
		fmt.Fprintln(h, filepath.Base(f), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// module runs the go command on the module of kubebox, with caches of its own:
// they are removed in one go, and nothing else trims them.
func (r *runner) module(ctx context.Context, args ...string) (string, error) {
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.path("infra", "kubetest")
	cmd.Env = append(os.Environ(), "GOMODCACHE="+filepath.Join(r.cache, "mod"), "GOCACHE="+filepath.Join(r.cache, "build"),
		"GOFLAGS=-modcacherw -buildvcs=false", "GOTOOLCHAIN=local", "GOWORK=off", "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&errs, r.out)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return out.String(), nil
}

// prune removes the builds that were not used for the longest time.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove old builds: %w", err)
	}
	used := map[string]time.Time{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			used[e.Name()] = info.ModTime()
		}
	}
	names := slices.SortedFunc(func(yield func(string) bool) {
		for name := range used {
			if !yield(name) {
				return
			}
		}
	}, func(a, b string) int { return used[b].Compare(used[a]) })
	var errs []error
	for _, name := range names[min(builds, len(names)):] {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// lock waits for the file's lock, which ends with the process that holds it.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
