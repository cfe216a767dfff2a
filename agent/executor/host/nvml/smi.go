package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const (
	smiName = "nvidia-smi"
	// maxOutput bounds what is kept of its words.
	maxOutput = 8 << 10
	// killGrace is how long a killed nvidia-smi may take to go; in a driver call
	// that hangs it does not.
	killGrace = 2 * time.Second
)

// smi runs the driver's own tool for a reset.
type smi struct {
	root string // of the driver: its tools and libraries, "" for the host's own
	path string // of the tool, within root
}

// newSMI finds the tool: by PATH on the host itself, at its usual place within a
// root.
func newSMI(root string) smi {
	if root == "" || root == "/" {
		return smi{path: smiName}
	}
	return smi{root: root, path: "/usr/bin/" + smiName}
}

// reset runs nvidia-smi --gpu-reset -i UUID: a function level reset of one
// device. It is run directly, never by a shell.
func (s smi) reset(ctx context.Context, uuid string, held *os.File) error {
	cmd := exec.CommandContext(ctx, s.path, "--gpu-reset", "-i", uuid)
	if s.root != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root}
		cmd.Dir = "/"
	} else if _, err := exec.LookPath(s.path); err != nil {
		return &gpu.Refusal{Code: report.CodeNotSupported, Detail: fmt.Sprintf("%s is not there, and NVML has no call for a reset: %v", s.path, err)}
	}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	if held != nil {
		cmd.ExtraFiles = []*os.File{held}
	}
	cmd.WaitDelay = killGrace
	out := &bounded{most: maxOutput}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Start()
	if err != nil {
		return &gpu.Refusal{Code: report.CodeHost, Detail: fmt.Sprintf("start %s: %v", s.path, err)}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s was stopped when its time was up: %w", smiName, ctx.Err())
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Exited():
		return judge(exit.ExitCode(), out.String())
	}
	return fmt.Errorf("%s: %w", smiName, err)
}

// judge reads how nvidia-smi ended. Its exit codes are documented ("RETURN
// VALUE" of its manual page, https://docs.nvidia.com/deploy/nvidia-smi/); 255 is
// everything else, a device in use among it, so its words have to tell:
//
//	The following GPUs could not be reset:
//	  GPU 00000000:8B:00.0: In use by another client
//
// What none of them tells is reset_failed, with the words.
func judge(code int, out string) error {
	words := strings.ToLower(out)
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(words, p) {
				return true
			}
		}
		return false
	}
	r := &gpu.Refusal{Code: report.CodeFailed}
	switch {
	case code == 3 || code == 13: // not available on the device; NVML has no such function
		r.Code = report.CodeNotSupported
	case code == 4:
		r.Code, r.Detail = report.CodeHost, "the helper may not reset devices: it needs root. "
	case code == 6:
		r.Code = report.CodeGone
	case code == 9 || code == 12: // driver not loaded; NVML not found
		r.Code = report.CodeNoDriver
	case code == 10 || code == 15: // interrupt issue; fallen off the bus
		r.Code = report.CodeReboot
	case says("in use by another client", "currently being used by"):
		r.Code = report.CodeBusy
	case says("nvlink", "must also be reset", "additional gpus"):
		r.Code = report.CodePeers
	case says("mig mode", "pending"):
		r.Code = report.CodeMIG
	case says("reboot"):
		r.Code = report.CodeReboot
	case says("not supported"):
		r.Code = report.CodeNotSupported
	}
	r.Detail += fmt.Sprintf("%s ended with code %d: %s", smiName, code, strings.Join(strings.Fields(out), " "))
	return r
}

// bounded keeps the first bytes of what is written to it.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.most - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
