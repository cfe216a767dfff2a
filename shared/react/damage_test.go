package react

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// damage spoils an item's data; its keys, times and places stay.
func (b *bench) damage(k ledger.Key) {
	b.t.Helper()
	it, err := b.db.Get(context.Background(), k)
	if err != nil {
		b.t.Fatal(err)
	}
	it.Data = []byte("{")
	if err := b.db.Commit(context.Background(), ledger.Write{Expect: it.Version, Item: it}); err != nil {
		b.t.Fatal(err)
	}
}

// logged lets the reactor log to a buffer.
func (b *bench) logged() *bytes.Buffer {
	var log bytes.Buffer
	b.reactor.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	return &log
}

func (b *bench) alerts(f Filter) []string {
	b.t.Helper()
	got, next, err := b.service.Alerts(context.Background(), f, "", 100)
	if err != nil || next != "" {
		b.t.Fatalf("alerts: %v, next %q", err, next)
	}
	out := make([]string, len(got))
	for i := range got {
		out[i] = fmt.Sprint(got[i].Alert.Group["g"], " ", got[i].Alert.State)
	}
	slices.Sort(out)
	return out
}

const each1h = "name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 1h\n"

// A silence that cannot be read silences nothing and holds up nothing; it is told,
// listed and can be ended.
func TestSilencesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	log := b.logged()
	b.rule(each1h)
	const foreign = "sil_00000000000000000000000000" // by another version, without an expiry
	ms := []alert.Match{{Field: "rule", Op: "=", Value: "each"}}
	made, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: ms, EndsAt: t0.Add(time.Hour), Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	b.damage(record.SilenceKey(made.ID))
	err = b.service.change(t.Context(), func() ([]ledger.Write, error) {
		return []ledger.Write{{Item: ledger.Item{Key: record.SilenceKey(foreign), Data: []byte("{")}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "a")
	b.follow()
	want := []string{"0s firing eachmap[g:a] condition_holds"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if n := b.reactor.Metrics.Read().Faulty; n != 2 || !strings.Contains(log.String(), made.ID) || !strings.Contains(log.String(), foreign) {
		t.Errorf("counted %d, logged %s", n, log)
	}
	if d := cmp.Diff([]string{"a firing"}, b.alerts(Filter{})); d != "" {
		t.Errorf("alerts (-want +got):\n%s", d)
	}
	list := func(past bool) (ids []string) {
		t.Helper()
		all, err := b.service.Silences(t.Context(), past)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		slices.Sort(ids)
		return ids
	}
	if d := cmp.Diff([]string{foreign, made.ID}, list(false)); d != "" {
		t.Errorf("silences (-want +got):\n%s", d)
	}
	if s, err := b.service.Silence(t.Context(), made.ID); err != nil || !s.EndsAt.Equal(made.EndsAt) || s.Reason == "" {
		t.Errorf("it is %+v, %v", s, err)
	}
	whole, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: ms, StartsAt: t0.Add(time.Hour), EndsAt: t0.Add(2 * time.Hour), Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{made.ID, foreign, foreign} {
		if s, err := b.service.EndSilence(t.Context(), call, id); err != nil || !s.EndsAt.Equal(t0) {
			t.Errorf("end %s: %+v, %v", id, s, err)
		}
	}
	if d := cmp.Diff([]string{whole.ID}, list(false)); d != "" {
		t.Errorf("silences (-want +got):\n%s", d)
	}
	if got := list(true); len(got) != 3 {
		t.Errorf("with those that are over: %v", got)
	}
	before := b.reactor.Metrics.Read().Faulty
	b.follow()
	if n := b.reactor.Metrics.Read().Faulty; n != before {
		t.Errorf("counted %d more when they were over", n-before)
	}
}

// A silence that an earlier plane took, and that is refused today, is told.
func TestSilenceThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	log := b.logged()
	const kept = "sil_00000000000000000000000001"
	err := b.service.change(t.Context(), func() ([]ledger.Write, error) {
		return []ledger.Write{{Item: ledger.Item{Key: record.SilenceKey(kept), Data: record.Encode(alert.Silence{ID: kept,
			Matchers: []alert.Match{{Field: "rule", Op: alert.OpMatch, Value: "("}}, StartsAt: t0, EndsAt: t0.Add(time.Hour), Reason: "x"})}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.rule(each1h)
	b.tell("x.bad", "a")
	b.follow()
	if n := b.reactor.Metrics.Read().Faulty; n != 1 || !strings.Contains(log.String(), kept) {
		t.Errorf("counted %d, logged %s", n, log)
	}
	if d := cmp.Diff([]string{"0s firing eachmap[g:a] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// A stream whose position cannot be read is judged from now on, by its groups as
// they are kept.
func TestPositionsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	log := b.logged()
	b.rule(each1h)
	b.tell("x.bad", "a")
	b.follow()
	b.damage(record.JudgedKey(stream))
	b.advance(time.Minute)
	b.tell("x.bad", "before")
	b.advance(time.Minute)
	b.follow()
	b.tell("x.bad", "b")
	b.follow()
	b.advance(59 * time.Minute)
	b.follow()
	want := []string{"0s firing eachmap[g:a] condition_holds", "2m0s firing eachmap[g:b] condition_holds", "1h0m0s resolved eachmap[g:a] quiet"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if n := b.reactor.Metrics.Read().Faulty; n != 1 || strings.Count(log.String(), "how far a stream is judged") != 1 {
		t.Errorf("counted %d, logged %s", n, log)
	}
}

// An operation's spec that cannot be read is as one that is not there: the stream
// goes on.
func TestSpecsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: by\non: [x.bad]\nwhen: operation.type == ''\ngroup_by: {g: event.subject.name, by: operation.actor.id}\nresolve_after: 1h\n")
	const op = "op_00000000000000000000000000"
	if err := b.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: record.OperationPK(op), SK: "spec"}, Data: []byte("{")}}); err != nil {
		t.Fatal(err)
	}
	e := b.fact("x.bad", "a", nil)
	e.OperationID = op
	b.put(e, b.fact("x.bad", "b", nil))
	b.follow()
	if d := cmp.Diff([]string{"a firing", "b firing"}, b.alerts(Filter{})); d != "" {
		t.Errorf("alerts (-want +got):\n%s", d)
	}
}

// An alert of a deleted rule that cannot be read ends all the same.
func TestAlertsOfDeletedRulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	log := b.logged()
	made := b.rule(each1h)
	b.tell("x.bad", "a")
	b.follow()
	got, _, err := b.service.Alerts(t.Context(), Filter{}, "", 1)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	a := got[0].Alert
	b.damage(record.AlertKey(a.ID))
	// A group from before there were faces.
	it, err := b.db.Get(t.Context(), record.GroupKey(stream, a.GroupKey))
	if err != nil {
		t.Fatal(err)
	}
	g, err := record.Decode[alert.Group](it)
	if err != nil {
		t.Fatal(err)
	}
	g.Alert.Face = nil
	it.Data = record.Encode(&g)
	if err := b.db.Commit(t.Context(), ledger.Write{Expect: it.Version, Item: it}); err != nil {
		t.Fatal(err)
	}
	if err := b.service.DeleteRule(t.Context(), call, "each", 0); err != nil {
		t.Fatal(err)
	}
	b.reactor = b.another()
	b.reactor.Logger = slog.New(slog.NewJSONHandler(log, nil))
	b.follow()
	b.rule("name: other\non: [x.bad]\n")
	b.tell("x.bad", "b")
	b.follow()
	want := []string{"0s firing eachmap[g:a] condition_holds", "0s resolved " + made.ID + "map[] rule_deleted", "0s firing othermap[] condition_holds"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if !strings.Contains(log.String(), a.ID) {
		t.Errorf("logged %s", log)
	}
}

// Of the list of alerts, what cannot be read is left out and the rest is there, by
// whichever filter, and from page to page.
func TestAlertsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule(each1h)
	var ids []string
	for i := range 5 {
		b.tell("x.bad", fmt.Sprint("n", i))
		b.follow()
		got, _, err := b.service.Alerts(t.Context(), Filter{}, "", 1)
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		ids = append(ids, got[0].Alert.ID)
		b.advance(time.Second)
	}
	note := "mine"
	for _, i := range []int{1, 3} {
		if _, err := b.service.Acknowledge(t.Context(), call, ids[i], &note); err != nil {
			t.Fatal(err)
		}
	}
	one, err := b.service.Alert(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []ledger.Key{record.AlertKey(ids[4]), record.AlertKey(ids[2]), record.AckKey(ids[1]), record.GroupKey(stream, one.GroupKey)} {
		b.damage(k)
	}
	want := []string{"n3 mine", "n1 ", "n0 "}
	for _, f := range []Filter{{}, {States: []alert.State{alert.Firing}}, {Rule: "each"}, {Streams: []string{stream}}} {
		for limit := 1; limit <= 5; limit++ {
			var lines []string
			for after, pages := "", 0; ; pages++ {
				got, next, err := b.service.Alerts(t.Context(), f, after, limit)
				if err != nil || pages > 5 {
					t.Fatalf("%+v by %d: %v", f, limit, err)
				}
				for _, l := range got {
					note := ""
					if l.Alert.Acked != nil {
						note = l.Alert.Acked.Note
					}
					lines = append(lines, l.Alert.Group["g"]+" "+note)
				}
				if after = next; next == "" {
					break
				}
			}
			if d := cmp.Diff(want, lines); d != "" {
				t.Errorf("%+v by %d (-want +got):\n%s", f, limit, d)
			}
		}
	}
	// One is taken on anew.
	if a, err := b.service.Acknowledge(t.Context(), call, ids[1], nil); err != nil || a.Acked == nil || a.Acked.Note != "" {
		t.Errorf("acknowledged %+v, %v", a.Acked, err)
	}
}

// counting counts the commits of a stream's position.
type counting struct {
	ledger.Ledger
	n atomic.Int64
}

func (l *counting) Commit(ctx context.Context, ws ...ledger.Write) error {
	if slices.ContainsFunc(ws, func(w ledger.Write) bool { return w.Item.Key == record.JudgedKey(stream) }) {
		l.n.Add(1)
	}
	return l.Ledger.Commit(ctx, ws...)
}

// In a quiet stream each event that means something takes one commit: what is over
// goes with the next, or an hour later.
func TestCommitsOfAQuietStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := &counting{Ledger: b.db}
	b.on(l)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\nresolve_after: 3h\n")
	b.follow()
	b.tell("x.none", "n")
	b.follow()
	began := l.n.Load()
	const n = 10
	step := func() { // when the event comes, and as the due index may call
		b.follow()
		b.advance(time.Second)
		b.follow()
		b.advance(time.Minute)
		b.follow()
	}
	for i := range n {
		b.tell("x.bad", fmt.Sprint("n", i))
		step()
		b.tell("x.good", fmt.Sprint("n", i))
		step()
	}
	if got := l.n.Load() - began; got != 2*n {
		t.Errorf("%d events took %d commits", 2*n, got)
	}
	b.advance(time.Hour)
	b.follow()
	b.follow()
	if got := l.n.Load() - began; got != 2*n+1 {
		t.Errorf("an hour later: %d commits", got-2*n)
	}
	from, to := record.GroupSpan()
	p, err := b.db.Query(t.Context(), ledger.Query{PK: record.JudgedPK(stream), From: from, To: to})
	if err != nil || len(p.Items) > 0 {
		t.Errorf("%d groups are kept, %v", len(p.Items), err)
	}
}
