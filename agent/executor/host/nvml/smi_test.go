package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

// tool makes a program that stands for nvidia-smi.
func tool(t *testing.T, script string) smi {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	// A process that a test beside this one starts has the file open until its exec,
	// and what is open for writing cannot be run (ETXTBSY): nobody forks meanwhile.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return smi{path: path}
}

// TestExitCodes: what nvidia-smi's manual page says of its exit codes, and its
// words where those say nothing.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	const inUse = `The following GPUs could not be reset:
  GPU 00000000:8B:00.0: In use by another client

1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi).`
	for name, c := range map[string]struct {
		code int
		out  string
		want string
	}{
		"in use":           {255, inUse, report.CodeBusy},
		"not supported":    {3, "GPU Reset is not supported on this device", report.CodeNotSupported},
		"in words":         {255, "The following GPUs could not be reset:\n  GPU 00000000:8B:00.0: Not Supported", report.CodeNotSupported},
		"peers":            {255, "GPU 00000000:8B:00.0: the following additional GPUs with NVLink connections must also be reset", report.CodePeers},
		"no permission":    {4, "Insufficient permissions", report.CodeHost},
		"no such device":   {6, "No devices were found", report.CodeGone},
		"no driver":        {9, "NVIDIA-SMI has failed", report.CodeNoDriver},
		"fell off the bus": {15, "GPU is lost. Reboot the system to recover this GPU", report.CodeReboot},
		"anything else":    {255, "Unknown Error", report.CodeFailed},
		"silent":           {255, "", report.CodeFailed},
	} {
		err := judge(c.code, c.out)
		var r *gpu.Refusal
		if !errors.As(err, &r) || r.Code != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestResetRunsTheTool(t *testing.T) {
	t.Parallel()
	s := tool(t, `echo "$@" > "$(dirname "$0")/args"; [ -e /proc/self/fd/3 ] || exit 8`)
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := s.reset(t.Context(), uuid, lock); err != nil {
		t.Fatal(err)
	}
	args, err := os.ReadFile(filepath.Join(filepath.Dir(s.path), "args"))
	if err != nil || strings.TrimSpace(string(args)) != "--gpu-reset -i "+uuid {
		t.Errorf("ran with %q: %v", args, err)
	}
	if err := s.reset(t.Context(), uuid, nil); !strings.Contains(err.Error(), "code 8") {
		t.Errorf("without the lock: %v", err)
	}
}

// TestResetStopped: a tool that is stopped while it runs, or dies, leaves nobody
// knowing: that is no refusal.
func TestResetStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := tool(t, `: >"$0.runs"; sleep 600`)
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(slow.path + ".runs"); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	var r *gpu.Refusal
	if err := slow.reset(ctx, uuid, nil); err == nil || errors.As(err, &r) || !errors.Is(err, context.Canceled) {
		t.Errorf("stopped while it ran: %v", err)
	}
	if err := tool(t, "kill -9 $$").reset(t.Context(), uuid, nil); err == nil || errors.As(err, &r) {
		t.Errorf("killed: %v", err)
	}
	if err := (smi{path: filepath.Join(t.TempDir(), "none")}).reset(t.Context(), uuid, nil); !errors.As(err, &r) || r.Code != report.CodeNotSupported {
		t.Errorf("no tool: %v", err)
	}
}
