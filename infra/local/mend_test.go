package local

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestRestoreMended: a backup that holds an event twice is not restored, which names the
// event and the way on; on that way it is, and holds. The backup stays as it is.
func TestRestoreMended(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	data, backup, restored := filepath.Join(dir, "data"), filepath.Join(dir, "backup.db"), filepath.Join(dir, "restored")
	e, err := New(ctx, Options{Data: data, Addr: "127.0.0.1:0", Timing: fast, Logger: quiet, RequestsPerSecond: 1e6, Waits: 1000})
	if err != nil {
		t.Fatal(err)
	}
	made, err := e.Registry.Create(ctx, PlaneCall(), "alpha")
	if err != nil {
		t.Fatal(err)
	}
	twice, err := event.New("node.left", made.Cluster.ID, event.Subject{Kind: "node", ID: "nod_1", Name: "n1"}, time.Now(), operation.Plane, nil, "once")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := event.Append(ctx, e.Store.Ledger, made.Cluster.ID, []event.Event{twice}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := Backup(ctx, data, backup); err != nil {
		t.Fatal(err)
	}
	err = Restore(ctx, backup, restored)
	if err == nil || !strings.Contains(err.Error(), twice.ID) || !strings.Contains(err.Error(), "--mend") {
		t.Errorf("restored: %v", err)
	}
	was, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if err := RestoreMended(ctx, backup, restored, &said); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(said.String(), "\n"); n != 1 || !strings.Contains(said.String(), twice.ID) {
		t.Errorf("said %q", said.String())
	}
	if is, err := os.ReadFile(backup); err != nil || !bytes.Equal(was, is) {
		t.Errorf("the backup is not as it was: %v", err)
	}
	if err := Verify(ctx, restored, &said); err != nil {
		t.Errorf("what was restored does not hold: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".opsplane-mend-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if !hasRepeated(ctx, t, restored, made.Cluster.ID) {
		t.Error("nothing is told in its place")
	}
}

func hasRepeated(ctx context.Context, t *testing.T, data, stream string) bool {
	t.Helper()
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(data), ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	evs, _, err := event.ReadStream(ctx, ledger.Reader(db), stream, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs {
		if e.Type == event.TypeRepeated {
			return true
		}
	}
	return false
}
