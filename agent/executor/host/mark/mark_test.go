package mark

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

func open(t *testing.T, dir string) *Book {
	t.Helper()
	b, err := Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func entry(op string, run int, generation int64, state string) Entry {
	return Entry{Mark: report.Mark{State: state, Operation: op, Run: run, Generation: generation, Started: time.Unix(100, 0).UTC(), Done: time.Unix(101, 0).UTC()}}
}

func TestStale(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	if err := b.Put(entry("op_a", 2, 5, report.MarkDone)); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(entry("op_b", 1, 1, report.MarkDone)); err != nil {
		t.Fatal(err)
	}
	b.Close()
	b = open(t, dir)
	for by, stale := range map[By]bool{
		{"op_a", 2, 4}: true, {"op_a", 1, 4}: true, {"op_a", 1, 9}: true, {"op_a", 2, 5}: false, {"op_a", 2, 6}: false,
		{"op_a", 3, 6}: false, {"op_b", 1, 1}: false, {"op_c", 1, 1}: false,
	} {
		if got := b.Stale(by) != nil; got != stale {
			t.Errorf("%s stale %v, want %v", by, got, stale)
		}
	}
	if got := b.LastDone(); !got.Equal(time.Unix(101, 0)) {
		t.Errorf("last done %v", got)
	}
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	if _, err := Open(dir, uuid); !errors.Is(err, ErrHeld) {
		t.Fatalf("a second one: %v", err)
	}
	if _, err := Open(dir, "GPU-00000000-1111-2222-3333-444455556666"); err != nil {
		t.Errorf("another device: %v", err)
	}
	// The driver's tool inherits the lock: it lasts as long as the tool, whoever
	// started it.
	tool := exec.Command("sleep", "60")
	tool.ExtraFiles = []*os.File{b.File()}
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := Open(dir, uuid); !errors.Is(err, ErrHeld) {
		t.Errorf("while the tool runs: %v", err)
	}
	_ = tool.Process.Kill()
	_ = tool.Wait()
	if b, err := Open(dir, uuid); err != nil {
		t.Errorf("after it was let go: %v", err)
	} else {
		b.Close()
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	for i := range 40 {
		if err := b.Put(entry(fmt.Sprintf("op_%d", i), 1, 1, report.MarkDone)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Peek(dir, strings.ToUpper(uuid))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Entries) != maxMarks || p.Entries[0].Operation != "op_39" || p.Of("op_0") != nil {
		t.Errorf("%d entries, the newest %s", len(p.Entries), p.Entries[0].Operation)
	}
}

// TestUnreadable: a mark that cannot be read stops a reset; it does not pass for
// none.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, dir)
	b.Close()
	path := filepath.Join(dir, "devices", strings.ToLower(uuid)+".json")
	if err := os.WriteFile(path, []byte(`{"entries":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, uuid); err == nil || !strings.Contains(err.Error(), "read marks") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(dir, "../"+uuid); err == nil {
		t.Error("a path was taken for a UUID")
	}
}
