package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
	"github.com/opsplane/opsplane/shared/worker/judging"
)

// reacting is a reactor of its own, as react's process and sweep's have one each.
func (p *plane) reacting() *react.Reactor { return &react.Reactor{Store: p.store, Logger: quiet()} }

func (p *plane) reactFunction(r *react.Reactor) *worker.React {
	return &worker.React{Store: p.store, Follow: r.Follow, Counts: judging.Counts(r), Decode: dynamo.DecodeChange, Logger: quiet(), Metrics: p.meter()}
}

// rule turns a rule on: each event of the type fires, for the subject's name.
func (p *plane) rule(name string, r alert.Rule) {
	p.t.Helper()
	r.Name, r.On, r.GroupBy = name, []string{"test." + name}, map[string]string{"node": "event.subject.name"}
	s := &react.Service{Store: p.store}
	_, err := s.CreateRule(p.t.Context(), admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "ada", Kind: "token"}}, Method: "POST", Path: "/v1/rules"}, r)
	p.no(err)
}

// happens appends an event to a stream.
func (p *plane) happens(stream, typ, name string) {
	p.t.Helper()
	p.serial++
	now := p.now()
	e := event.Event{ID: id.Derive(id.Event, stream, typ, name, now.String()), Type: "test." + typ, Severity: event.Info, Timestamp: now, ReceivedAt: now,
		Subject: event.Subject{Kind: "node", ID: "nod_" + name, Name: name}, Detail: []byte("{}")}
	_, err := event.Append(p.t.Context(), p.store.Ledger, stream, []event.Event{e}, nil)
	p.no(err)
}

// alarmed are the alerts' events in a stream.
func (p *plane) alarmed(stream string) (out []string) {
	p.t.Helper()
	evs, _, err := event.ReadStream(p.t.Context(), p.db, stream, 1, 1000)
	p.no(err)
	for _, e := range evs {
		if kind, ok := strings.CutPrefix(e.Type, "alert."); ok {
			var a alert.Alert
			p.no(json.Unmarshal(e.Detail, &a))
			out = append(out, kind+" "+a.Rule+" "+a.Group["node"])
		}
	}
	return out
}

