package plane

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKeep: a kept program and what it started end with stdin, and its own end is
// told.
func TestKeep(t *testing.T) {
	t.Parallel()
	t.Run("by itself", func(t *testing.T) {
		t.Parallel()
		in, w := io.Pipe()
		defer func() { _ = w.Close() }()
		var out bytes.Buffer
		if err := Keep([]string{"sh", "-c", "echo done; exit 3"}, in, &out, io.Discard); err == nil || err.Error() != "exit status 3" || out.String() != "done\n" {
			t.Errorf("got %v, %q", err, out.String())
		}
	})
	t.Run("with stdin", func(t *testing.T) {
		t.Parallel()
		in, w := io.Pipe()
		fifo := filepath.Join(t.TempDir(), "pids")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		kept := make(chan error, 1)
		go func() {
			kept <- Keep([]string{"sh", "-c", "sleep 600 & echo $$ $! > " + fifo + "; wait"}, in, io.Discard, io.Discard)
		}()
		b, err := os.ReadFile(fifo) // returns once they run
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		if err := <-kept; err == nil {
			t.Error("a program that was ended is told to have ended well")
		}
		for _, pid := range strings.Fields(string(b)) {
			for began := time.Now(); running(t, pid); time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatalf("process %s is left", pid)
				}
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		if err := Keep(nil, strings.NewReader(""), io.Discard, io.Discard); err == nil {
			t.Error("no program is no error")
		}
	})
}

// running tells whether a process is there and no zombie.
func running(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(n) + "/stat")
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}
