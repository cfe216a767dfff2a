package local

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/auth"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
)

func open(t *testing.T, data string) (*Engine, error) {
	t.Helper()
	return New(t.Context(), Options{Data: data, Addr: "127.0.0.1:0", Timing: fast, Logger: quiet})
}

// hashes returns what each file of a folder holds.
func hashes(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		sum := sha256.Sum256(b)
		out[d.Name()] = hex.EncodeToString(sum[:8])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRefusedFolders: a folder that the engine cannot or must not use is refused
// with an error that says why, and the ledger in it stays as it is.
func TestRefusedFolders(t *testing.T) {
	t.Parallel()
	pragma := func(what string) func(t *testing.T, data string) {
		return func(t *testing.T, data string) {
			db, err := sql.Open("sqlite", LedgerPath(data))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for _, q := range strings.Split(what, ";") {
				if _, err := db.Exec(q); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, data string)
		is   error
		says string
	}{
		{"newer", pragma("pragma user_version = 9999"), ledgersqlite.ErrNewerVersion, "9999"},
		{"another program's", pragma("pragma application_id = 42"), ledgersqlite.ErrNotLedger, "42"},
		{"no database", func(t *testing.T, data string) {
			write(t, LedgerPath(data), strings.Repeat("this is a letter to my aunt\n", 500))
		}, ledgersqlite.ErrNotLedger, LedgerPath("")},
		{"text, short", func(t *testing.T, data string) { write(t, LedgerPath(data), "hello") }, ledgersqlite.ErrNotLedger, LedgerPath("")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			e, err := open(t, data)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			tc.make(t, data)
			before := hashes(t, data)
			e, err = open(t, data)
			if err == nil {
				_ = e.Close()
				t.Fatal("it was opened")
			}
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is: %v", err)
			}
			after := hashes(t, data)
			for _, name := range []string{"opsplane.db.lock", "opsplane.db-shm"} { // no data
				delete(before, name)
				delete(after, name)
			}
			if wal := LedgerPath(data) + "-wal"; before["opsplane.db-wal"] == "" { // an empty one may be made
				if info, err := os.Stat(wal); err == nil && info.Size() == 0 {
					delete(after, "opsplane.db-wal")
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("files changed:\n%s", diff)
			}
		})
	}
	t.Run("a file where the folder should be", func(t *testing.T) {
		t.Parallel()
		data := filepath.Join(t.TempDir(), "data")
		write(t, data, "a file")
		if e, err := open(t, data); err == nil {
			_ = e.Close()
			t.Error("it was opened")
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLockedFolder: one engine at a time has a folder; a second is told which
// process the first is.
func TestLockedFolder(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	first, err := open(t, data)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := open(t, data); err == nil {
		_ = e.Close()
		t.Error("two engines have one folder")
	} else if !errors.Is(err, ledgersqlite.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("the error is: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := open(t, data)
	if err != nil {
		t.Fatalf("after the first has closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestQueueLost loses every doorbell and then the queue's file, between two
// starts: the sweep rings again.
func TestQueueLost(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deleted", "damaged"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := newSite(t, dir, func(e *Engine) {
				e.Relay.Queue = &meddler{Sender: e.queue, meddle: func(*meddler, string, []queue.Outgoing) error { return nil }}
			})
			ids := s.ask(6)
			s.wait("they are dispatched", time.Minute, func() bool {
				for _, id := range ids {
					if s.load(id).State.Phase != operation.Dispatched {
						return false
					}
				}
				return true
			})
			s.stop()
			files, err := filepath.Glob(filepath.Join(dir, "data", queueFile+"*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("files of the queue: %v, %v", files, err)
			}
			for _, f := range files {
				if how == "damaged" {
					write(t, f, strings.Repeat("damaged", 1000))
				} else if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
			s = newSite(t, dir, nil)
			s.once(ids)
		})
	}
}

// TestAdminToken: a start that was killed around the making of the first token
// never leaves a folder without one that is known.
func TestAdminToken(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	e, err := open(t, data)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(data, adminToken)
	write(t, path, "opt_01m8merw1xq1s7np51zz69gke1_killed-before-the-commit\n")
	token, fresh, err := e.AdminToken(t.Context())
	if err != nil || !fresh {
		t.Fatalf("fresh %v, %v", fresh, err)
	}
	p, err := e.Tokens.Authenticate(t.Context(), token)
	if err != nil || !p.Can(auth.Force, "") {
		t.Errorf("the token is for %+v, %v", p, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	same, fresh, err := e.AdminToken(t.Context())
	if err != nil || fresh || same != token {
		t.Errorf("asked again: fresh %v, %v, the same %v", fresh, err, same == token)
	}
	// The commit fails: the file has a token that counts for nothing.
	stop, cancel := context.WithCancel(t.Context())
	cancel()
	other := filepath.Join(t.TempDir(), "data")
	f, err := open(t, other)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.AdminToken(stop); err == nil {
		t.Error("a token was made with a context that had ended")
	}
	if token, fresh, err = f.AdminToken(t.Context()); err != nil || !fresh || token == "" {
		t.Errorf("after that: fresh %v, %v", fresh, err)
	}
	if err := errors.Join(e.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

// TestListen: tokens never go over a wire in the clear unless that is asked for.
func TestListen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		addr, cert, key string
		insecure, ok    bool
	}{
		{addr: "127.0.0.1:0", ok: true},
		{addr: "localhost:0", ok: true},
		{addr: "[::1]:0", ok: true},
		{addr: "0.0.0.0:0"},
		{addr: ":0"},
		{addr: "[::]:0"},
		{addr: "127.0.0.1.example.com:0"},
		{addr: "0.0.0.0:0", insecure: true, ok: true},
		{addr: "127.0.0.1:0", cert: "only-this.pem"},
		{addr: "127.0.0.1:0", key: "only-this.pem"},
		{addr: "127.0.0.1"},
	} {
		e := &Engine{opts: Options{Addr: tc.addr, TLSCert: tc.cert, TLSKey: tc.key, Insecure: tc.insecure}}
		l, err := e.Listen(t.Context())
		if err == nil {
			_ = l.Close()
		}
		if tc.addr == "[::1]:0" && err != nil && strings.Contains(err.Error(), "assign requested address") {
			continue // a machine without IPv6
		}
		if (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
