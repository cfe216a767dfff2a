package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

// script is a host's program that does as it is told, in a folder of its own.
func script(t *testing.T, text string) (path, dir string) {
	t.Helper()
	dir = t.TempDir()
	path = filepath.Join(dir, "helper")
	// A process that a test beside this one starts has the file open until its exec,
	// and what is open for writing cannot be run (ETXTBSY): nobody forks meanwhile.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+dir+"\n"+text), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path, dir
}

// TestHungHelper: a driver that hangs keeps no process of those that only look; a
// reset goes on, whoever waits for it.
func TestHungHelper(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"report", report.VerbPreflight, report.VerbVerify, report.VerbMark, report.VerbReset} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			helper, dir := script(t, "sleep 600 &\necho $$ $! >pid.new; mv pid.new pid; wait\n")
			b := setup(t, func(o *Options) { o.Helper = helper })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end := make(chan error, 1)
			go func() {
				var err error
				if what == "report" {
					_, err = b.e.report(ctx)
				} else {
					_, err = b.e.ask(ctx, &protocol.Assignment{Operation: "op_a", Run: 1, Generation: 1, TargetUID: gpuUUID}, what)
				}
				end <- err
			}()
			group, child := 0, 0
			for child == 0 {
				raw, err := os.ReadFile(filepath.Join(dir, "pid"))
				if err != nil {
					time.Sleep(5 * time.Millisecond)
				} else if _, err := fmt.Sscan(string(raw), &group, &child); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
			cancel()
			if err := <-end; !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
			gone := false
			for end := time.Now().Add(time.Minute); time.Now().Before(end); { // the kernel takes its time
				if gone = dead(child); gone || what == report.VerbReset {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if gone == (what == report.VerbReset) {
				t.Errorf("its child is gone: %v", gone)
			}
		})
	}
}

// dead tells whether a process has ended, whoever has yet to take note of it.
func dead(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(raw), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

// TestOneReportAtATime: however many ask, and while one that does not end is owed
// no other is started.
func TestOneReportAtATime(t *testing.T) {
	t.Parallel()
	h := report.Host{Node: "bare-1", Source: report.SourceRecorded, At: time.Now().UTC(), Devices: []report.Device{}}
	helper, dir := script(t, "mkdir busy || echo two at a time >>wrong\nsleep 0.05\ncat answer\nrmdir busy\n")
	if err := os.WriteFile(filepath.Join(dir, "answer"), h.Data(), 0o600); err != nil {
		t.Fatal(err)
	}
	b := setup(t, func(o *Options) { o.Helper = helper })
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if _, err := b.e.report(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if raw, err := os.ReadFile(filepath.Join(dir, "wrong")); err == nil {
		t.Errorf("%s", raw)
	}
	b.e.reporting <- struct{}{} // one that the kernel does not let go
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.e.report(ctx); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("while one is owed: %v", err)
	}
}
