//go:build kubetest

package kuberig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestNothingIsLeft: a control plane ends with whoever wanted it, and with what
// runs it, also when that is killed and a component is halted.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, p *plane){
		"its starter is gone": func(t *testing.T, p *plane) {
			if err := p.close(); err != nil {
				t.Error(err)
			}
		},
		"what runs it is killed": func(t *testing.T, p *plane) {
			if err := p.cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = p.cmd.Wait() // by a signal
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := open(env(t, envProgram), "plane", "--bin", env(t, envBin), "--dir", dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.do("stop", ControllerManager); err != nil {
				t.Error(err)
			}
			if got := len(processesOf(t, dir)); got != 6 { // the five components, and what runs them
				t.Errorf("%d processes are of the control plane, want 6", got)
			}
			end(t, p)
			err = await(t.Context(), "no process is left", func(context.Context) (bool, error) {
				if left := processesOf(t, dir); len(left) > 0 {
					return false, fmt.Errorf("left are %q", left)
				}
				return true, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// processesOf are the command lines that name the folder.
func processesOf(t *testing.T, dir string) (out []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(dir)) { // else it has just ended
			out = append(out, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return out
}

// TestRefusals: what a control plane is asked and cannot do is said.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a component that must be":    {[]string{"--without", "etcd"}, `start a control plane without "etcd": it must be kube-controller-manager, kube-scheduler or kwok`},
		"a grace that is too short":   {[]string{"--node-grace", "2s"}, "start a control plane: the grace of nodes must be 4s or more, is 2s"},
		"programs that are not there": {[]string{"--bin", "/nonexistent"}, "start etcd: fork/exec /nonexistent/etcd: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := open(env(t, envProgram), append([]string{"plane", "--bin", env(t, envBin), "--dir", t.TempDir()}, c.args...)...)
			if err == nil {
				_ = p.close()
				t.Fatal("it started")
			}
			if !bytes.Contains([]byte(err.Error()), []byte(c.want)) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
