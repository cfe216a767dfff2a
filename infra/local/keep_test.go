package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/record"
)

// TestRestoreAsksForTheFleet: a restored folder asks the reporter of each cluster for all
// it sees, whenever the backup was made: also where no heartbeat came since.
func TestRestoreAsksForTheFleet(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	data, backup, restored := filepath.Join(dir, "data"), filepath.Join(dir, "backup.db"), filepath.Join(dir, "restored")
	open := func(data string) *record.Store {
		t.Helper()
		db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(data)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return &record.Store{Ledger: db, Now: time.Now}
	}
	e, err := New(ctx, Options{Data: data, Addr: "127.0.0.1:0", Timing: fast, Logger: quiet, RequestsPerSecond: 1e6, Waits: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var clusters []string
	for _, name := range []string{"asked", "one", "two"} {
		made, err := e.Registry.Create(ctx, PlaneCall(), name)
		if err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, made.Cluster.ID)
		r := fleet.Reporter{Agent: "agt_1", Boot: "b", Snapshot: "s", Mark: 7, Asked: name == "asked"}
		if err := e.Store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: record.ReporterKey(made.Cluster.ID), Data: record.Encode(r)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := Backup(ctx, data, backup); err != nil {
		t.Fatal(err)
	}
	if err := Restore(ctx, backup, restored); err != nil {
		t.Fatal(err)
	}
	st := open(restored)
	for _, c := range clusters {
		it, err := st.Ledger.Get(ctx, record.ReporterKey(c))
		if err != nil {
			t.Fatal(err)
		}
		r, err := record.Decode[fleet.Reporter](it)
		if err != nil || !r.Asked || r.Agent != "agt_1" || r.Mark != 7 {
			t.Errorf("the reporter of %s is %+v, %v: it is not asked for the inventory", c, r, err)
		}
	}
}

// No engine starts on what a restore left that was cut off; done again, it is whole.
func TestRestoreCutOff(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	data, backup, restored := filepath.Join(dir, "data"), filepath.Join(dir, "backup.db"), filepath.Join(dir, "restored")
	start := func(data string) error {
		e, err := New(ctx, Options{Data: data, Addr: "127.0.0.1:0", Timing: fast, Logger: quiet})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	if err := errors.Join(start(data), Backup(ctx, data, backup), Fork(ctx, backup, stagePath(restored))); err != nil {
		t.Fatal(err)
	}
	if err := start(restored); err == nil || !strings.Contains(err.Error(), "restore again") {
		t.Errorf("it started on half a restore: %v", err)
	}
	if err := errors.Join(Restore(ctx, backup, restored), start(restored)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stagePath(restored)); !os.IsNotExist(err) {
		t.Errorf("it left %v", err)
	}
	if err := Restore(ctx, backup, restored); err == nil {
		t.Error("a folder that is in use was restored into")
	}
}
