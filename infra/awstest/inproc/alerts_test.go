//go:build awstest

package inproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/infra/awstest/bill"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
)

// alertRules are of each kind of timer: none, a count in a window with a quiet
// time, a pause before it fires, and one that waits for what does not come.
var alertRules = []alert.Rule{
	{Name: "test-each", On: []string{"test.bad"}, ResolveWhen: &alert.Clause{On: []string{"test.good"}}},
	{Name: "test-often", On: []string{"test.bad"}, Count: 3, Window: alert.Duration(10 * time.Second), ResolveAfter: alert.Duration(4 * time.Second)},
	{Name: "test-lasting", On: []string{"test.bad"}, For: alert.Duration(2 * time.Second), ResolveWhen: &alert.Clause{On: []string{"test.good"}}},
	{Name: "test-missing", On: []string{"test.bad"}, Absence: &alert.Absence{Expect: alert.Clause{On: []string{"test.good"}}, Within: alert.Duration(3 * time.Second)},
		ResolveAfter: alert.Duration(5 * time.Second)},
}

// lastTimer is longer after the last event than any timer of alertRules.
const lastTimer = 20 * time.Second

func rulesInto(t testing.TB, st *record.Store) {
	t.Helper()
	s := &react.Service{Store: st}
	for _, r := range alertRules {
		r.GroupBy = map[string]string{"node": "event.subject.name"}
		if _, err := s.CreateRule(t.Context(), adminCall(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// happening is an event of the test that is received now.
func happening(typ, name, unique string) event.Event {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return event.Event{ID: id.Derive(id.Event, unique), Type: typ, Severity: event.Info, Timestamp: now, ReceivedAt: now,
		Subject: event.Subject{Kind: "node", ID: "nod_" + name, Name: name}, Detail: json.RawMessage("{}")}
}

// history reads a stream: what happened of the test's, and what is told of its
// rules, by group.
func history(t testing.TB, st *record.Store, stream string) (happened []event.Event, told map[string][]string) {
	t.Helper()
	told = map[string][]string{}
	seen := map[string]bool{}
	for from := int64(1); ; {
		evs, _, err := event.ReadStream(t.Context(), st.Ledger, stream, from, 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(evs) == 0 {
			return happened, told
		}
		for _, e := range evs {
			if from = e.Sequence + 1; seen[e.ID] {
				t.Errorf("event %s of type %s is in the stream twice", e.ID, e.Type)
			}
			seen[e.ID] = true
			if strings.HasPrefix(e.Type, "test.") {
				happened = append(happened, e)
			}
			var a alert.Alert
			if kind, ok := strings.CutPrefix(e.Type, "alert."); ok && json.Unmarshal(e.Detail, &a) == nil && strings.HasPrefix(a.Rule, "test-") {
				group := a.Rule + " " + a.Group["node"]
				told[group] = append(told[group], fmt.Sprint(e.Timestamp.UnixMilli(), " ", kind, " ", a.Reason, " ", a.Count, " since ", a.Since.UnixMilli()))
			}
		}
	}
}

// onOneMachine is what the one-machine engine tells of the same events.
func onOneMachine(t testing.TB, stream string, happened []event.Event) map[string][]string {
	t.Helper()
	var clock time.Time
	now := func() time.Time { return clock }
	clock = happened[0].ReceivedAt.Add(-time.Minute)
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	st := &record.Store{Ledger: db, Now: now, Timing: operation.OneMachine}
	rulesInto(t, st)
	r := &react.Reactor{Store: st, Logger: slog.New(slog.DiscardHandler)}
	for _, e := range happened {
		if e.ReceivedAt.After(clock) {
			clock = e.ReceivedAt
		}
		if _, err := event.Append(t.Context(), db, stream, []event.Event{e}, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	clock = clock.Add(lastTimer)
	if err := r.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	_, told := history(t, st, stream)
	return told
}

// TestAlertsThroughFaults: events are judged while everything goes wrong that can
// on AWS. After it the alerts are those that the one-machine engine makes of the
// same history, none lost, none doubled.
func TestAlertsThroughFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults *Faults
	}{
		{"batches again and reordered, some unreadable", &Faults{Redeliver: 0.5, Reorder: true, Spoil: 0.3}},
		{"killed in mid-batch, wake-ups lost", &Faults{Kill: 0.4, Lose: 0.3, Repeat: 0.2}},
		{"throttled and answers lost", &Faults{Throttle: 0.08, LoseAnswer: 0.05}},
		{"all at once", &Faults{Redeliver: 0.2, Reorder: true, Spoil: 0.1, Lose: 0.1, Repeat: 0.1, Late: 0.1, Kill: 0.15, Throttle: 0.04, LoseAnswer: 0.03}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "cost", Tick: 5 * time.Second, Faults: tt.faults})
			rulesInto(t, d.Plane.Store)
			stream := event.StreamOf(d.Cluster.Cluster.ID)
			d.takesRules(t, stream)
			// Timers of other rules have come by the right clock: no event of a clock that lags
			// is received before them.
			if _, err := event.Append(t.Context(), d.Plane.Ledger, stream, []event.Event{happening("test.begin", "n0", stream)}, nil); err != nil {
				t.Fatalf("append: %v", err)
			}
			var wg sync.WaitGroup
			for producer := range 3 {
				lag := time.Duration(producer) * 700 * time.Millisecond // of its clock
				wg.Go(func() {
					for i, end := 0, time.Now().Add(15*time.Second); time.Now().Before(end); i++ {
						typ := "test.bad"
						if rand.IntN(4) == 0 {
							typ = "test.good"
						}
						e := happening(typ, fmt.Sprintf("n%d", rand.IntN(6)), fmt.Sprint(stream, producer, i))
						e.Timestamp, e.ReceivedAt = e.Timestamp.Add(-lag), e.ReceivedAt.Add(-lag)
						if _, err := event.Append(t.Context(), d.Plane.Ledger, stream, []event.Event{e}, nil); err != nil {
							t.Errorf("append: %v", err)
						}
						time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
					}
				})
			}
			wg.Wait()
			tt.faults.Stop()
			time.Sleep(lastTimer) // every timer of the rules is over
			var d1 string
			for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Second) {
				happened, told := history(t, d.Watch, stream)
				want := onOneMachine(t, stream, happened)
				if d1 = cmp.Diff(want, told); d1 == "" {
					t.Logf("%d events, %d groups told of, %v, %d batches came again", len(happened), len(told), tt.faults.Counts(), d.Redelivered.Load())
					d.kept(t, told)
					return
				}
				if time.Now().After(end) {
					t.Fatalf("one machine's (-) and AWS's (+):\n%s", d1)
				}
			}
		})
	}
}

// takesRules waits until a stream is judged by the rules as they are now: a reactor
// that saw them later would be right to judge some events by fewer.
func (d *Deployment) takesRules(t testing.TB, stream string) {
	t.Helper()
	mark, err := d.Watch.Ledger.Get(t.Context(), record.RulesKey)
	d.no(err)
	var at alert.Position
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		it, err := d.Watch.Ledger.Get(t.Context(), record.JudgedKey(stream))
		if errors.Is(err, ledger.ErrNotFound) {
			continue
		}
		d.no(err)
		at, err = record.Decode[alert.Position](it)
		d.no(err)
		if strings.HasPrefix(at.Rules, fmt.Sprint(mark.Version, "-")) {
			return
		}
	}
	t.Fatalf("the stream is judged by the rules %q, they are at %d", at.Rules, mark.Version)
}

