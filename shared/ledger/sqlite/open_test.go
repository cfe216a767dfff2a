package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// made returns the path of a closed ledger with one item.
func made(t *testing.T) string {
	t.Helper()
	db := start(t, Options{})
	if err := db.Commit(t.Context(), simple("p", "s", "kept", 0)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(db.opts.Path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the log is still there after close: %v", err)
	}
	return db.opts.Path
}

func sql(t *testing.T, path, text string) {
	t.Helper()
	c, err := openConn(path, 2|4) // SQLITE_OPEN_READWRITE, SQLITE_OPEN_CREATE
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.exec(text); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRefusedFiles(t *testing.T) {
	t.Parallel()
	newer := made(t)
	sql(t, newer, fmt.Sprintf("pragma user_version = %d", schemaVersion+1))
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	sql(t, foreign, "create table t (x)")
	text := filepath.Join(t.TempDir(), "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{newer: ErrNewerVersion, foreign: ErrNotLedger, text: ErrNotLedger} {
		before := content(t, path)
		for _, readOnly := range []bool{false, true} {
			db, err := Open(t.Context(), Options{Path: path, ReadOnly: readOnly})
			if !errors.Is(err, want) || db != nil {
				t.Errorf("%s, read-only %t: got %v, want %v", filepath.Base(path), readOnly, err, want)
			}
		}
		if content(t, path) != before {
			t.Errorf("%s was changed", path)
		}
		if _, err := os.Stat(path + ".lock"); path != newer && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s has a lock beside it: %v", path, err)
		}
	}
	missing := filepath.Join(t.TempDir(), "none.db")
	if _, err := Open(t.Context(), Options{Path: missing, ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got %v, want ErrNotExist", err)
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Error("opening read-only made a file")
	}
	if _, err := Open(t.Context(), Options{Path: filepath.Join(text, "ledger.db")}); err == nil {
		t.Error("a folder that is a file: got no error")
	}
	if _, err := Open(t.Context(), Options{}); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("no path: got %v, want ErrInvalid", err)
	}
}

func TestFileIsPrivate(t *testing.T) {
	t.Parallel()
	db := start(t, Options{Path: filepath.Join(t.TempDir(), "new", "ledger.db")})
	if err := db.Commit(t.Context(), simple("p", "s", "", 0)); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		st, err := os.Stat(db.opts.Path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", st.Name(), st.Mode())
		}
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	_, err := Open(t.Context(), Options{Path: db.opts.Path})
	var locked *LockedError
	if !errors.Is(err, ErrLocked) || !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Fatalf("got %v, want ErrLocked by process %d", err, os.Getpid())
	}
	if err := db.Commit(t.Context(), simple("p", "s", "", 0)); err != nil {
		t.Errorf("the holder: %v", err)
	}
	db.Close()
	start(t, Options{Path: db.opts.Path})
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	if err := db.Commit(t.Context(), simple("p", "s", "1", 0)); err != nil {
		t.Fatal(err)
	}
	ro := start(t, Options{Path: db.opts.Path, ReadOnly: true})
	if err := ro.Commit(t.Context(), simple("p", "s", "2", 1)); !errors.Is(err, ErrReadOnly) || !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("commit: got %v, want ErrReadOnly", err)
	}
	changes, next, err := ro.Changes(t.Context(), "", 10, 0)
	if err != nil || len(changes) != 1 {
		t.Fatalf("changes: got %v, %v", changes, err)
	}
	if err := db.Commit(t.Context(), simple("p", "s", "2", 1)); err != nil {
		t.Fatal(err)
	}
	if it, err := ro.Get(t.Context(), ledger.Key{PK: "p", SK: "s"}); err != nil || string(it.Data) != "2" {
		t.Errorf("get: got %q, %v", it.Data, err)
	}
	if changes, _, err = ro.Changes(t.Context(), next, 10, 10*time.Second); err != nil || len(changes) != 1 || changes[0].Version != 2 {
		t.Errorf("changes: got %v, %v", changes, err)
	}
}

// TestReadOnlyFolder runs its checks as a user who cannot write there: root may
// write everywhere, so for root that is a child process.
func TestReadOnlyFolder(t *testing.T) {
	t.Parallel()
	path := made(t)
	dir := filepath.Dir(path)
	os.Remove(path + ".lock")
	if err := os.Chmod(path, 0o444); err != nil {
		t.Fatal(err)
	}
	for folder, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o555} {
		if err := os.Chmod(folder, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	if os.Getuid() != 0 {
		if err := openUnwritable(path); err != nil {
			t.Error(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self) // the original lies where only root may go
	if err != nil {
		t.Fatal(err)
	}
	self = filepath.Join(dir, "child")
	// A process that a test beside this one starts has the file open until its exec,
	// and what is open for writing cannot be run (ETXTBSY): nobody forks meanwhile.
	syscall.ForkLock.RLock()
	err = os.WriteFile(self, binary, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), unwritableEnv+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v\n%s", err, out)
	}
}

// openUnwritable opens a ledger that this user can only read.
func openUnwritable(path string) error {
	ctx := context.Background()
	if _, err := Open(ctx, Options{Path: path}); !errors.Is(err, ErrReadOnly) {
		return fmt.Errorf("open: got %w, want ErrReadOnly", err)
	}
	db, err := Open(ctx, Options{Path: path, ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open read-only: %w", err)
	}
	defer db.Close()
	if it, err := db.Get(ctx, ledger.Key{PK: "p", SK: "s"}); err != nil || string(it.Data) != "kept" {
		return fmt.Errorf("get: got %q, %w", it.Data, err)
	}
	return nil
}

// TestLockedByProcess opens a ledger that another process holds.
func TestLockedByProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has committed
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Path: path})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != cmd.Process.Pid {
		t.Errorf("got %v, want ErrLocked by process %d", err, cmd.Process.Pid)
	}
}
