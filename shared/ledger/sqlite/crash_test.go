package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Each of these variables, set to a ledger's path, makes the test binary another
// process of a test: one that commits until it is killed, one that cannot write.
const (
	childEnv      = "LEDGER_CRASH_CHILD"
	unwritableEnv = "LEDGER_UNWRITABLE_CHILD"
)

func TestMain(m *testing.M) {
	for env, child := range map[string]func(string) error{childEnv: crashChild, unwritableEnv: openUnwritable} {
		if path := os.Getenv(env); path != "" {
			if err := child(path); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

const (
	crashWorkers = 8
	crashParts   = 5 // items of one commit
)

// crashWrites is the n-th commit of a worker: a counter that must hold n-1, and
// new items.
func crashWrites(worker int, n int64) []ledger.Write {
	text := []byte(fmt.Sprintf("%d-%d", worker, n))
	writes := []ledger.Write{{Item: ledger.Item{Key: ledger.Key{PK: "counter", SK: fmt.Sprint(worker)}, Data: text}, Expect: n - 1, Feed: true}}
	for part := range crashParts {
		writes = append(writes, ledger.Write{Item: ledger.Item{
			Key:   ledger.Key{PK: fmt.Sprintf("commit-%d-%d", worker, n), SK: fmt.Sprint(part)},
			Data:  []byte(strings.Repeat(string(text)+" ", 50*part)),
			Index: map[ledger.Index]ledger.Key{ledger.List: {PK: "all", SK: fmt.Sprintf("%d-%d", worker, n)}},
		}})
	}
	return writes
}

// crashChild commits from many goroutines and prints each commit once it is
// acknowledged.
func crashChild(path string) error {
	ctx := context.Background()
	db, err := Open(ctx, Options{Path: path, JanitorEvery: time.Millisecond})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for worker := range crashWorkers {
		go func() {
			n := int64(0)
			it, err := db.Get(ctx, ledger.Key{PK: "counter", SK: fmt.Sprint(worker)})
			if err == nil {
				n = it.Version
			} else if !errors.Is(err, ledger.ErrNotFound) {
				failed <- err
				return
			}
			for {
				n++
				if err := db.Commit(ctx, crashWrites(worker, n)...); err != nil {
					failed <- err
					return
				}
				fmt.Printf("%d %d\n", worker, n) // one write: lines do not mix
			}
		}()
	}
	return <-failed
}

func TestKilledProcessKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	total := 0
	acked := map[int]int64{}
	for round := range 6 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), childEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed in the middle of its work, at a moment that varies by round.
		lines := bufio.NewReader(out)
		for seen := 0; ; seen++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				break
			}
			var worker int
			var n int64
			if _, err := fmt.Sscanf(line, "%d %d", &worker, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			acked[worker] = max(acked[worker], n)
			total++
			if seen == 40+97*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("the child ended by itself: %v", err)
		}
		checkAfterCrash(t, path, acked)
	}
	t.Logf("%d acknowledged commits over 6 kills", total)
}

// checkAfterCrash requires every acknowledged commit to be there whole, and no
// other to be there in part.
func checkAfterCrash(t *testing.T, path string, acked map[int]int64) {
	t.Helper()
	db, err := Open(t.Context(), Options{Path: path})
	if err != nil {
		t.Fatalf("open after kill: %v", err)
	}
	defer db.Close()
	for worker := range crashWorkers {
		n := int64(0)
		if it, err := db.Get(t.Context(), ledger.Key{PK: "counter", SK: fmt.Sprint(worker)}); err == nil {
			n = it.Version
		} else if !errors.Is(err, ledger.ErrNotFound) {
			t.Fatal(err)
		}
		if n < acked[worker] {
			t.Fatalf("worker %d: commit %d was acknowledged, the ledger ends at %d", worker, acked[worker], n)
		}
		for i := int64(1); i <= n+1; i++ {
			page, err := db.Query(t.Context(), ledger.Query{PK: fmt.Sprintf("commit-%d-%d", worker, i)})
			if err != nil {
				t.Fatal(err)
			}
			want := crashWrites(worker, i)[1:]
			if i > n {
				want = nil
			}
			if len(page.Items) != len(want) {
				t.Fatalf("worker %d commit %d of %d: %d items, want %d", worker, i, n, len(page.Items), len(want))
			}
			for j, it := range page.Items {
				if string(it.Data) != string(want[j].Item.Data) {
					t.Fatalf("item %s: other data than was put", it.Key)
				}
			}
		}
	}
	if text := integrity(t, path); text != "ok" {
		t.Fatalf("integrity check: %s", text)
	}
}

func integrity(t *testing.T, path string) string {
	t.Helper()
	c, err := openConn(path, 1) // SQLITE_OPEN_READONLY
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	s, err := c.prepare("pragma integrity_check")
	if err != nil {
		t.Fatal(err)
	}
	defer s.reset()
	if ok, err := s.step(); !ok {
		t.Fatal(err)
	}
	return s.textAt(0)
}
