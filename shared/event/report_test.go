package event

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func report() protocol.Event {
	return protocol.Event{
		N: 3, Type: "gpu.xid_error", Subject: protocol.Subject{Kind: "node", UID: "uid-1", Name: "gpu-4"},
		At: t0.Add(-time.Hour), Detail: json.RawMessage(`{"xid":79}`),
	}
}

// nested is a detail of so many levels.
func nested(levels int) json.RawMessage {
	return json.RawMessage(`{"a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`)
}

func TestFromReport(t *testing.T) {
	t.Parallel()
	e, err := FromReport("clu_a", "agt_1", "boot", report(), t0)
	if err != nil {
		t.Fatal(err)
	}
	if e.Subject != (Subject{"node", fleet.NodeID("clu_a", "uid-1"), "gpu-4"}) || e.Stream != "clu_a" || e.Actor.ID != "agt_1" ||
		!e.Timestamp.Equal(t0.Add(-time.Hour)) || !e.ReceivedAt.Equal(t0) || string(e.Detail) != `{"xid":79}` || e.Severity != Info {
		t.Errorf("%+v", e)
	}
	again, err := FromReport("clu_a", "agt_1", "boot", report(), t0.Add(time.Minute))
	if err != nil || again.ID != e.ID {
		t.Errorf("a resend is %s, was %s (%v)", again.ID, e.ID, err)
	}
	for name, other := range map[string][3]string{"cluster": {"clu_b", "agt_1", "boot"}, "agent": {"clu_a", "agt_2", "boot"}, "boot": {"clu_a", "agt_1", "b2"}} {
		if o, err := FromReport(other[0], other[1], other[2], report(), t0); err != nil || o.ID == e.ID {
			t.Errorf("another %s has the same id (%v)", name, err)
		}
	}
}

func TestFromReportSubjects(t *testing.T) {
	t.Parallel()
	const gpu = "GPU-8f3c0000-0000-4000-8000-00000000000a"
	for _, tt := range []struct {
		in   protocol.Subject
		want Subject
	}{
		{protocol.Subject{Kind: "node", UID: "u"}, Subject{"node", fleet.NodeID("clu_a", "u"), "u"}},
		{protocol.Subject{Kind: "device", UID: "8F3C0000-0000-4000-8000-00000000000A", Name: "gpu0"}, Subject{"device", fleet.DeviceID("clu_a", gpu), gpu}},
		{protocol.Subject{Kind: "deployment", UID: "u", Name: "ns/web"}, Subject{"deployment", fleet.DeploymentID("clu_a", "u"), "ns/web"}},
		{protocol.Subject{Kind: "component", UID: "u", Name: "operator"}, Subject{"component", fleet.ComponentID("clu_a", "operator"), "operator"}},
		{protocol.Subject{Kind: "agent", Name: "a0"}, Subject{"agent", fleet.AgentID("clu_a", "a0"), "a0"}},
		{protocol.Subject{Kind: "cluster"}, Subject{"cluster", "clu_a", ""}},
		{protocol.Subject{Kind: "mig_slice", UID: "u", Name: "slice 3"}, Subject{"mig_slice", id.Derive(id.Object, "clu_a", "mig_slice", "u"), "slice 3"}}, // a newer agent's
	} {
		r := report()
		r.Subject = tt.in
		if e, err := FromReport("clu_a", "agt_1", "b", r, t0); err != nil || e.Subject != tt.want {
			t.Errorf("%+v gives %+v, want %+v (%v)", tt.in, e.Subject, tt.want, err)
		}
	}
}

func TestFromReportRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*protocol.Event)
		says  string
	}{
		"n":             {func(r *protocol.Event) { r.N = 0 }, "from 1 to 9007199254740991"},
		"no type":       {func(r *protocol.Event) { r.Type = "" }, "type"},
		"type":          {func(r *protocol.Event) { r.Type = "Node.Left" }, "type"},
		"one word":      {func(r *protocol.Event) { r.Type = "node" }, "type"},
		"long type":     {func(r *protocol.Event) { r.Type = "a." + strings.Repeat("b", 127) }, "128"},
		"plane's word":  {func(r *protocol.Event) { r.Type = "operation.succeeded" }, "only the plane"},
		"plane's type":  {func(r *protocol.Event) { r.Type = TypeAgentSilent }, "only the plane"},
		"no time":       {func(r *protocol.Event) { r.At = time.Time{} }, "at is missing"},
		"time":          {func(r *protocol.Event) { r.At = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) }, "9999"},
		"large":         {func(r *protocol.Event) { r.Detail = big(1, protocol.MaxEventBytes)[0].Detail }, "the limit is 32768"},
		"no object":     {func(r *protocol.Event) { r.Detail = json.RawMessage(`[1]`) }, "object"},
		"broken detail": {func(r *protocol.Event) { r.Detail = json.RawMessage(`{`) }, "/detail is not JSON"},
		"not UTF-8":     {func(r *protocol.Event) { r.Detail = json.RawMessage("{\"a\":\"\xff\"}") }, "/detail is not UTF-8"},
		"surrogate":     {func(r *protocol.Event) { r.Detail = json.RawMessage(`{"a":{"b":["\ud800"]}}`) }, "/detail/a/b/0 holds half of a surrogate pair"},
		"deep":          {func(r *protocol.Event) { r.Detail = nested(operation.MaxJSONDepth + 1) }, "nested deeper than 32 levels"},
		"very deep":     {func(r *protocol.Event) { r.Detail = nested(9990) }, "nested deeper than 32 levels"},
		"number":        {func(r *protocol.Event) { r.Detail = json.RawMessage(`{"a":1e999}`) }, "/detail/a is a number that no double can hold"},
		"twice":         {func(r *protocol.Event) { r.Detail = json.RawMessage(`{"a":1,"a":2}`) }, "/detail/a is there twice"},
		"kind":          {func(r *protocol.Event) { r.Subject.Kind = "Pod 7" }, "kind"},
		"no kind":       {func(r *protocol.Event) { r.Subject.Kind = "" }, "kind"},
		"long kind":     {func(r *protocol.Event) { r.Subject.Kind = strings.Repeat("x", 64) }, "63"},
		"plane's kind":  {func(r *protocol.Event) { r.Subject.Kind = "operation" }, "kind"},
		"kind, no uid":  {func(r *protocol.Event) { r.Subject.Kind, r.Subject.UID = "mig_slice", "" }, "uid"},
		"no uid":        {func(r *protocol.Event) { r.Subject.UID = "" }, "uid"},
		"long name":     {func(r *protocol.Event) { r.Subject.Name = strings.Repeat("x", 513) }, "the limit is 512"},
		"control":       {func(r *protocol.Event) { r.Subject.Name = "a\x1b[2J" }, "control"},
	} {
		r := report()
		tt.spoil(&r)
		if _, err := FromReport("clu_a", "agt_1", "b", r, t0); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOldDetails: what was taken before details were checked can be read by everyone.
func TestOldDetails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kept json.RawMessage
		want string
	}{
		"as it came": {json.RawMessage(`{"b":1,"a":"\ud83d\ude00"}`), `{"b":1,"a":"\ud83d\ude00"}`},
		"surrogate":  {json.RawMessage(`{"message":"x\ud800"}`), `{"message":"x` + "\ufffd" + `"}`},
		"deep":       {nested(9990), strings.Replace(string(nested(operation.MaxJSONDepth)), "[]", "[null]", 1)},
		"number":     {json.RawMessage(`{"a":1e999}`), `{"a":"1e999"}`},
	} {
		e, err := New("node.left", "clu_a", Subject{Kind: "node"}, t0, operation.Plane, nil, name)
		if err != nil {
			t.Fatal(err)
		}
		e.Detail = tt.kept
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Detail json.RawMessage }
		if err := json.Unmarshal(b, &got); err != nil || string(got.Detail) != tt.want {
			t.Errorf("%s: %s, want %s (%v)", name, got.Detail, tt.want, err)
		}
	}
}

func TestToldOperation(t *testing.T) {
	t.Parallel()
	const op = "op_01k0000000000000000000000a"
	for _, tt := range []struct{ typ, detail, want string }{
		{TypeNodeCordoned, `{"owner":"opsplane","operation":"` + op + `"}`, op},
		{TypeNodeUncordoned, `{"operation":"` + op + `"}`, op},
		{TypeNodeCordoned, `{"operation":"op_x"}`, ""},
		{TypeNodeCordoned, `{"operation":7}`, ""},
		{TypeNodeCordoned, `{"operation":"clu_01k0000000000000000000000a"}`, ""},
		{TypeNodeCordoned, `{}`, ""},
		{"node.ready", `{"operation":"` + op + `"}`, ""},
		{TypeWaiting, `{"operation":"` + op + `"}`, ""},
	} {
		if got := (&Event{Type: tt.typ, Detail: json.RawMessage(tt.detail)}).ToldOperation(); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.typ, tt.detail, got, tt.want)
		}
	}
}

func TestGap(t *testing.T) {
	t.Parallel()
	e := Gap("clu_a", "agt_1", "a0", "boot", 5, 9, "", t0)
	if e.Type != TypeGap || e.Severity != Warning || e.Cluster != "clu_a" || e.Subject != (Subject{"agent", "agt_1", "a0"}) ||
		string(e.Detail) != `{"agent":"agt_1","boot":"boot","from":5,"through":9}` {
		t.Errorf("%+v %s", e, e.Detail)
	}
	if again := Gap("clu_a", "agt_1", "a0", "boot", 5, 9, "", t0.Add(time.Hour)); again.ID != e.ID {
		t.Error("the same gap has another id")
	}
	if err := check(&e); err != nil {
		t.Error(err)
	}
}
