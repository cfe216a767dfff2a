package agentapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/verify"
)

// numbers is a plane that takes events of processes of one agent.
type numbers struct {
	t       *testing.T
	s       *Service
	cluster string
	now     time.Time
}

func newNumbers(t *testing.T, open func(*testing.T, func() time.Time) ledger.Ledger) *numbers {
	n := &numbers{t: t, cluster: "clu_1", now: time.Now().UTC().Truncate(time.Millisecond)}
	clock := func() time.Time { return n.now }
	n.s = &Service{Store: &record.Store{Ledger: open(t, clock), Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	return n
}

func (n *numbers) beat(boot string) string {
	n.t.Helper()
	n.now = n.now.Add(time.Second)
	a, err := n.s.Heartbeat(n.t.Context(), n.cluster, protocol.Heartbeat{Name: "a", Boot: boot})
	if err != nil {
		n.t.Fatal(err)
	}
	return a.AgentID
}

// send sends events of the process with the numbers, after a heartbeat of it.
func (n *numbers) send(boot string, ns ...int64) protocol.EventsAnswer {
	n.t.Helper()
	req := protocol.EventsRequest{AgentID: n.beat(boot), Boot: boot}
	for _, i := range ns {
		req.Events = append(req.Events, protocol.Event{N: i, Type: "node.ready", At: n.now,
			Subject: protocol.Subject{Kind: "node", UID: boot, Name: fmt.Sprint(boot, " ", i)}})
	}
	out, err := n.s.Events(n.t.Context(), n.cluster, req)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// holds fails the test unless the stream has exactly these events, but for those
// that the plane tells of the agent, each under an id of its own.
func (n *numbers) holds(want ...string) {
	n.t.Helper()
	var got []string
	ids := map[string]bool{}
	for next := int64(1); ; {
		evs, head, err := event.ReadStream(n.t.Context(), n.s.Store.Ledger, n.cluster, next, 200)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range evs {
			if ids[e.ID] {
				n.t.Errorf("%s is there twice, the second time as %d", e.ID, e.Sequence)
			}
			ids[e.ID] = true
			next = e.Sequence + 1
			switch {
			case e.Type == event.TypeGap:
				var d event.GapDetail
				if err := json.Unmarshal(e.Detail, &d); err != nil {
					n.t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("gap %s %d-%d", d.Boot, d.From, d.Through))
			case !strings.HasPrefix(e.Type, "agent."):
				got = append(got, e.Subject.Name)
			}
		}
		if next >= head.Next {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Error(diff)
	}
}

func onSQLite(t *testing.T, clock func() time.Time) ledger.Ledger { return emptyLedger(t, clock) }

func TestTwoProcessesOfOneName(t *testing.T) {
	t.Parallel()
	testTwoProcessesOfOneName(t, onSQLite)
}

// testTwoProcessesOfOneName: two processes that go by one agent's name and take turns
// have numbers of their own. What one of them sends again is no new event, what it
// has had confirmed is no gap.
func testTwoProcessesOfOneName(t *testing.T, open func(*testing.T, func() time.Time) ledger.Ledger) {
	n := newNumbers(t, open)
	for range 2 { // the answer was lost
		n.send("old", 1)
	}
	n.send("new", 1)
	if out := n.send("old", 1); out.Through != 1 {
		t.Errorf("a resend of one that was away: %+v", out)
	}
	n.send("old", 2, 3)
	n.send("new", 1, 2)
	n.send("third", 2) // of this one the first was lost
	n.send("old", 3, 4, 6)
	n.now = n.now.Add(marksKept - time.Hour)
	n.send("third", 1, 2, 3)
	n.send("new", 3)
	n.holds("old 1", "new 1", "old 2", "old 3", "new 2", "gap third 1-1", "third 2", "old 4", "gap old 5-5", "old 6", "third 3", "new 3")
	if got := n.s.Intake.Read(); got.Missing != 2 || got.Gaps != 2 || got.Resent != 6 {
		t.Errorf("counted %+v", got)
	}
}

// TestNumbersOutOfRange: a number that is none takes up nothing, makes no gap and
// leaves the numbers of the others alone, whichever numbers were taken before.
func TestNumbersOutOfRange(t *testing.T) {
	t.Parallel()
	n := newNumbers(t, onSQLite)
	const most = protocol.MaxEventNumber
	for range 2 {
		out := n.send("b", 0, math.MinInt64, -1, math.MaxInt64, most+1, 1)
		if len(out.Refused) != 5 || out.Through != 1 {
			t.Fatalf("%+v", out)
		}
		for _, r := range out.Refused {
			if r.Code != protocol.RefusedInvalid || !strings.Contains(r.Detail, fmt.Sprint(r.N)) || !strings.Contains(r.Detail, fmt.Sprint(int64(most))) {
				t.Errorf("%+v names neither number nor bound", r)
			}
		}
	}
	n.send("b", most) // the last there can be
	n.send("b", most+1, 2, 0, most)
	// What was taken before there was a bound.
	ctx := context.Background()
	key := record.AgentEventsKey(n.cluster, n.beat("b"))
	if err := n.s.Store.Ledger.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion,
		Item: ledger.Item{Key: key, Data: record.Encode(eventsThrough{Boot: "b", Through: math.MaxInt64})}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n.send("b", 0, 5, -5, math.MaxInt64)
	}
	n.holds("b 1", fmt.Sprintf("gap b 2-%d", int64(most)-1), fmt.Sprint("b ", int64(most)))
	// Many such gaps do not turn the count round.
	for range 2000 {
		n.s.Intake.add(Received{Missing: most})
	}
	if got := n.s.Intake.Read().Missing; got != math.MaxInt64 {
		t.Errorf("%d are missing", got)
	}
}

// TestNumbersVerify: what processes of one name send, one after the other and anew,
// leaves a ledger that holds.
func TestNumbersVerify(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "l.db")
	n := newNumbers(t, func(t *testing.T, clock func() time.Time) ledger.Ledger {
		db, err := sqlite.Open(t.Context(), sqlite.Options{Path: file, Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	})
	if err := n.s.Store.Ledger.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: record.ClusterKey(n.cluster), Data: []byte(`{"id":"clu_1"}`),
		Index: map[ledger.Index]ledger.Key{ledger.List: {PK: record.ListClusters, SK: n.cluster}}}}); err != nil {
		t.Fatal(err)
	}
	n.send("old", 1, 2)
	n.send("new", 1, 0, math.MaxInt64)
	n.send("old", 1, 2, 0, math.MaxInt64)
	r, err := verify.Run(t.Context(), n.s.Store, n.now, time.Minute)
	if err != nil || r.Count > 0 || r.Events < 3 {
		t.Errorf("%d events: %v %v", r.Events, r.Problems, err)
	}
}

// TestHeartbeatsInOneMillisecond: processes of one name that take turns faster than the
// clock counts are told of each time.
func TestHeartbeatsInOneMillisecond(t *testing.T) {
	t.Parallel()
	n := newNumbers(t, onSQLite)
	for _, boot := range []string{"old", "new", "old", "new"} {
		if _, err := n.s.Heartbeat(t.Context(), n.cluster, protocol.Heartbeat{Name: "a", Boot: boot}); err != nil {
			t.Fatal(err)
		}
	}
	n.holds()
}
