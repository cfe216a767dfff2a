package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestNight plays the night and finds it as it is checked in.
func TestNight(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "opsplane")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "github.com/opsplane/opsplane/infra/local/opsplane")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	list := filepath.Join("..", "..", "docs", "night.txt")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alert.ShippedRules() {
		if slices.Contains([]string{"stream-unreadable", "receiver-failing", "plane-clock-ahead"}, r.Rule.Name) {
			continue // a fleet has no fault that damages the store, a receiver or the plane's clock; shared/alert plays those
		}
		if !strings.Contains(string(text), "\n"+r.Rule.Name+": ") {
			t.Errorf("nothing sets off %s", r.Rule.Name)
		}
	}
	if err := run(program, list, false); err != nil {
		t.Error(err)
	}
}
