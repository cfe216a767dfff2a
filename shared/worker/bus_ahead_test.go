package worker_test

import (
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestBusBehindAClockThatWasAhead: what a clock that was ahead appended, and nobody put
// on the bus, is put there once the stream's clock is set back and the time is over that
// whoever appended it has.
func TestBusBehindAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.pass(400 * 24 * time.Hour)
	e, err := event.New("node.left", p.cluster, event.Subject{Kind: "node", ID: "nod_1", Name: "n1"}, p.now(), operation.Plane, nil, "ahead")
	p.no(err)
	_, err = event.Append(t.Context(), p.db, p.cluster, []event.Event{e}, nil)
	p.no(err)
	p.pass(-400 * 24 * time.Hour)
	head, version, err := event.LoadHead(t.Context(), p.db, p.cluster)
	p.no(err)
	writes, back, err := event.SetBackWrites(head, version, p.cluster, head.Received, p.now().UnixMilli())
	p.no(err)
	p.no(p.db.Commit(t.Context(), writes...))
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{10 * time.Second, 0}, {30 * time.Second, 2}} {
		p.pass(tt.after)
		p.no(p.relay().MendBus(t.Context()))
		if len(p.bus.ids) != tt.want {
			t.Errorf("on the bus: %v, of %s and %s", p.bus.ids, e.ID, back.ID)
		}
	}
}
