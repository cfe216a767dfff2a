package local

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
)

// TestAlertsOfTheEngine: an operation sets a rule off on its way through the
// engine; timers come to the second, also after the engine was away; a changed
// rule reaches streams in which nothing happens.
func TestAlertsOfTheEngine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newSite(t, dir, nil)
	ctx := t.Context()
	rule := alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}, When: `operation.type == "node.cordon" && operation.reason == "a test"`,
		GroupBy: map[string]string{"node": "event.subject.name"}, For: alert.Duration(time.Second), ResolveAfter: alert.Duration(6 * time.Second)}
	if _, err := s.Alerts.CreateRule(ctx, PlaneCall(), rule); err != nil {
		t.Fatal(err)
	}
	ids := s.ask(1)
	s.finish(ids...)
	var a alert.Alert
	var swept, pause int64 // when the sweep came round last, and the longest that it was about it, in ms
	is := func(st *site, state alert.State) func() bool {
		return func() bool {
			at := st.swept.Load()
			if swept > 0 {
				pause = max(pause, at-swept)
			}
			swept = at
			got, _, err := st.Alerts.Alerts(ctx, react.Filter{Rule: "cordoned", States: []alert.State{state}}, "", 10)
			if err != nil || len(got) > 1 {
				t.Fatalf("%d alerts, %v", len(got), err)
			}
			if len(got) == 0 {
				return false
			}
			a = got[0].Alert
			return true
		}
	}
	s.wait("the alert fires", time.Minute, is(s, alert.Firing))
	if a.Operation != ids[0] || a.Group["node"] != "node-00" || !a.FiredAt.Equal(a.Since.Add(time.Second)) {
		t.Errorf("it is %+v", a)
	}
	late := func(typ string) time.Duration {
		evs, _, err := event.ReadStream(ctx, s.Store.Ledger, s.cluster, 1, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			var d alert.Alert
			if e.Type == typ && json.Unmarshal(e.Detail, &d) == nil && d.ID == a.ID {
				return e.ReceivedAt.Sub(e.Timestamp)
			}
		}
		t.Fatalf("nothing tells of %s", typ)
		return 0
	}
	// Room is for what the machine is busy with beside: the sweep's own pauses tell.
	if l, most := late(alert.TypeFiring), time.Second+5*time.Duration(pause)*time.Millisecond; l > most {
		t.Errorf("it was told %s after it was due, want %s at most", l, most)
	}
	s.stop()
	s = newSite(t, dir, nil)
	s.wait("the alert resolves", time.Minute, is(s, alert.Resolved))
	if a.Reason != alert.ReasonQuiet || a.ResolvedAt.Sub(a.Last) != 6*time.Second {
		t.Errorf("it is %+v", a)
	}
	rule.For, rule.ResolveAfter = 0, alert.Duration(time.Hour)
	if _, err := s.Alerts.UpdateRule(ctx, PlaneCall(), "cordoned", 0, rule); err != nil {
		t.Fatal(err)
	}
	if _, err := s.admit("node.cordon", "node:node-02", nil); err != nil {
		t.Fatal(err)
	}
	s.wait("another fires", time.Minute, is(s, alert.Firing))
	if err := s.Alerts.DeleteRule(ctx, PlaneCall(), "cordoned", 0); err != nil {
		t.Fatal(err)
	}
	s.wait("it resolves, since its rule is gone", time.Minute, func() bool {
		got, err := s.Alerts.Alert(ctx, a.ID)
		return err == nil && got.State == alert.Resolved && got.Reason == alert.ReasonDeleted
	})
}

// TestAnUnreadableStreamLeavesTheOthersAlone: a stream that cannot be judged holds
// up neither the others nor the sweep.
func TestAnUnreadableStreamLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), func(e *Engine) { poison(t, e, "clu_poisoned") })
	ctx := t.Context()
	if _, err := s.Alerts.CreateRule(ctx, PlaneCall(), alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}}); err != nil {
		t.Fatal(err)
	}
	s.finish(s.ask(2)...)
	s.wait("the alert fires", time.Minute, func() bool {
		got, _, err := s.Alerts.Alerts(ctx, react.Filter{Rule: "cordoned"}, "", 10)
		return err == nil && len(got) == 1
	})
	if !s.behind.has("clu_poisoned") {
		s.wait("the stream is tried again", time.Minute, func() bool { return s.behind.has("clu_poisoned") })
	}
}

// poison makes a stream whose head nobody can read, and which is due.
func poison(t *testing.T, e *Engine, stream string) {
	t.Helper()
	err := e.ledger.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: record.StreamHeadKey(stream), Data: []byte("{")}},
		ledger.Write{Item: ledger.Item{Key: record.JudgedKey(stream), Data: []byte(`{"next":1}`), Due: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
}
