package httpapi

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
)

// goWords are words that only a Go program has for what is in a body.
var goWords = regexp.MustCompile(`struct|RawMessage|\[\]|int64|json:|interface|map\[|Go |parsing time|2006-01-02|unmarshal`)

// TestMisfits: what is wrong with an agent's body is told in words of JSON, and where.
func TestMisfits(t *testing.T) {
	t.Parallel()
	p := setup(t)
	const time = "must be an RFC 3339 timestamp such as 2026-11-29T12:00:00Z"
	for _, tt := range []struct{ call, body, pointer, says string }{
		{"events", `7`, "", "must be an object, is a number (7)"},
		{"events", `[]`, "", "must be an object, is an array"},
		{"events", `{"events":{}}`, "/events", "must be an array, is an object"},
		{"events", `{"events":"x"}`, "/events", `must be an array, is a string ("x")`},
		{"events", `{"agent_id":["a"]}`, "/agent_id", "must be a string, is an array"},
		{"events", `{"boot":"b","x/y":{"z":1}}`, "/x~1y", "is not a field of this object"},
		{"heartbeat", `{"sent_at":"yesterday"}`, "/sent_at", time + `, is a string ("yesterday")`},
		{"heartbeat", `{"sent_at":5}`, "/sent_at", time + ", is a number (5)"},
		{"heartbeat", `{"leases":1.5}`, "/leases", "must be a whole number that 64 bits hold, is a number (1.5)"},
		{"heartbeat", `{"leases":1e99}`, "/leases", "must be a whole number that 64 bits hold, is a number (1e99)"},
		{"heartbeat", `{"stopping":"no"}`, "/stopping", `must be true or false, is a string ("no")`},
		{"heartbeat", `{"capabilities":[{"name":"a"},{"name":"b","version":{}}]}`, "/capabilities/1/version", "is an object"},
		{"heartbeat", `{"capabilities":[{"name":"a","more":1}]}`, "/capabilities/0/more", "is not a field"},
		{"heartbeat", `{"NAME":true}`, "/NAME", "must be a string, is true"},
		{"claims", `{"claims":[[]]}`, "/claims/0", "must be an object, is an array"},
		{"renewals", `{"renewals":0}`, "/renewals", "must be an array"},
		{"reports", `{"reports":[{},{"final":{"outcome":{"a":1}}}]}`, "/reports/1/final/outcome", "must be a string, is an object"},
		{"reports", `{"reports":[{"progress":[]}]}`, "/reports/0/progress", "must be an object, is an array"},
		{"inventory", `{"objects":{"nodes":[{"labels":{"a":1}}]}}`, "/objects/nodes/0/labels/a", "must be a string, is a number (1)"},
		{"inventory", `{"objects":{"nodes":[{"cordon":{"since":"now"}}]}}`, "/objects/nodes/0/cordon/since", time},
		{"queue/receive", `{"max":"x"}`, "/max", "must be a whole number"},
		{"queue/bury", `{"id":3}`, "/id", "must be a string"},
		{"events", `{"boot":7} {}`, "/boot", "must be a string"},
	} {
		a := p.do("agent", "POST", "/v1/agent/"+tt.call, tt.body).problem(422, problem.Invalid)
		if said := a.detailAt(tt.pointer); !strings.Contains(said, tt.says) || goWords.MatchString(a.raw) {
			t.Errorf("%s %s: %s", tt.call, tt.body, a.raw)
		}
	}
	for _, body := range []string{`{`, `{"a"}`, `nope`, `{"boot":"b"}{`, "{\"boot\":\"\x01\"}"} {
		if a := p.do("agent", "POST", "/v1/agent/heartbeat", body).problem(400, problem.Malformed); goWords.MatchString(a.raw) {
			t.Errorf("%s: %s", body, a.raw)
		}
	}
}

// TestMisfitEvents: an event that cannot be read is told by its field, and leaves the
// others.
func TestMisfitEvents(t *testing.T) {
	t.Parallel()
	r := newReporter(t, "b")
	bad := []struct{ event, says string }{
		{`7`, "it must be an object, is a number (7)"},
		{`"what"`, `it must be an object, is a string ("what")`},
		{`[]`, "it must be an object, is an array"},
		{`null`, "it must be an object, is null"},
		{`{"n":6,"type":7}`, "/type must be a string, is a number (7)"},
		{`{"n":7,"type":"node.ready","subject":"n1"}`, `/subject must be an object, is a string ("n1")`},
		{`{"n":8,"type":"node.ready","subject":{"uid":1}}`, "/subject/uid must be a string, is a number (1)"},
		{`{"n":9,"type":"node.ready","at":"yesterday"}`, "/at must be an RFC 3339 timestamp such as 2026-11-29T12:00:00Z, is a string"},
		{`{"n":10,"at":{}}`, "/at must be an RFC 3339 timestamp"},
		{`{"n":1.5}`, "/n must be a whole number"},
		{`{"type":"node.ready"}`, "/n is missing"},
		{reported(13, `,"detail":"x"`), "/detail is not a JSON object"},
	}
	events := []string{reported(1, "")}
	for _, b := range bad {
		events = append(events, b.event)
	}
	out := r.report(append(events, reported(99, ""))...)
	if len(out.Refused) != len(bad) || out.Through != 99 {
		t.Fatalf("%+v", out)
	}
	for i, x := range out.Refused {
		if x.Index != i+1 || !strings.Contains(x.Detail, bad[i].says) || goWords.MatchString(x.Detail) {
			t.Errorf("%s: %+v, want %s", bad[i].event, x, bad[i].says)
		}
	}
}

// TestMisfitProperty: whatever encoding/json does not take has a misfit, and what it
// takes has none.
func TestMisfitProperty(t *testing.T) {
	t.Parallel()
	values := []string{`null`, `7`, `-1.5`, `1e400`, `"x"`, `"2026-07-01T12:00:00Z"`, `true`, `{}`, `[]`, `[{}]`, `[[1]]`, `{"name":1}`, `{"uid":"a"}`, `[7,{"n":"x"}]`}
	names := []string{"n", "type", "subject", "at", "detail", "reports", "final", "agent_id", "Boot", "zzz"}
	rapid.Check(t, func(t *rapid.T) {
		members := map[string]json.RawMessage{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			members[rapid.SampledFrom(names).Draw(t, "name")] = json.RawMessage(rapid.SampledFrom(values).Draw(t, "value"))
		}
		raw, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		for _, into := range []any{&protocol.Event{}, &protocol.ReportRequest{}, &protocol.EventsRequest{}} {
			err := decodeStrict(raw, into)
			if p, ok := err.(*problem.Problem); err != nil && (!ok || p.ErrorCode != problem.Invalid || len(p.Errors) != 1 || goWords.MatchString(p.Detail)) { //nolint:errorlint // as it is
				t.Fatalf("%s into %T: %v", raw, into, err)
			}
		}
	})
}
