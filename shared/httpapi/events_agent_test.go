package httpapi

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
)

// reporter is an agent of the first cluster by the plane's real agent API.
type reporter struct {
	*plane
	agent, boot string
}

func newReporter(t testing.TB, boot string) *reporter {
	t.Helper()
	r := &reporter{boot: boot}
	r.plane = setup(t, func(c *Config) { c.Agent = &agentapi.Service{Store: c.Store, Logger: slog.New(slog.DiscardHandler)} })
	r.agent = r.do("agent", "POST", "/v1/agent/heartbeat", m{"name": "a", "boot": boot, "sent_at": time.Now()}).want(200).str("agent_id")
	return r
}

// report sends events as raw JSON.
func (r *reporter) report(events ...string) protocol.EventsAnswer {
	r.t.Helper()
	a := r.do("agent", "POST", "/v1/agent/events", fmt.Sprintf(`{"agent_id":%q,"boot":%q,"events":[%s]}`, r.agent, r.boot, strings.Join(events, ","))).want(200)
	var out protocol.EventsAnswer
	must(r.t, json.Unmarshal([]byte(a.raw), &out))
	return out
}

func reported(n int, more string) string {
	return fmt.Sprintf(`{"n":%d,"type":"node.ready","subject":{"kind":"node","uid":"u%d","name":"n"},"at":"2026-07-01T12:00:00Z"%s}`, n, n, more)
}

// all reads the cluster's stream through the API, but for the agent's arrival.
func (r *reporter) all() (evs []event.Event) {
	r.t.Helper()
	for cursor := ""; ; {
		a := r.do("viewer", "GET", "/v1/events?limit=200&type=node.*,stream.*&cluster="+r.cluster.ID+"&cursor="+cursor, nil).want(200)
		var page struct {
			Items      []event.Event
			NextCursor string `json:"next_cursor"`
			More       bool
		}
		must(r.t, json.Unmarshal([]byte(a.raw), &page))
		evs = append(evs, page.Items...)
		if cursor = page.NextCursor; !page.More {
			return evs
		}
	}
}