// kept checks that there is an alert for each that was told to begin, no more.
func (d *Deployment) kept(t testing.TB, told map[string][]string) {
	t.Helper()
	want := map[string]bool{}
	for group, lines := range told {
		for _, l := range lines {
			want[group+l[strings.LastIndex(l, " since "):]] = true
		}
	}
	have := map[string]bool{}
	s := &react.Service{Store: d.Watch}
	for after := ""; ; {
		page, next, err := s.Alerts(t.Context(), react.Filter{}, after, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page {
			if strings.HasPrefix(l.Alert.Rule, "test-") {
				have[fmt.Sprint(l.Alert.Rule, " ", l.Alert.Group["node"], " since ", l.Alert.Since.UnixMilli())] = true
			}
		}
		if after = next; next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("told of (-) and kept (+):\n%s", diff)
	}
}

// alertBar is what a million events may cost to be judged, one in twenty setting
// an alert off, in US dollars.
const alertBar = 5.0

// TestCostOfAlerts counts what AWS would charge for judging events: reading them,
// the position, groups, alerts and their events. The shipped rules are on.
func TestCostOfAlerts(t *testing.T) {
	d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "cost"})
	rulesInto(t, d.Plane.Store)
	stream := event.StreamOf(d.Cluster.Cluster.ID)
	d.settle(t)
	for _, tt := range []struct {
		what          string
		each, appends int
		every         time.Duration
		alerting      string
	}{
		{what: "no rule is about them, ten in an append, ten appends a second", each: 10, appends: 80, every: 100 * time.Millisecond},
		{what: "no rule is about them, alone, each five seconds", each: 1, appends: 4, every: 5 * time.Second},
		{what: "one in twenty sets an alert off, ten in an append, ten appends a second", each: 10, appends: 80, every: 100 * time.Millisecond, alerting: "test.bad"},
	} {
		d.Alerts.Reset()
		n := 0
		for i := range tt.appends {
			evs := make([]event.Event, tt.each)
			for j := range evs {
				typ := "test.other"
				if n++; tt.alerting != "" && n%20 == 0 {
					typ = tt.alerting
				}
				evs[j] = happening(typ, fmt.Sprintf("m%d", n), fmt.Sprint(stream, tt.what, i, j))
			}
			if _, err := event.Append(t.Context(), d.Plane.Ledger, stream, evs, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tt.every)
		}
		time.Sleep(6 * time.Second)
		var out strings.Builder
		fmt.Fprintf(&out, "\n%d events: %s\n", n, tt.what)
		p := table(&out, d.Alerts.Units(), float64(n))
		items, calls := d.Alerts.Items(), d.Alerts.Calls()
		for _, name := range sortedKeys(calls) {
			fmt.Fprintf(&out, "    %-36s %6.3f calls\n", name, float64(calls[name])/float64(n))
		}
		for _, kind := range sortedKeys(items) {
			fmt.Fprintf(&out, "    %-36s %6.3f units\n", kind, items[kind]/float64(n))
		}
		t.Log(out.String())
		if calls["DynamoDB TransactWriteItems"]+calls["DynamoDB UpdateItem"] == 0 && tt.alerting != "" {
			t.Errorf("nothing was written: %v", calls)
		}
		if p.usd > alertBar && tt.each > 1 && tt.alerting == "" {
			t.Errorf("a million events cost US$ %.2f to judge, the bar is %.0f", p.usd, alertBar)
		}
		if p.kinds[bill.Invocation] == 0 {
			t.Error("nothing was judged")
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
