// Package systemd holds the agent's service to what the agent takes.
package systemd

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/agent/agentcmd"
	"github.com/opsplane/opsplane/agent/executor/host"
)

// unit reads the service's settings, each with all of its values.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("opsplane-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '[' {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("%q is no setting", line)
		}
		out[k] = append(out[k], v)
	}
	return out
}

var variable = regexp.MustCompile(`\$\{[A-Z_]+\}`)

// TestCommandLine: the agent takes the flags that the service gives it.
func TestCommandLine(t *testing.T) {
	u := unit(t)
	if len(u["ExecStart"]) != 1 {
		t.Fatalf("ExecStart %v", u["ExecStart"])
	}
	args := strings.Fields(variable.ReplaceAllString(u["ExecStart"][0], "https://plane.example"))[1:]
	var said bytes.Buffer
	if code := agentcmd.Main(t.Context(), append(args, "--version"), nil, &said, agentcmd.Sim(), host.Kind()); code != 0 || !strings.Contains(said.String(), "opsplane-agent ") {
		t.Errorf("code %d: %s", code, said.String())
	}
	if code := agentcmd.Main(t.Context(), append(args, "--no-such-flag", "--version"), nil, &said, agentcmd.Sim(), host.Kind()); code != 2 {
		t.Errorf("a flag that nobody knows: code %d", code)
	}
}

// TestState: what has to outlive a reboot is in folders that the service keeps.
func TestState(t *testing.T) {
	u := unit(t)
	kept := strings.Fields(strings.Join(u["StateDirectory"], " "))
	for _, dir := range []string{"/var/lib/opsplane-agent", host.DefaultState} {
		if !strings.Contains(u["ExecStart"][0], " "+dir) || !slices.Contains(kept, strings.TrimPrefix(dir, "/var/lib/")) {
			t.Errorf("%s is not kept: StateDirectory=%v", dir, kept)
		}
	}
	for _, k := range []string{"PrivateDevices", "DevicePolicy", "ProtectKernelLogs", "ProtectProc"} {
		if _, set := u[k]; set {
			t.Errorf("%s hides from the agent what a reset needs", k)
		}
	}
}