// heads are the records that react's mapping lets through.
func (p *plane) heads() (out []json.RawMessage) {
	p.t.Helper()
	for _, r := range p.stream() {
		var v struct {
			Dynamodb struct {
				Keys struct{ PK, SK struct{ S string } }
			}
		}
		p.no(json.Unmarshal(r, &v))
		k := ledger.Key{PK: v.Dynamodb.Keys.PK.S, SK: v.Dynamodb.Keys.SK.S}
		if streams, all := record.Wakes([]ledger.Change{{Key: k}}); all || len(streams) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// TestReactCounts: what is judged is put once a minute, whatever came meanwhile; an
// alert or what went wrong at once, and with it what had not been put.
func TestReactCounts(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.rule("hot", alert.Rule{})
	p.rule("odd", alert.Rule{When: `int(event.subject.name) > 0`})
	h := p.reactFunction(p.reacting())
	put := func(typ, name string) string {
		t.Helper()
		p.heads()
		p.happens("clu_c", typ, name)
		p.metrics.Reset()
		if _, err := invoke(t.Context(), h.Handle, worker.StreamEvent{Records: p.heads()}); err != nil {
			t.Fatal(err)
		}
		return p.metrics.String()
	}
	if got := put("cold", "a"); !strings.Contains(got, `"events_judged_total":1`) {
		t.Errorf("the first: %q", got)
	}
	for range 2 {
		if got := put("cold", "a"); got != "" {
			t.Errorf("within the minute: %q", got)
		}
		p.pass(time.Second)
	}
	if got := put("hot", "a"); !strings.Contains(got, `"events_judged_total":3`) || !strings.Contains(got, `"alerts_told_total":1`) || !strings.Contains(got, `"rule_matches_total":1`) {
		t.Errorf("an alert: %q", got)
	}
	p.pass(time.Minute)
	if got := put("cold", "b"); !strings.Contains(got, `"events_judged_total":`) || strings.Contains(got, "alerts_told_total") || strings.Contains(got, "events_late_total") {
		t.Errorf("a minute later: %q", got)
	}
	if got := put("odd", "no number"); !strings.Contains(got, `"rule_errors_total":1`) {
		t.Errorf("a rule that fails: %q", got)
	}
}

// TestSweepCountsWhatItJudges: what the sweep's own reactor does is counted as what
// react's does, and put with the tick that it was judged in.
func TestSweepCountsWhatItJudges(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.rule("hot", alert.Rule{})
	h, r := p.sweepFunction(), p.reacting()
	h.GivenUp, h.Judge, h.Counts, h.Metrics = nil, r.Follow, judging.Counts(r), p.meter()
	for i, want := range []string{`"alerts_told_total":1`, `"alerts_told_total":2`} {
		for n := range i + 1 {
			p.happens(p.cluster, "hot", fmt.Sprint("n", i, n))
		}
		p.metrics.Reset()
		if _, err := invoke(t.Context(), h.Handle, tickAt(t0.Add(5*time.Minute))); err != nil {
			t.Fatal(err)
		}
		if got := p.metrics.String(); !strings.Contains(got, `"events_judged_total":`) || !strings.Contains(got, want) {
			t.Errorf("tick %d: %q", i, got)
		}
	}
}

// TestReactHoldsUpNobody: a stream that can never be judged is passed over and
// counted, an unreadable record is kept, and the streams behind both are judged;
// one that cannot be judged now comes again, from its own record on.
func TestReactHoldsUpNobody(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	p.rule("hot", alert.Rule{})
	const bad, good = "clu_bad", "clu_good"
	p.heads()
	p.happens(bad, "hot", "n0")
	p.happens(good, "hot", "n1")
	batch := append([]json.RawMessage{json.RawMessage(`{"eventID":"odd","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"7","NewImage":[]}}`)}, p.heads()...)
	it, err := p.db.Get(ctx, record.StreamHeadKey(bad))
	p.no(err)
	it.Data = []byte("{")
	p.no(p.db.Commit(ctx, ledger.Write{Item: it, Expect: it.Version}))
	h := p.reactFunction(p.reacting())
	for range 2 { // twice is once
		out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch})
		if err != nil || out != none {
			t.Fatalf("answer %s, %v", out, err)
		}
	}
	if d := cmp.Diff([]string{"firing hot n1"}, p.alarmed(good)); d != "" {
		t.Error(d)
	}
	if ls := p.letters(); len(ls) != 1 || ls[0].Queue != worker.StreamQueue {
		t.Errorf("letters: %+v", ls)
	}
	if !strings.Contains(p.metrics.String(), `"StreamsUnjudged":1`) {
		t.Errorf("metrics: %s", p.metrics.String())
	}

	p.happens(p.cluster, "hot", "n2")
	p.happens(good, "hot", "n3")
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.JudgedPK(good)) {
			return errThrottled
		}
		return nil
	}
	batch = p.heads()
	out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch})
	p.no(err)
	at := slices.IndexFunc(batch, func(r json.RawMessage) bool { return strings.Contains(string(r), record.StreamPK(good)) })
	if got := p.failures(out); at < 0 || !slices.Equal(got, []string{sequence(batch[at])}) {
		t.Fatalf("comes again from %v, want %d of %d", got, at, len(batch))
	}
	if d := cmp.Diff([]string{"firing hot n2"}, p.alarmed(p.cluster)); d != "" {
		t.Error(d)
	}
	p.tap.reset()
	if out, err = invoke(ctx, p.reactFunction(p.reacting()).Handle, worker.StreamEvent{Records: batch[at:]}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"firing hot n1", "firing hot n3"}, p.alarmed(good)); d != "" {
		t.Error(d)
	}
}

// firing is a plane on which the rule hot fires for n0, and the function that judged
// it, to which all is known so far.
func firing(t *testing.T) (*plane, *worker.React) {
	t.Helper()
	p := setup(t)
	p.rule("hot", alert.Rule{})
	p.happens(p.cluster, "hot", "n0")
	h := p.reactFunction(p.reacting())
	if out, err := invoke(t.Context(), h.Handle, worker.StreamEvent{Records: p.heads()}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	p.heads() // the alert's own
	return p, h
}

// TestReactOnRules: a changed rule reaches every stream; when the streams cannot
// be listed the rules' record comes again.
func TestReactOnRules(t *testing.T) {
	t.Parallel()
	p, h := firing(t)
	ctx := t.Context()
	s := &react.Service{Store: p.store}
	p.no(s.DeleteRule(ctx, admission.Call{Caller: admission.Caller{Actor: operation.Plane}, Method: "DELETE", Path: "/v1/rules/hot"}, "hot", 0))
	batch := p.heads()
	if len(batch) != 1 {
		t.Fatalf("%d records tell of the rule", len(batch))
	}
	if out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"firing hot n0", "resolved hot n0"}, p.alarmed(p.cluster)); d != "" {
		t.Error(d)
	}
	ended, end := context.WithCancel(ctx)
	end()
	out, err := invoke(ended, h.Handle, worker.StreamEvent{Records: batch})
	p.no(err)
	if got := p.failures(out); !slices.Equal(got, []string{sequence(batch[0])}) {
		t.Errorf("out of time it comes again from %v", got)
	}
}

