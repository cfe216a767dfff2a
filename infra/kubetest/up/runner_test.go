package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestSweep: what a killed run left goes, and what a run has stays.
func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"left", "running", "new"} {
		if err := os.Mkdir(filepath.Join(dir, statePrefix+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"left", "running"} {
		unlock, err := lock(filepath.Join(dir, statePrefix+name, stateLock))
		if err != nil {
			t.Fatal(err)
		}
		if name == "left" {
			unlock()
		} else {
			defer unlock()
		}
	}
	if err := sweep(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{statePrefix + "new", statePrefix + "running"}) {
		t.Errorf("left are %q", got)
	}
}

// TestPrune: the builds used last stay.
func TestPrune(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, name := range []string{"oldest", "middle", "newest"} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-3) * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"middle", "newest"}) {
		t.Errorf("left are %q", got)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestLastLines: a run's closing lines are those of its packages and of what
// failed, however they come.
func TestLastLines(t *testing.T) {
	t.Parallel()
	text := "=== RUN x\n--- FAIL: TestA (0.1s)\n    a.go:1: bad\nFAIL\nFAIL\tp/a\t1.2s\nok  \tp/b\t3.4s\npanic: oh\n"
	want := []string{"--- FAIL: TestA (0.1s)", "FAIL\tp/a\t1.2s", "ok  \tp/b\t3.4s", "panic: oh"}
	for _, size := range []int{1, 7, len(text)} {
		var l lastLines
		for part := range slices.Chunk([]byte(text), size) {
			if n, err := l.Write(bytes.Clone(part)); n != len(part) || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}
		}
		if !slices.Equal(l.lines, want) {
			t.Errorf("in parts of %d: %q, want %q", size, l.lines, want)
		}
	}
}
