package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/auth"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
)

// childEnv says that the test binary runs as the child of TestFullDisk or
// TestReadOnlyFolder, and over which folder.
const childEnv = "OPSPLANE_TEST_FOLDER"

// child runs one test of this binary as a process of its own.
func child(t *testing.T, program, test, dir string, attr *syscall.SysProcAttr) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run=^"+test+"$", "-test.v")
	cmd.Dir = filepath.Dir(program)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("--- PASS: "+test)) {
		t.Errorf("the child did not run:\n%s", out)
	}
	return string(out)
}

// TestFullDisk runs out of space under a running engine and at a start: writes
// are refused, nothing that was there changes, and it goes on when there is
// space again. The child process has a limit on the size of its files.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSite(t, dir, nil)
	done := s.ask(2)
	s.once(done)
	s.stop()
	t.Log(child(t, os.Args[0], "TestFullDiskChild", dir, nil))
	if err := Verify(t.Context(), filepath.Join(dir, "data"), testWriter{t}); err != nil {
		t.Error(err)
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func TestFullDiskChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("it is run by TestFullDisk")
	}
	signal.Ignore(syscall.SIGXFSZ) // then a write past the limit is an error
	data := filepath.Join(dir, "data")
	limit := func(n uint64) {
		t.Helper()
		var l syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			n = l.Max
		}
		l.Cur = n
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
			t.Fatal(err)
		}
	}

	before := hashes(t, data)
	limit(512)
	e, err := open(t, data)
	limit(0)
	if err == nil {
		_ = e.Close()
		t.Error("it starts without space")
	} else {
		t.Logf("start without space: %v", err)
	}
	after := hashes(t, data)
	if before["opsplane.db"] != after["opsplane.db"] {
		t.Error("the ledger changed at a start without space")
	}

	if e, err = open(t, data); err != nil {
		t.Fatalf("start with space: %v", err)
	}
	s := &site{Engine: e, t: t, dir: dir, state: filepath.Join(dir, "sim")}
	info, err := os.Stat(LedgerPath(data) + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	limit(uint64(info.Size()) + 128<<10)
	var ids []string
	var refused error
	for i := range 12 { // different nodes; each admission takes a few pages of the log
		op, err := s.admit("node.cordon", fmt.Sprintf("node:node-%02d", i), nil)
		if err != nil {
			refused = err
			break
		}
		ids = append(ids, op.Spec.ID)
	}
	for i := 0; refused == nil && i < 1000; i++ {
		_, _, refused = e.Tokens.Create(t.Context(), auth.TokenSpec{Name: strings.Repeat("x", 60), Role: auth.Viewer, CreatedBy: "a test"})
	}
	if refused == nil {
		t.Fatal("the disk never fills")
	}
	t.Logf("%d accepted, then: %v", len(ids), refused)
	for _, id := range ids { // reading goes on
		if op := s.load(id); op.State.Phase != operation.Pending {
			t.Errorf("%s is %s", id, op.State.Phase)
		}
	}
	ready := func() (int, string) {
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		return w.Code, w.Body.String()
	}
	status, text := ready()
	t.Logf("readiness without space: %d %s", status, text)
	if !regexp.MustCompile(`the ledger refuses writes: (database or disk is full|disk I/O error)`).MatchString(text) || status != http.StatusServiceUnavailable {
		t.Error("it is ready without space, or does not say why not")
	}
	if strings.Contains(text, dir) {
		t.Error("it tells everybody where its files are")
	}
	limit(0)
	s.wait("it is ready again, by itself", time.Minute, func() bool { status, _ = ready(); return status == http.StatusOK })
	if _, _, err := e.Tokens.Create(t.Context(), auth.TokenSpec{Name: "again", Role: auth.Viewer, CreatedBy: "a test"}); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadOnlyFolder starts an engine on a folder that its user cannot write.
func TestReadOnlyFolder(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "opsplane-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	data := filepath.Join(dir, "data")
	e, err := open(t, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	before := hashes(t, data)
	program := os.Args[0]
	var attr *syscall.SysProcAttr
	if os.Getuid() == 0 { // nothing is read-only to root: the child is somebody else
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		program = filepath.Join(dir, "program")
		b, err := os.ReadFile(os.Args[0])
		if err == nil {
			// A process that a test beside this one starts has the file open until its
			// exec, and what is open for writing cannot be run (ETXTBSY).
			syscall.ForkLock.RLock()
			err = os.WriteFile(program, b, 0o755)
			syscall.ForkLock.RUnlock()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, data} {
		if err := os.Chmod(path, 0o555); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(path, 0o755) }()
	}
	for name := range before { // it can read them, and that is all
		if err := os.Chmod(filepath.Join(data, name), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(child(t, program, "TestReadOnlyFolderChild", data, attr))
	if diff := cmp.Diff(before, hashes(t, data)); diff != "" {
		t.Errorf("files changed:\n%s", diff)
	}
}

func TestReadOnlyFolderChild(t *testing.T) {
	data := os.Getenv(childEnv)
	if data == "" {
		t.Skip("it is run by TestReadOnlyFolder")
	}
	e, err := open(t, data)
	if err == nil {
		_ = e.Close()
		t.Fatal("it was opened")
	}
	if !errors.Is(err, ledgersqlite.ErrReadOnly) {
		t.Errorf("the error is: %v", err)
	}
	t.Logf("read-only: %v", err)
}