// TestReactOnDeletedCluster: the alerts of a cluster end when the record of its end
// comes, which comes again where its stream could not be judged.
func TestReactOnDeletedCluster(t *testing.T) {
	t.Parallel()
	p, h := firing(t)
	ctx := t.Context()
	p.happens("clu_other", "hot", "n1")
	p.no(p.db.Commit(ctx, record.FormerWrite(p.cluster, p.now())))
	batch := p.heads()
	if len(batch) != 2 {
		t.Fatalf("%d records tell of another's event and of its end", len(batch))
	}
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.JudgedPK(p.cluster)) {
			return errThrottled
		}
		return nil
	}
	out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch})
	p.no(err)
	if got := p.failures(out); !slices.Equal(got, []string{sequence(batch[1])}) {
		t.Fatalf("comes again from %v", got)
	}
	p.tap.reset()
	if out, err = invoke(ctx, h.Handle, worker.StreamEvent{Records: batch}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"firing hot n0", "resolved hot n0"}, p.alarmed(p.cluster)); d != "" {
		t.Error(d)
	}
}

// TestSweepTakesTimers: what falls due for a stream within two minutes is rung for
// by who commits it, and judged by the woken sweep, to the second.
func TestSweepTakesTimers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.rule("slow", alert.Rule{For: alert.Duration(7 * time.Second)})
	p.happens(p.cluster, "slow", "n0")
	if out, err := invoke(t.Context(), p.reactFunction(p.reacting()).Handle, worker.StreamEvent{Records: p.heads()}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	var rung []time.Duration
	for _, m := range p.wakes.sent {
		rung = append(rung, m.Delay)
	}
	if !slices.Contains(rung, 7*time.Second) {
		t.Fatalf("rung after %v", rung)
	}
	h := p.sweepFunction()
	h.Sweep.React = worker.Timers(p.reacting().Follow)
	for _, tt := range []struct {
		pass time.Duration
		want []string
	}{{6 * time.Second, []string{"pending slow n0"}}, {time.Second, []string{"pending slow n0", "firing slow n0"}}} {
		p.pass(tt.pass)
		out, err := invoke(t.Context(), h.Handle, fromQueue(wakeFor(p.now())))
		if err != nil || out != none {
			t.Fatalf("answer %s, %v", out, err)
		}
		if d := cmp.Diff(tt.want, p.alarmed(p.cluster)); d != "" {
			t.Error(d)
		}
	}
}

// ofReact are notices of what react did not take.
type ofReact struct{ notices }

func (n *ofReact) Receive(ctx context.Context, name string, most int, wait, visible time.Duration) ([]queue.Message, error) {
	if name != worker.ReactGivenUpQueue {
		return nil, nil
	}
	return n.notices.Receive(ctx, name, most, wait, visible)
}

// TestSweepJudgesWhatWasGivenUp: a record that react never got is made good by the
// sweep: at once when Lambda tells that it gave some up, else each ten minutes. A
// notice stays while a stream could not be judged for the moment.
func TestSweepJudgesWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	p.no(p.queue.Ensure(ctx, worker.ReactGivenUpQueue))
	p.rule("hot", alert.Rule{})
	h := p.sweepFunction()
	h.Judge = p.reacting().Follow
	tick := func(minute int) error {
		_, err := invoke(ctx, h.Handle, tickAt(t0.Add(time.Duration(minute)*time.Minute)))
		return err
	}
	p.happens(p.cluster, "hot", "n0")
	p.no(tick(4))
	if got := p.alarmed(p.cluster); got != nil {
		t.Fatalf("nobody told of it, and it is judged: %v", got)
	}
	p.no(tick(5))
	want := []string{"firing hot n0"}
	if d := cmp.Diff(want, p.alarmed(p.cluster)); d != "" {
		t.Error(d)
	}
	p.happens(p.cluster, "hot", "n1")
	p.no(p.queue.Send(ctx, worker.ReactGivenUpQueue, queue.Outgoing{Body: []byte(`{"requestContext":{}}`)}))
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.JudgedPK(p.cluster)) {
			return errThrottled
		}
		return nil
	}
	if err := tick(6); !errors.Is(err, ledger.ErrUnavailable) && (err == nil || !strings.Contains(err.Error(), "throttled")) {
		t.Errorf("tick: %v", err)
	}
	p.tap.reset()
	h.GivenUp = &ofReact{notices{ids: []string{"again"}}} // it is hidden for a while in the queue itself
	p.no(tick(7))
	if d := cmp.Diff(append(want, "firing hot n1"), p.alarmed(p.cluster)); d != "" {
		t.Error(d)
	}
	if n := len(p.letters()); n == 0 {
		t.Error("no notice is kept")
	}
}
