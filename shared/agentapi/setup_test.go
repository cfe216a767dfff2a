package agentapi

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// emptyLedger is a ledger of the test's own, by the clock.
func emptyLedger(t *testing.T, clock func() time.Time) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
