package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"--tag", "a b"}, "--tag"},
		{[]string{"--tag", ""}, "--tag"},
		{[]string{"--arch", "riscv64"}, "amd64 or arm64"},
		{[]string{"--only", "agent,agents"}, "--only"},
		{[]string{"agent"}, "unexpected argument"},
	} {
		if _, err := parse(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %v", tc.args, err)
		}
	}
}

// tool writes a program that notes how it was called, makes the file after -o,
// and then does what the script says.
func tool(t *testing.T, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	text := `#!/bin/sh
echo "` + name + ` $(basename "$PWD") CGO_ENABLED=$CGO_ENABLED GOARCH=$GOARCH $*" >> ` + filepath.Join(dir, "calls") + `
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then : > "$2"; fi; last=$1; shift; done
` + script + "\n"
	// A process that a test beside this one starts has the file open until its exec,
	// and what is open for writing cannot be run (ETXTBSY): nobody forks meanwhile.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(text), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func setup(t *testing.T, docker string) (options, func() string) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: root, out: filepath.Join(dir, "out"), registry: "registry.example/ops/", tag: "v1", arch: "arm64", goTool: tool(t, dir, "go", "")}
	o.docker = filepath.Join(dir, "none")
	if docker != "" {
		o.docker = tool(t, dir, "docker", docker)
	}
	return o, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), dir, "DIR")
	}
}

// All programs are built as their images want them, then the images; each Docker
// context holds what its Dockerfile copies.
func TestBuild(t *testing.T) {
	t.Parallel()
	// The daemon's part: every file that the Dockerfile copies must be there.
	o, calls := setup(t, `case "$last" in version) exit 0;; esac
name=$(basename "$last")
for f in $(sed -n 's/^COPY \([^ ]*\) .*/\1/p' ../../infra/image/$name.Dockerfile); do test -e "$last/$f" || { echo "no $f"; exit 1; }; done`)
	o.hostBase = "glibc:1"
	var out bytes.Buffer
	if err := o.build(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := calls()
	for _, want := range []string{
		"CGO_ENABLED=0 GOARCH=arm64 build -trimpath -ldflags -s -w -X github.com/opsplane/opsplane/agent/agentcmd.linked=v1 -o DIR/out/arm64/agent/opsplane-agent ./agent\n",
		"CGO_ENABLED=1 GOARCH=arm64 build -trimpath -ldflags -s -w -X main.linked=v1 -o DIR/out/arm64/host/opsplane-host ./agent/executor/host/opsplane-host\n",
		"go helm CGO_ENABLED=0 GOARCH=arm64 build -trimpath -ldflags -s -w -o DIR/out/arm64/upgrade/opsplane-upgrade ./opsplane-upgrade\n",
		"agent.Dockerfile --tag registry.example/ops/opsplane-agent:v1 DIR/out/arm64/agent\n",
		"host.Dockerfile --tag registry.example/ops/opsplane-host:v1 --build-arg BASE=glibc:1 DIR/out/arm64/host\n",
		"upgrade.Dockerfile --tag registry.example/ops/opsplane-upgrade:v1 DIR/out/arm64/upgrade\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not called: %s\n%s", want, got)
		}
	}
	if n := strings.Count(out.String(), "built image"); n != 3 {
		t.Errorf("says\n%s", out.String())
	}
}

// Without a daemon the programs are there, and the answer says that the images
// are not.
func TestNoDocker(t *testing.T) {
	t.Parallel()
	for name, docker := range map[string]string{"no program": "", "no daemon": "exit 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, _ := setup(t, docker)
			var out bytes.Buffer
			err := o.build(t.Context(), &out)
			if err == nil || !strings.Contains(err.Error(), "no image is built, only the programs in") {
				t.Errorf("says %v", err)
			}
			for _, p := range products {
				if _, err := os.Stat(filepath.Join(o.out, "arm64", p.name, p.program)); err != nil {
					t.Error(err)
				}
			}
			o.programsOnly = true
			if err := o.build(t.Context(), &out); err != nil {
				t.Error(err)
			}
		})
	}
}

// An image that cannot be built fails the build and says why.
func TestBrokenImage(t *testing.T) {
	t.Parallel()
	o, _ := setup(t, `case "$last" in version) exit 0;; esac; echo "pull access denied"; exit 1`)
	if err := o.build(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "pull access denied") {
		t.Errorf("says %v", err)
	}
}