// TestBadEventsOfABatch: each is told by its number and place, why, and the limit
// that it exceeds; the others are kept.
func TestBadEventsOfABatch(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	large := strings.Repeat("x", protocol.MaxEventBytes)
	out := r.report(
		reported(1, ""),
		reported(2, `,"detail":{"x":"`+large+`"}`),
		reported(3, `,"detail":[1]`),
		reported(4, `,"later":true`),
		`{"n":5,"type":7}`,
		`{"type":"node.ready"}`, // its number is the next one
		`"what"`,
		`null`,
		strings.Replace(reported(9, ""), "2026-07-01T12:00:00Z", "yesterday", 1),
		strings.Replace(reported(10, ""), "node.ready", strings.Repeat("x.y", 50), 1),
		strings.Replace(reported(11, ""), "node.ready", "rule.disabled", 1),
		strings.Replace(reported(12, ""), `"u12"`, `"`+large[:600]+`"`, 1),
		strings.Replace(reported(13, ""), "node.ready", "node.invented_later", 1),
		reported(14, ""),
	)
	type told struct {
		N     int64
		Index int
		Code  string
		Limit int
	}
	var got []told
	for _, x := range out.Refused {
		got = append(got, told{x.N, x.Index, x.Code, x.Limit})
		if x.Detail == "" || x.Limit > 0 && !strings.Contains(x.Detail, fmt.Sprint(x.Limit)) {
			t.Errorf("%+v", x)
		}
	}
	want := []told{{2, 1, "too_large", protocol.MaxEventBytes}, {3, 2, "invalid", 0}, {5, 4, "invalid", 0}, {6, 5, "invalid", 0}, {7, 6, "invalid", 0},
		{8, 7, "invalid", 0}, {9, 8, "invalid", 0}, {10, 9, "too_large", event.MaxTypeBytes}, {11, 10, "invalid", 0}, {12, 11, "too_large", 512}}
	if diff := cmp.Diff(want, got); diff != "" || out.Through != 14 {
		t.Errorf("through %d: %s", out.Through, diff)
	}
	var kept []string
	for _, e := range r.all() {
		var d event.GapDetail
		must(t, json.Unmarshal(e.Detail, &d))
		if e.Type != event.TypeGap {
			kept = append(kept, e.Type+" "+e.Severity)
			continue
		}
		kept = append(kept, fmt.Sprint("gap ", d.From, d.Through)) // in its place, with what the agent was told
		if i := slices.IndexFunc(out.Refused, func(x protocol.RefusedEvent) bool { return x.N == d.From }); i < 0 || d.Refused == "" || d.Refused != out.Refused[i].Detail {
			t.Errorf("%s of %+v", e.Detail, out.Refused)
		}
	}
	keptAll := []string{"node.ready info", "gap 2 2", "gap 3 3", "node.ready info", "gap 5 5", "gap 6 6", "gap 7 7", "gap 8 8", "gap 9 9", "gap 10 10", "gap 11 11",
		"gap 12 12", "node.invented_later info", "node.ready info"}
	if diff := cmp.Diff(keptAll, kept); diff != "" {
		t.Error(diff)
	}
	// One without any number is told by its place, and uses none up.
	if out = r.report(`{"type":"node.ready"}`, reported(15, "")); out.Through != 15 || len(out.Refused) != 1 || out.Refused[0].N != 0 || out.Refused[0].Index != 0 {
		t.Errorf("%+v", out)
	}
	// What is no list of events is refused whole.
	call := func(body string) answer {
		return r.do("agent", "POST", "/v1/agent/events", body)
	}
	call(`{"agent_id":"x","boot":"b","events":[`).problem(400, problem.Malformed)
	call(`{"agent_id":"x","boot":"b","events":[],"more":1}`).problem(422, problem.Invalid)
	call(`{"agent_id":"x","boot":"b","events":{}}`).problem(422, problem.Invalid)
	call(`{"agent_id":"agt_x","boot":"b","events":[]}`).problem(404, problem.NotFound)
	call(fmt.Sprintf(`{"agent_id":%q,"boot":"an older one","events":[]}`, r.agent)).problem(409, problem.LeaseLost)
	over := make([]string, protocol.MaxEvents+1)
	for i := range over {
		over[i] = reported(i+1, "")
	}
	if a := call(fmt.Sprintf(`{"agent_id":%q,"boot":"b","events":[%s]}`, r.agent, strings.Join(over, ","))).problem(413, problem.PayloadTooLarge); a.j["limit"] != float64(protocol.MaxEvents) {
		t.Errorf("%s", a.raw)
	}
	if a := call(`{"boot":"`+strings.Repeat("x", protocol.MaxBodyBytes)+`"}`).problem(413, problem.PayloadTooLarge); a.j["limit"] != float64(protocol.MaxBodyBytes) {
		t.Errorf("%s", a.raw)
	}
}

// TestNewerAgents: kinds of subjects and members that the plane does not know are
// kept, or passed over, and end nothing.
func TestNewerAgents(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	out := r.report(`{"n":1,"type":"node.slice_lost","subject":{"kind":"mig_slice","uid":"MIG-7","name":"slice 7","parent":"GPU-1"},"at":"2026-07-01T12:00:00Z","detail":{"profile":"1g"},"trace":{"id":7}}`)
	evs := r.all()
	if out.Through != 1 || len(out.Refused) != 0 || len(evs) != 1 || evs[0].Subject.Kind != "mig_slice" || evs[0].Subject.Name != "slice 7" || string(evs[0].Detail) != `{"profile":"1g"}` {
		t.Fatalf("%+v, kept %+v", out, evs)
	}
	if got := r.do("viewer", "GET", "/v1/events?subject="+evs[0].Subject.ID+"&cluster="+r.cluster.ID, nil).want(200).ids(); len(got) != 1 {
		t.Errorf("by its subject: %v", got)
	}
}

