package react

import (
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
)

// A page looks past the alerts that do not match, as many as maxLooked; behind more of
// them it is empty, and the next one begins where it ended.
func TestAlertsBehindManyOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var writes []ledger.Write
	n := 0
	open := func(rule string, count int) {
		t.Helper()
		for range count {
			n++
			a := alert.Alert{ID: fmt.Sprintf("alr_%026d", n), Rule: rule, State: alert.Firing, Stream: stream, Cluster: stream, Since: t0.Add(-time.Duration(n) * time.Millisecond)}
			if writes = append(writes, ledger.Write{Item: alertItem(&a)}); len(writes) < ledger.MaxWrites {
				continue
			}
			if err := b.db.Commit(t.Context(), writes...); err != nil {
				t.Fatal(err)
			}
			writes = nil
		}
	}
	open("other", 2999) // the youngest, which are listed first
	open("ra", 1)
	open("other", maxLooked+lookedAt-1)
	open("ra", 1)
	open("other", 2*ledger.MaxWrites-n%ledger.MaxWrites)
	f := Filter{Rule: "ra", States: []alert.State{alert.Firing}}
	want := []struct{ found, more bool }{{true, true}, {false, true}, {true, false}}
	after := ""
	for i, w := range want {
		limit := 50
		if i == 0 {
			limit = 1
		}
		got, next, err := b.service.Alerts(t.Context(), f, after, limit)
		if err != nil || (len(got) == 1) != w.found || len(got) > 1 || (next != "") != w.more {
			t.Fatalf("page %d: %d alerts, next %q, %v; want %+v", i, len(got), next, err, w)
		}
		after = next
	}
}
