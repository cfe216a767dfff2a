package hostcmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

func call(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), "v1.2.3", args, func(k string) string { return env[k] }, &out, &errs)
	return code, out.String(), errs.String()
}

func recording(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(recorded.File{Driver: "580", Devices: []recorded.Device{{Device: report.Device{UUID: uuid, PCI: "0000:3b:00.0"}}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "gpu-1.json"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAnswers: on standard output and in the termination message, with an exit
// code that says the same.
func TestAnswers(t *testing.T) {
	t.Parallel()
	dir := recording(t)
	log := filepath.Join(t.TempDir(), "termination-log")
	env := map[string]string{envTermination: log, envNode: "gpu-1"}
	common := []string{"--recorded=" + dir, "--state=" + t.TempDir(), "--device=" + strings.ToUpper(uuid)}
	lease := []string{"--operation=op_a", "--run=1", "--generation=1"}
	for _, c := range []struct {
		args []string
		code int
		ok   bool
	}{
		{append([]string{"preflight"}, common...), exitOK, true},
		{append(append([]string{"mark"}, common...), lease...), exitOK, true},
		{append(append([]string{"reset"}, common...), lease...), exitOK, true},
		{append(append([]string{"verify"}, common...), lease...), exitOK, true},
		{append([]string{"pods"}, common...), exitOK, true},
		{append(append([]string{"reset"}, common...), "--operation=op_a", "--run=1", "--generation=1", "--node=gpu-9"), exitRefused, false},
	} {
		code, out, errs := call(t, env, c.args...)
		a, err := report.ParseAnswer([]byte(strings.TrimSpace(out)))
		message, err2 := os.ReadFile(log)
		if err != nil || err2 != nil || code != c.code || a.OK != c.ok || string(message)+"\n" != out {
			t.Errorf("%v: code %d %s%s %v %v", c.args, code, out, errs, err, err2)
		}
		if a.OK && a.Verb != report.VerbMark && a.Source != report.SourceRecorded {
			t.Errorf("%s does not say that it is recorded", c.args[0])
		}
	}
	env[envTermination] = filepath.Join(log, "none")
	if code, _, errs := call(t, env, append([]string{"preflight"}, common...)...); code != exitRefused || !strings.Contains(errs, "termination message") {
		t.Errorf("no place for the message: %d %s", code, errs)
	}
}

// TestUsage: what is wrong with a command line is said, with the limit, and the
// exit code is 2.
func TestUsage(t *testing.T) {
	t.Parallel()
	device := "--device=" + uuid
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "opsplane-host VERB"},
		{[]string{"reboot"}, `no verb "reboot"`},
		{[]string{"preflight"}, "neither a GPU's UUID nor a bus id"},
		{[]string{"preflight", "--device=GPU-1"}, "neither a GPU's UUID nor a bus id"},
		{[]string{"reset", device}, "--operation (at most 64 bytes), --run and --generation (from 1)"},
		{[]string{"reset", device, "--operation=op", "--run=0", "--generation=1"}, "--run"},
		{[]string{"reset", device, "--operation=" + strings.Repeat("o", 65), "--run=1", "--generation=1"}, "at most 64 bytes"},
		{[]string{"reset", device, "--operation=op", "--run=1", "--generation=1", "--timeout=1h"}, "not between 0 and 15m0s"},
		{[]string{"verify", device, "--timeout=1m"}, "timeout"},
		{[]string{"preflight", device, "now"}, `takes no argument: "now"`},
		{[]string{"preflight", device, "--recorded=x", "--driver-root=/run"}, "does not go with"},
		{[]string{"preflight", device, "--state="}, "--state is empty"},
		{[]string{"serve"}, "--namespace is needed"},
		{[]string{"serve", "--namespace=ops"}, "--node is needed"},
		{[]string{"serve", "--namespace=ops", "--node=n", "--every=1ms"}, "1s and more"},
	} {
		code, out, errs := call(t, nil, c.args...)
		if code != exitUsage || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("%v: code %d, %s%s", c.args, code, out, errs)
		}
	}
	if code, out, _ := call(t, nil, "version"); code != exitOK || strings.TrimSpace(out) != "v1.2.3" {
		t.Errorf("version: %d %q", code, out)
	}
	if code, out, _ := call(t, nil, "--help"); code != exitOK || !strings.Contains(out, "preflight") {
		t.Errorf("help: %d %q", code, out)
	}
}

// TestWithoutDriver: this machine's own driver is asked unless recorded answers
// are named: there is none, and that is said.
func TestWithoutDriver(t *testing.T) {
	t.Parallel()
	code, out, _ := call(t, nil, "report", "--state="+t.TempDir(), "--nvml=libnvidia-ml-that-is-nowhere.so", "--kernel-log=/dev/null")
	if code != exitRefused || !strings.Contains(out, report.CodeNoDriver) {
		t.Errorf("%d: %s", code, out)
	}
}
