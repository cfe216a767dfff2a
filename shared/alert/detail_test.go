package alert

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestDetailOfAlerts: what the catalogue of events says of an alert's is what an
// alert is, member by member.
func TestDetailOfAlerts(t *testing.T) {
	t.Parallel()
	members := func(v any) (out []string) {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			out = append(out, f.Tag.Get("json"))
		}
		slices.Sort(out)
		return out
	}
	said := slices.DeleteFunc(members(event.AlertDetail{}), func(m string) bool { return strings.HasPrefix(m, "silence,") }) // told beside the alert
	for _, d := range []string{
		cmp.Diff(members(Alert{}), said), cmp.Diff(members(Evidence{}), members(event.AlertEvidence{})),
		cmp.Diff(members(Step{}), members(event.AlertStep{})), cmp.Diff(members(Ack{}), members(event.AlertAck{})),
	} {
		if d != "" {
			t.Errorf("(-alert +detail):\n%s", d)
		}
	}
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	whole := Alert{ID: "alr_1", Rule: "hot", RuleID: "rul_1", RuleVersion: 2, Cluster: "clu_1", Stream: "clu_1", Group: map[string]string{"node": "n1"}, Folded: true,
		State: Resolved, Severity: event.Error, Labels: map[string]string{"team": "x"}, Summary: "s", Runbook: "r", Since: at, FiredAt: &at, ResolvedAt: &at, Reason: ReasonQuiet,
		Last: at, Count: 3, Evidence: []Evidence{{Event: "evt_1", Type: "node.left", Sequence: 4, At: at}}, Flapping: true, InhibitedBy: "alr_2", SilencedBy: "sil_1",
		Acked: &Ack{By: operation.Actor{ID: "a", Kind: "token", Name: "n"}, At: at, Note: "n"}, Subject: event.Subject{Kind: "node", ID: "nod_1", Name: "n1"},
		Operation: "op_1", History: []Step{{At: at, State: Firing, Reason: ReasonHolds}}, GroupKey: "k"}
	b, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var detail event.AlertDetail
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&detail); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(detail)
	if err != nil || string(again) != string(b) {
		t.Errorf("%v\n%s, told\n%s", err, again, b)
	}
}

// That groups are folded is about no alert: its detail has no member of one that is
// empty.
func TestDetailOfFolding(t *testing.T) {
	t.Parallel()
	s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: each\non: [x.a]\ngroup_by: {g: event.subject.name}\n")}, nil), Position{}, nil)
	s.MaxGroups = 2
	for _, e := range number([]event.Event{fact(0, "x.a", "a"), fact(0, "x.a", "b"), fact(0, "x.a", "c")}) {
		s.Judge(NewVars(&e, nil), never)
	}
	for _, x := range s.Take().Told {
		if x.Kind != TypeFolded {
			continue
		}
		want := `{"rule":"each","rule_id":"` + ShippedID("each") + `","rule_version":1,"cluster":"` + testStream + `","stream":"` + testStream + `","group":{"g":"(other)"},"groups":3}`
		if d := cmp.Diff(want, string(encode(t, x.Detail()))); d != "" {
			t.Error(d)
		}
		return
	}
	t.Error("it is not told")
}

// What an expression asks of the operation is known by whatever name it asks.
func TestWhatIsAskedOfTheOperation(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]bool{
		`operation.reason == "x"`:                                true,
		`operation.?reason.orValue("") == "x"`:                   true,
		`[operation].exists(o, o.reason == "x")`:                 true,
		`optional.of(operation).?reason.orValue("") == "x"`:      true,
		`operation.phase == "x" && event.detail.?reason == null`: false,
	} {
		c, err := Compile(Rule{Name: "x", On: []string{"x.a"}, When: expr}, "rul_1", 1)
		if err != nil || c.NeedsSpec() != want {
			t.Errorf("%s: its spec is needed: want %v; %v", expr, want, err)
		}
	}
}
