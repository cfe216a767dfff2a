package notify

import (
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Of what passed retention before it was told, events are counted, and not the sequences
// that a restore stands for.
func TestRestorePassesTheReceivers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("a"))
	p.run()
	p.tell(alert.TypeFiring, p.alert("b"))
	if err := p.db.Commit(t.Context(), ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: stream, Name: "alpha"})}); err != nil {
		t.Fatal(err)
	}
	if err := event.TellRestored(t.Context(), p.Store); err != nil {
		t.Fatal(err)
	}
	p.advance(time.Hour)
	if _, _, err := event.Trim(t.Context(), p.db, stream, p.clock()); err != nil {
		t.Fatal(err)
	}
	p.tell(alert.TypeFiring, p.alert("c"))
	p.run()
	if n, ids := p.Metrics.Read().Lost, s.ids(); n != 2 || len(ids) != 2 {
		t.Errorf("%d are counted as lost, %d came, want 2 and 2", n, len(ids))
	}
}
