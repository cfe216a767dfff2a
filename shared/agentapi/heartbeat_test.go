package agentapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// Agents are told the cadence that goes with the time after which they count as
// silent, and where their queue is; the reporter keeps its part for as long.
func TestCadence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timing operation.Timing
		want   int64
		keeps  time.Duration
	}{
		"one machine": {operation.OneMachine, 0, 14 * time.Second},
		"AWS":         {operation.AWS, 30_000, 89 * time.Second},
		"a test":      {operation.Timing{Lease: time.Second, CallDeadline: time.Second, AgentSilent: time.Second}, 0, 14 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
			clock := func() time.Time { return now }
			db := emptyLedger(t, clock)
			s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: c.timing}, Logger: slog.New(slog.DiscardHandler),
				QueueURL: func(cluster string) string { return "https://sqs.example/1/" + cluster }}
			beat := func(agent string) protocol.HeartbeatAnswer {
				a, err := s.Heartbeat(context.Background(), "clu_1", protocol.Heartbeat{Name: agent, Boot: "b-" + agent})
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			a := beat("a")
			if a.HeartbeatMS != c.want || a.QueueURL != "https://sqs.example/1/clu_1" || !a.Reporter {
				t.Errorf("answered %+v, want a heartbeat each %d ms", a, c.want)
			}
			now = now.Add(c.keeps)
			if beat("b").Reporter {
				t.Errorf("another agent reports %s after the reporter's heartbeat", c.keeps)
			}
			now = now.Add(2 * time.Second)
			if !beat("b").Reporter {
				t.Error("nobody reports once the reporter is silent")
			}
		})
	}
}

// TestCutOffReporter: an agent that is cut off from its cluster has the lease on the
// inventory run out, for another that is not; as long as there is none, it goes on.
func TestCutOffReporter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	db := emptyLedger(t, clock)
	s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	beat := func(agent string, cutOff bool) bool {
		t.Helper()
		now = now.Add(5 * time.Second)
		a, err := s.Heartbeat(context.Background(), "clu_1", protocol.Heartbeat{Name: agent, Boot: "b-" + agent, CutOff: cutOff})
		if err != nil {
			t.Fatal(err)
		}
		return a.Reporter
	}
	if beat("a", true) {
		t.Error("an agent that is cut off became the reporter")
	}
	if !beat("a", false) {
		t.Fatal("nobody reports")
	}
	for i := range 10 {
		if b := beat("b", true); !beat("a", true) || b {
			t.Fatalf("heartbeat %d: the reporter changed although nobody sees the cluster", i)
		}
	}
	if !beat("a", false) || beat("b", false) {
		t.Error("the reporter changed although it sees the cluster again")
	}
	took := false
	for range 4 { // its lease is of 15 s
		_ = beat("a", true)
		took = beat("b", false)
	}
	if !took || beat("a", true) || beat("a", false) || !beat("b", false) {
		t.Error("the agent that sees the cluster is not the reporter")
	}
}

// unsure is a ledger that applies its next commit and loses the answer.
type unsure struct {
	ledger.Ledger
	lose bool
}

func (l *unsure) Commit(ctx context.Context, ws ...ledger.Write) error {
	err := l.Ledger.Commit(ctx, ws...)
	if err == nil && l.lose {
		l.lose = false
		err = fmt.Errorf("commit: %w", ledger.ErrUnknown)
	}
	return err
}

// TestOfferStaysDue: what waited is offered by a later heartbeat when the arrival's
// own could not, or ended between the two; and once only.
func TestOfferStaysDue(t *testing.T) {
	t.Parallel()
	db := emptyLedger(t, time.Now)
	var fails error
	offered := 0
	s := &Service{Store: &record.Store{Ledger: db, Now: time.Now, Timing: operation.AWS}, Logger: slog.New(slog.DiscardHandler),
		Reoffer: func(context.Context, string) error { offered++; return fails }}
	beat := func(hb protocol.Heartbeat) {
		t.Helper()
		if _, err := s.Heartbeat(t.Context(), "clu_1", hb); err != nil {
			t.Fatal(err)
		}
	}
	here, gone := protocol.Heartbeat{Name: "a", Boot: "b"}, protocol.Heartbeat{Name: "a", Boot: "b", Stopping: true}
	for i, want := range []struct {
		hb      protocol.Heartbeat
		fails   error
		offered int
	}{
		{here, queue.ErrUnavailable, 1}, {here, queue.ErrUnavailable, 2}, {here, nil, 3}, {here, nil, 3},
		{gone, nil, 3}, {here, queue.ErrUnavailable, 4}, {gone, nil, 4}, {gone, nil, 4}, {here, nil, 5}, {here, nil, 5},
	} {
		fails = want.fails
		if beat(want.hb); offered != want.offered {
			t.Fatalf("after heartbeat %d: offered %d times, want %d", i+1, offered, want.offered)
		}
	}
	// The process ends between the commit and the offer.
	next := protocol.Heartbeat{Name: "a", Boot: "c"}
	s.Reoffer = func(context.Context, string) error { panic("killed") }
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Heartbeat(t.Context(), "clu_1", next)
	}()
	offered = 0
	s.Reoffer = func(context.Context, string) error { offered++; return nil }
	beat(next)
	if beat(next); offered != 1 {
		t.Errorf("after the end of a process: offered %d times", offered)
	}
}

// TestArrivalWhoseAnswerIsLost: an agent that may have arrived is offered what
// waited: its next heartbeat is no arrival any more.
func TestArrivalWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	db := emptyLedger(t, time.Now)
	l := &unsure{Ledger: db, lose: true}
	offered := 0
	s := &Service{Store: &record.Store{Ledger: l, Now: time.Now, Timing: operation.AWS}, Logger: slog.New(slog.DiscardHandler),
		Reoffer: func(context.Context, string) error { offered++; return nil }}
	beat := protocol.Heartbeat{Name: "a", Boot: "b"}
	if _, err := s.Heartbeat(t.Context(), "clu_1", beat); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Heartbeat(t.Context(), "clu_1", beat); err != nil || offered != 1 {
		t.Errorf("offered %d times, %v", offered, err)
	}
	l.lose = true
	if _, err := s.Heartbeat(t.Context(), "clu_1", beat); !errors.Is(err, ledger.ErrUnknown) || offered != 1 {
		t.Errorf("one that had arrived long ago: offered %d times, %v", offered, err)
	}
}
