package agentapi

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// TestStopsAndRestarts: that an agent stops is told once in each run of it, and that
// one came back as another process only where the one before did not say so.
func TestStopsAndRestarts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	db := emptyLedger(t, clock)
	s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	from := int64(1)
	var got []string
	for i, hb := range []protocol.Heartbeat{
		{Boot: "b1", Version: "v1"}, // 0
		{Boot: "b1", Version: "v1"},
		{Boot: "b1", Version: "v1", Stopping: true, Leases: 2},
		{Boot: "b1", Version: "v1", Stopping: true},
		{Boot: "b2", Version: "v2"}, // as it should be
		{Boot: "b2", Version: "v2"},
		{Boot: "b3", Version: "v2"}, // b2 was killed
		{Boot: "b3", Version: "v2"},
		{Boot: "b4", Version: "v2", Stopping: true}, // it came only to go
		{Boot: "b5", Version: "v2"},
	} {
		now = now.Add(5 * time.Second)
		hb.Name, hb.SentAt = "a", now
		if _, err := s.Heartbeat(t.Context(), "clu_1", hb); err != nil {
			t.Fatal(err)
		}
		evs, _, err := event.ReadStream(t.Context(), db, "clu_1", from, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			from = e.Sequence + 1
			got = append(got, fmt.Sprint(i)+" "+e.Type+" "+string(e.Detail))
			if e.Subject.Kind != event.KindAgent || e.Subject.Name != "a" || e.Actor.ID != e.Subject.ID {
				t.Errorf("%s is about %+v, by %+v", e.Type, e.Subject, e.Actor)
			}
		}
	}
	want := []string{
		`0 agent.online {"version":"v1","boot":"b1"}`,
		`2 agent.stopping {"version":"v1","boot":"b1","leases":2}`,
		`4 agent.online {"version":"v2","boot":"b2"}`,
		`6 agent.restarted {"version":"v2","boot":"b3","before":"b2","last_seen":"2026-07-01T12:00:30Z"}`,
		`6 agent.online {"version":"v2","boot":"b3"}`,
		`8 agent.stopping {"version":"v2","boot":"b4","leases":0}`,
		`9 agent.online {"version":"v2","boot":"b5"}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
