package alert

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

const testStream = "clu_00000000000000000000000000"

// fact is an event of the tests, received when it happened, after t0.
func fact(after time.Duration, typ, name string, detail ...any) event.Event {
	at := t0.Add(after)
	d := map[string]any{}
	for i := 0; i+1 < len(detail); i += 2 {
		d[detail[i].(string)] = detail[i+1]
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	e := event.Event{
		Type: typ, Subject: event.Subject{Kind: "node", ID: "id-of-" + name, Name: name},
		Timestamp: at, ReceivedAt: at, Detail: b, Severity: event.Info,
	}
	if op, ok := d["operation"].(string); ok && d["type"] != nil {
		e.OperationID = op
	}
	if k, ok := d["kind"].(string); ok {
		e.Subject.Kind = k
	}
	return e
}

// number gives events their place in the stream.
func number(evs []event.Event) []event.Event {
	for i := range evs {
		e := &evs[i]
		e.Sequence, e.Stream, e.Cluster = int64(i+1), testStream, testStream
		e.ID = id.Derive(id.Event, fmt.Sprint(i))
	}
	return evs
}

// rule parses a rule of the tests.
func rule(t testing.TB, text string) *Compiled {
	t.Helper()
	r, err := ParseRule([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(*r, ShippedID(r.Name), 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func never() bool { return false }

// play judges the events by the rules and lets timers come until the time, and
// returns what was told, as lines "12m0s firing rule{group} reason".
func play(t testing.TB, rules []*Compiled, until time.Duration, evs ...event.Event) []string {
	t.Helper()
	s := NewStream(testStream, NewSet(rules, nil), Position{}, nil)
	return playOn(t, s, until, evs...)
}

func playOn(t testing.TB, s *Stream, until time.Duration, evs ...event.Event) []string {
	t.Helper()
	for _, e := range number(evs) {
		if !s.Judge(NewVars(&e, nil), never) {
			t.Fatal("ended early")
		}
	}
	s.Tick(t0.Add(until), never)
	return lines(s.Take().Told)
}

func lines(told []Transition) []string {
	out := []string{}
	for _, x := range told {
		out = append(out, line(&x))
	}
	return out
}

func line(x *Transition) string {
	group := ""
	for _, k := range []string{"node", "device", "operation", "agent", "queue", "target", "deployment", "stream", "receiver", "g"} {
		if v, ok := x.Alert.Group[k]; ok {
			group = v
			break
		}
	}
	mark := "" // of one that is not told
	if x.Alert.InhibitedBy != "" {
		mark = "*"
	}
	return fmt.Sprintf("%s %s %s{%s} %s%s", x.At.Sub(t0), x.Kind[len("alert."):], x.Alert.Rule, group, x.Alert.Reason, mark)
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
