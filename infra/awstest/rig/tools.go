package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// tool is a Python program in a virtual environment of its own.
type tool struct {
	name     string
	packages []string
	// before makes the installer take what was published until that day: for a
	// package whose own dependencies are unpinned and have moved on.
	before string
	python func(context.Context) (string, error)
}

// The tools, each at the version that was seen working.
var (
	ministack = tool{name: "ministack", packages: []string{"ministack==1.5.33", "aws-sam-translator==1.115.0"}, python: anyPython}
	sam       = tool{name: "sam", packages: []string{"aws-sam-cli==1.170.0"}, python: anyPython}
	lint      = tool{name: "lint", packages: []string{"cfn-lint==1.58.0", "checkov==3.3.30"}, python: anyPython}
	uv        = tool{name: "uv", packages: []string{"uv"}, python: anyPython}
	// 4.14.0 is the last LocalStack that runs without an account. It does not
	// parse on Pythons before 3.13.
	localstack = tool{name: "localstack", packages: []string{"localstack-core[runtime]==4.14.0"}, before: "2026-02-27", python: python313}
)

// bin is the path of a program of the tool.
func (r *Rig) bin(t tool, program string) string {
	return filepath.Join(r.cache, t.name, "bin", program)
}

// install makes the tool's environment, unless it is there in full.
func (r *Rig) install(ctx context.Context, t tool) error {
	r.installs.Lock()
	defer r.installs.Unlock()
	return r.installLocked(ctx, t)
}

func (r *Rig) installLocked(ctx context.Context, t tool) error {
	dir := filepath.Join(r.cache, t.name)
	mark, want := filepath.Join(dir, ".installed"), strings.Join(append(slices.Clone(t.packages), t.before), " ")
	if have, err := os.ReadFile(mark); err == nil && string(have) == want {
		return nil
	}
	python, err := t.python(ctx)
	if err != nil {
		return err
	}
	r.Say("installing %s", strings.Join(t.packages, " "))
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("install %s: %w", t.name, err)
	}
	if err := r.run(ctx, nil, python, "-m", "venv", dir); err != nil {
		return fmt.Errorf("install %s: %w", t.name, err)
	}
	pip := append([]string{filepath.Join(dir, "bin", "pip"), "install", "-q", "--disable-pip-version-check"}, t.packages...)
	if t.before != "" {
		if err := r.installLocked(ctx, uv); err != nil {
			return err
		}
		pip = append([]string{r.bin(uv, "uv"), "pip", "install", "-q", "--python", filepath.Join(dir, "bin", "python"), "--exclude-newer", t.before}, t.packages...)
	}
	if err := r.run(ctx, nil, pip...); err != nil {
		return fmt.Errorf("install %s: %w", t.name, err)
	}
	return os.WriteFile(mark, []byte(want), 0o644)
}

// run runs a program to its end in the repository; its output is the error's.
func (r *Rig) run(ctx context.Context, env []string, argv ...string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	cmd := exec.CommandContext(ctx, exe, append([]string{KeepArg}, argv...)...)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.root, env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	alive, err := cmd.StdinPipe() // its end ends the program with all that it started
	if err != nil {
		return fmt.Errorf("run %s: %w", argv[0], err)
	}
	cmd.Cancel = alive.Close
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv[:min(3, len(argv))], " "), err, out.String())
	}
	return nil
}

// oldest is the Python that every tool runs on.
const oldest = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"

// anyPython finds a Python that can make virtual environments; on Debian it
// installs what is missing.
func anyPython(ctx context.Context) (string, error) {
	works := func() (string, bool) {
		path, err := exec.LookPath("python3")
		return path, err == nil && exec.CommandContext(ctx, path, "-c", oldest).Run() == nil
	}
	if path, ok := works(); ok {
		return path, nil
	}
	if err := apt(ctx, "python3", "python3-venv"); err != nil {
		return "", err
	}
	if path, ok := works(); ok {
		return path, nil
	}
	return "", errors.New("no Python 3.11 or newer with venv found: install python3 and python3-venv")
}

// python313 finds Python 3.13. A pyenv shim of that name may exist and fail, so
// pyenv is asked first.
func python313(ctx context.Context) (string, error) {
	var candidates []string
	if root, err := exec.CommandContext(ctx, "pyenv", "root").Output(); err == nil {
		found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "versions", "3.13*", "bin", "python"))
		if err == nil {
			candidates = append(candidates, found...)
		}
	}
	if path, err := exec.LookPath("python3.13"); err == nil {
		candidates = append(candidates, path)
	}
	for _, c := range candidates {
		if exec.CommandContext(ctx, c, "-c", "import venv, ensurepip").Run() == nil {
			return c, nil
		}
	}
	return "", errors.New("LocalStack 4.14 needs Python 3.13 and none was found: install it (pyenv install 3.13, or python3.13 and python3.13-venv of your system)")
}

// apt installs Debian packages, which takes root.
func apt(ctx context.Context, packages ...string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install %s: there is no apt-get; install it by hand", strings.Join(packages, " "))
	}
	for _, args := range [][]string{{"update", "-q"}, append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
