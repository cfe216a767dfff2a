//go:build kubetest

package kuberig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// module is the line that the repository's go.mod starts with.
const module = "module github.com/opsplane/opsplane\n"

var (
	programsMu sync.Mutex
	programs   = map[string]string{} // built by this process
)

// Program builds one of the project's programs, by its folder in the repository,
// such as "agent/executor/host/opsplane-host", and returns its path. It is built
// once by each test process, from the sources as they are.
func Program(t T, folder string) string {
	t.Helper()
	programsMu.Lock()
	defer programsMu.Unlock()
	if path, ok := programs[folder]; ok {
		return path
	}
	path, err := buildProgram(env(t, envPrograms), folder)
	if err != nil {
		t.Fatalf("build %s: %v", folder, err)
	}
	programs[folder] = path
	return path
}

func buildProgram(dir, folder string) (path string, err error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Base(folder)
	lock, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { // another package's tests may want it too
		return "", err
	}
	part, path := filepath.Join(dir, name+".part"), filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", part, ".")
	cmd.Dir = filepath.Join(root, folder) // which may be of a module of its own
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, os.Rename(part, path)
}

// repository finds the repository's folder from a test's.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if b, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil && bytes.HasPrefix(b, []byte(module)) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is in no checkout of the project", dir)
		}
	}
}

// Program is the function of that name.
func (r *Rig) Program(folder string) string {
	r.t.Helper()
	return Program(r.t, folder)
}
