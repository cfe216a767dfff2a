package agentapi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// An agent's clock is told to be wrong once, and right once: by two heartbeats in
// a row, with a band between the two.
func TestClockIsTold(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	db := emptyLedger(t, clock)
	s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	var got []string
	from := int64(1)
	for i, skew := range []time.Duration{0, -time.Hour, 0, time.Hour, time.Hour, time.Hour, 20 * time.Second, 5 * time.Second, 5 * time.Second, -45 * time.Second, -31 * time.Second} {
		now = now.Add(5 * time.Second)
		if _, err := s.Heartbeat(context.Background(), "clu_1", protocol.Heartbeat{Name: "a", Boot: "b", SentAt: now.Add(skew)}); err != nil {
			t.Fatal(err)
		}
		evs, _, err := event.ReadStream(t.Context(), db, "clu_1", from, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			from = e.Sequence + 1
			if e.Type != event.TypeAgentOnline {
				got = append(got, fmt.Sprint(i)+" "+e.Type+" "+string(e.Detail))
			}
		}
	}
	want := []string{
		`4 agent.clock_skewed {"skew_ms":3600000,"boot":"b"}`,
		`8 agent.clock_ok {"skew_ms":5000,"boot":"b"}`,
		`10 agent.clock_skewed {"skew_ms":-31000,"boot":"b"}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// TestAStreamsClockAhead: events of agents that a stream's clock, which a process of
// the plane pushed ahead, receives much later than they came are counted and logged.
func TestAStreamsClockAhead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ahead time.Duration
		want  int64
	}{{0, 0}, {event.MaxClockAhead, 0}, {event.MaxClockAhead + time.Second, 3}, {2 * time.Hour, 3}} {
		t.Run(tt.ahead.String(), func(t *testing.T) {
			t.Parallel()
			now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
			clock := func() time.Time { return now }
			db := emptyLedger(t, clock)
			var log bytes.Buffer
			var told Received
			s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Received: func(_ context.Context, _ string, r Received) { told = r }}
			hb, err := s.Heartbeat(t.Context(), "clu_1", protocol.Heartbeat{Name: "a", Boot: "b", SentAt: now})
			if err != nil {
				t.Fatal(err)
			}
			head, version, err := event.LoadHead(t.Context(), db, "clu_1")
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Commit(t.Context(), event.ClockWrite(head, version, "clu_1", now.Add(tt.ahead).UnixMilli())); err != nil {
				t.Fatal(err)
			}
			req := protocol.EventsRequest{AgentID: hb.AgentID, Boot: "b"}
			for _, n := range []int64{1, 3} { // and a gap between the two
				req.Events = append(req.Events, protocol.Event{N: n, Type: "node.ready", At: now, Subject: protocol.Subject{Kind: "node", UID: "u"}})
			}
			if _, err := s.Events(t.Context(), "clu_1", req); err != nil {
				t.Fatal(err)
			}
			if got := s.Intake.Read(); got.Raised != tt.want || told.Raised != tt.want || got.Taken != 2 {
				t.Errorf("counted %+v, told %+v", got, told)
			}
			if logged := strings.Contains(log.String(), "stream=clu_1 ahead="+tt.ahead.String()); logged != (tt.want > 0) {
				t.Errorf("logged: %s", log.String())
			}
		})
	}
}
