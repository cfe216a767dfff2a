package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

// lists are so many lists, one in the other.
func lists(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// TestUnreadableDetails: what some reader could not read is refused by itself, with
// the reason, in a stream.gap, too; what is served, everyone reads.
func TestUnreadableDetails(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	var events []string
	add := func(detail string) { events = append(events, reported(len(events)+1, `,"detail":`+detail)) }
	bad := map[int64]string{}
	for _, x := range []struct{ detail, says string }{
		{`{"message":"\ud83d\ude00"}`, ""},
		{`{"message":"\ud800"}`, `/detail/message holds half of a surrogate pair (\ud800)`},
		{`{"a":` + lists(operation.MaxJSONDepth-1) + `}`, ""},
		{`{"a":` + lists(operation.MaxJSONDepth) + `}`, "deeper than 32 levels"},
		{`{"a":` + lists(5000) + `}`, "deeper than 32 levels"},
		{`{"a":` + lists(9995) + `}`, "deeper than 32 levels"},
		{`{"a":` + lists(9996) + `}`, "deeper than 32 levels"},
		{`{"a":` + lists(50_000) + `}`, "deeper than 32 levels"},
		{strings.Repeat(`{"a\"[":"}",  "b":`, 15_000) + `"]"` + strings.Repeat("}", 15_000), "deeper than 32 levels"},
		{lists(20_000), "deeper than 32 levels"},
		{`{"a":1e999}`, "/detail/a is a number that no double can hold (1e999)"},
		{`{"a":1,"a":2}`, "/detail/a is there twice"},
		{"{\"a\":\"\xff\"}", "/detail is not UTF-8"},
		{`{"a":"\u0000 ü"}`, ""},
	} {
		add(x.detail)
		if x.says != "" {
			bad[int64(len(events))] = x.says
		}
	}
	events = append(events, reported(len(events)+1, `,"later":`+lists(30_000))) // passed over
	events = append(events, fmt.Sprintf(`{"n":%d,"type":"node.ready","subject":%s}`, len(events)+1, lists(12_000)))
	bad[int64(len(events))] = "/subject must be an object, is an array"
	out := r.report(events...)
	if out.Through != int64(len(events)) || len(out.Refused) != len(bad) {
		t.Errorf("through %d, refused %+v", out.Through, out.Refused)
	}
	for _, x := range out.Refused {
		if says := bad[x.N]; says == "" || !strings.Contains(x.Detail, says) || x.Index != int(x.N)-1 {
			t.Errorf("%+v, want %s", x, says)
		}
	}
	evs := r.all()
	if len(evs) != len(events) {
		t.Fatalf("%d of %d events", len(evs), len(events))
	}
	for i, e := range evs {
		if err := operation.CheckJSON("", e.Detail); err != nil {
			t.Errorf("event %d: %v", i+1, err)
		}
		if gap := e.Type == event.TypeGap; gap != (bad[int64(i+1)] != "") {
			t.Errorf("event %d is %s", i+1, e.Type)
		}
	}
	// A call that is nested so elsewhere is refused for what it is.
	call := func(body string) answer { return r.do("agent", "POST", "/v1/agent/events", body) }
	call(`{"agent_id":"x","boot":`+lists(20_000)+`}`).problem(422, problem.Invalid).points("/boot")
	call(`{"agent_id":"x","zzz":`+lists(20_000)+`}`).problem(422, problem.Invalid).points("/zzz")
	call(lists(20_000)).problem(422, problem.Invalid).points("")
	call(`{"events":[{"detail":`+strings.Repeat("[", 20_000)+`}]}`).problem(400, problem.Malformed)
}

// TestOldDetailsAreServedReadable: what was stored before details were checked.
func TestOldDetailsAreServedReadable(t *testing.T) {
	t.Parallel()
	p := setup(t)
	base, _ := p.listen()
	var evs []event.Event
	for i, detail := range []string{`{"message":"\ud800"}`, `{"a":` + lists(9000) + `}`, `{"a":1e999}`, `{"b":1,"a":2}`} {
		e, err := event.New("node.left", p.cluster.ID, event.Subject{Kind: "node"}, p.api.now(), operation.Plane, nil, fmt.Sprint(i))
		must(t, err)
		e.Detail = json.RawMessage(detail)
		evs = append(evs, e)
	}
	_, err := event.Append(t.Context(), p.db, p.cluster.ID, evs, nil)
	must(t, err)
	a := p.do("viewer", "GET", "/v1/events?type=node.left&cluster="+p.cluster.ID, nil).want(200)
	var page struct {
		Items []struct{ Detail json.RawMessage }
	}
	must(t, json.Unmarshal([]byte(a.raw), &page))
	if len(page.Items) != len(evs) {
		t.Fatalf("%d events", len(page.Items))
	}
	s := p.opened(base, "viewer", "type=node.left&cluster="+p.cluster.ID, "")
	for i, x := range page.Items {
		streamed := s.event(t).Detail
		if err := operation.CheckJSON("", x.Detail); err != nil || string(streamed) != string(x.Detail) {
			t.Errorf("event %d: %.100s and %.100s, %v", i, x.Detail, streamed, err)
		}
	}
	if last := string(page.Items[3].Detail); last != `{"b":1,"a":2}` {
		t.Errorf("a good one became %s", last)
	}
}

// TestCordonsBelongToOperations: by the word of the agent, as far as there is such an
// operation in its cluster.
func TestCordonsBelongToOperations(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	own, others := r.create(r.node(r.cluster, "a")), r.create(r.node(r.other, "b"))
	const none = "op_01k0000000000000000000000a"
	var events []string
	add := func(typ, detail string) {
		events = append(events, strings.Replace(reported(len(events)+1, `,"detail":`+detail), "node.ready", typ, 1))
	}
	of := func(op string) string { return fmt.Sprintf(`{"owner":"opsplane","operation":%q}`, op) }
	add("node.cordoned", of(own))
	add("node.uncordoned", of(own))
	add("node.cordoned", of(others))
	add("node.cordoned", of(none))
	add("node.cordoned", of("x"))
	add("node.cordoned", `{"operation":{"id":1}}`)
	add("node.cordoned", `{"owner":"outside"}`)
	add("node.ready", of(own))
	if out := r.report(events...); len(out.Refused) > 0 || out.Through != int64(len(events)) {
		t.Fatalf("%+v", out)
	}
	op, err := r.store.Load(t.Context(), own)
	must(t, err)
	for i, e := range r.all() {
		want, correlation := "", ""
		if i < 2 {
			want, correlation = own, op.Spec.CorrelationID
		}
		if e.OperationID != want || e.CorrelationID != correlation {
			t.Errorf("event %d, %s: operation %q, correlation %q", i+1, e.Detail, e.OperationID, e.CorrelationID)
		}
	}
	found := r.do("viewer", "GET", "/v1/events?type=node.*&subject="+own, nil).want(200).items()
	if len(found) != 2 || found[0]["type"] != "node.cordoned" || found[1]["type"] != "node.uncordoned" {
		t.Errorf("by the operation: %v", found)
	}
}