// TestBatchOutOfOrder: what comes late in a call is taken in its place; only what
// does not come at all is a gap. What is refused is named by its place in the call.
func TestBatchOutOfOrder(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	out := r.report(reported(4, ""), reported(1, ""), strings.Replace(reported(3, ""), "node.ready", "rule.x", 1), reported(2, ""), reported(6, ""))
	if out.Through != 6 || len(out.Refused) != 1 || out.Refused[0].N != 3 || out.Refused[0].Index != 2 {
		t.Errorf("%+v", out)
	}
	var got []string
	for _, e := range r.all() {
		got = append(got, fmt.Sprint(e.Type, " ", e.Subject.ID == fleet.NodeID(r.cluster.ID, fmt.Sprint("u", len(got)+1))))
	}
	if diff := cmp.Diff([]string{"node.ready true", "node.ready true", "stream.gap false", "node.ready true", "stream.gap false", "node.ready true"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestClockOfAnAgent: an hour off, either way, it is believed in timestamp alone.
func TestClockOfAnAgent(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	began := time.Now().Add(-time.Second)
	var sent []time.Time
	for i, off := range []time.Duration{-time.Hour, time.Hour, 0, 20 * 365 * 24 * time.Hour} {
		at := time.Now().Add(off).UTC().Truncate(time.Millisecond)
		sent = append(sent, at)
		r.report(strings.Replace(reported(i+1, ""), "2026-07-01T12:00:00Z", at.Format(time.RFC3339Nano), 1))
	}
	evs := r.all()
	if len(evs) != len(sent) {
		t.Fatalf("%d events", len(evs))
	}
	for i, e := range evs {
		if !e.Timestamp.Equal(sent[i]) || e.ReceivedAt.Before(began) || e.ReceivedAt.After(time.Now().Add(time.Second)) || i > 0 && e.ReceivedAt.Before(evs[i-1].ReceivedAt) {
			t.Errorf("%s: happened %s, received %s", e.ID, e.Timestamp, e.ReceivedAt)
		}
	}
	// One that is decades ahead is found, and kept, as if it were an hour ahead.
	path := "/v1/events?type=node.*&cluster=" + r.cluster.ID + "&since=" + time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339)
	if got := r.do("viewer", "GET", path, nil).want(200).ids(); len(got) != 0 {
		t.Errorf("%d events happen in two hours", len(got))
	}
}

// TestBurstOfReports: 10,000 events at once, each call sent twice at the same time
// and all of them again: each event is there once, in order. What an agent lost is
// a gap with its bounds.
func TestBurstOfReports(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	const total, batch = 10_000, protocol.MaxEvents
	call := func(from, through int) {
		var evs []string
		for n := from; n <= through; n++ {
			evs = append(evs, reported(n, fmt.Sprintf(`,"detail":{"count":%d}`, n)))
		}
		if a := r.report(evs...); a.Through < int64(through) || len(a.Refused) != 0 {
			t.Errorf("%d to %d: %+v", from, through, a)
		}
	}
	began := time.Now()
	for n := 1; n <= total; n += batch {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { call(n, n+batch-1) })
		}
		wg.Wait()
	}
	t.Logf("%d events, each sent twice, in %s", total, time.Since(began).Round(time.Millisecond))
	for n := 1; n <= total; n += batch {
		call(n, n+batch-1)
	}
	call(total+101, total+102) // a hundred are lost
	evs := r.all()
	if len(evs) != total+3 {
		t.Fatalf("%d events", len(evs))
	}
	for i, e := range evs {
		want := fmt.Sprintf(`{"count":%d}`, i+1)
		if i == total {
			want = fmt.Sprintf(`{"agent":%q,"boot":"b","from":%d,"through":%d}`, r.agent, total+1, total+100)
		} else if i > total {
			want = fmt.Sprintf(`{"count":%d}`, i+100)
		}
		if string(e.Detail) != want || (e.Type == event.TypeGap) != (i == total) {
			t.Fatalf("event %d: %s %s, want %s", i, e.Type, e.Detail, want)
		}
	}
}
