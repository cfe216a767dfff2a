package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger/ledgertest"
)

// start opens a ledger in a folder of its own and closes it with the test.
func start(t *testing.T, o Options) *DB {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "ledger.db")
	}
	db, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestLedger(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T, now func() time.Time) ledgertest.Engine {
		// The janitor runs often: nothing may hang on when it does.
		db := start(t, Options{Now: now, JanitorEvery: 5 * time.Millisecond})
		return ledgertest.Engine{Ledger: db, Feed: db, ExpireFeed: func(t *testing.T) {
			if err := db.submit(t.Context(), nil, func(w *writer) error { _, err := trimFeed(w, 0); return err }); err != nil {
				t.Fatal(err)
			}
		}}
	})
}
