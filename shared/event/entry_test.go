package event

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

func spec() *operation.Spec {
	node := id.Derive(id.Node, "n")
	return &operation.Spec{
		ID: id1, Request: operation.Request{Type: "node.drain", Reason: "firmware"}, TargetID: node, TargetName: "node:gpu-4", TargetUID: "uid",
		Cluster: "clu_a", Resources: []string{node, "dev_x"}, Locks: []operation.Lock{{Resource: node, Mode: operation.Exclusive}},
		Actor: operation.Actor{ID: "ann", Kind: "token"}, CorrelationID: "corr", CreatedAt: t0,
	}
}

func TestFromEntry(t *testing.T) {
	t.Parallel()
	sp := spec()
	s, entries, err := operation.Admit(sp, t0.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	all := entries
	for _, c := range []operation.Change{
		operation.Wait{Waiting: &operation.Waiting{Code: operation.WaitNoAgent, Since: t0, Detail: "none online"}},
		operation.Dispatch{}, operation.Claim{Agent: "agt_1", Boot: "b", Until: t0.Add(time.Minute)}, operation.LoseLease{},
		operation.LateReport{Agent: "agt_1", Generation: 1, Detail: "was done"}, operation.Expire{},
	} {
		if s, entries, err = operation.Apply(sp, s, c, t0.Add(time.Second)); err != nil {
			t.Fatalf("%T: %v", c, err)
		}
		all = append(all, entries...)
	}
	var types []string
	ids := map[string]bool{}
	details := map[string]map[string]any{}
	for _, e := range all {
		ev, ok := FromEntry(sp, e)
		if ok != (e.EventType() != "") {
			t.Errorf("entry %s: %t", e.Kind, ok)
		}
		if !ok {
			continue
		}
		if again, _ := FromEntry(sp, e); fmt.Sprint(again) != fmt.Sprint(ev) {
			t.Errorf("%s is not the same twice", ev.Type)
		}
		if !id.Valid(id.Event, ev.ID) || ids[ev.ID] {
			t.Errorf("%s: id %s", ev.Type, ev.ID)
		}
		ids[ev.ID] = true
		if ev.Subject != (Subject{"node", sp.TargetID, "gpu-4"}) || ev.Cluster != "clu_a" || ev.OperationID != id1 ||
			ev.CorrelationID != "corr" || ev.Actor != e.By || !ev.Timestamp.Equal(e.At) || ev.Severity != SeverityOf(ev.Type) {
			t.Errorf("%s: %+v", ev.Type, ev)
		}
		if _, ok := Lookup(ev.Type); !ok {
			t.Errorf("%s is not in the catalogue", ev.Type)
		}
		var d map[string]any
		if err := json.Unmarshal(ev.Detail, &d); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(d["resources"]) != fmt.Sprint(sp.Resources) || d["type"] != "node.drain" || d["target"] != sp.TargetID || d["operation"] != id1 {
			t.Errorf("%s: detail %s", ev.Type, ev.Detail)
		}
		details[ev.Type] = d
		types = append(types, ev.Type)
	}
	want := "[operation.pending operation.waiting operation.dispatched operation.running operation.reconciling operation.late_report operation.timed_out]"
	if fmt.Sprint(types) != want {
		t.Errorf("types %v, want %s", types, want)
	}
	if d := details["operation.waiting"]; d["reason"] != "no_agent" || d["detail"] != "none online" || d["phase"] != nil {
		t.Errorf("waiting: %v", d)
	}
	if d := details["operation.running"]; d["phase"] != "running" || d["from"] != "dispatched" {
		t.Errorf("running: %v", d)
	}
	if cause, _ := details["operation.timed_out"]["cause"].(map[string]any); cause["error_code"] != "deadline_exceeded" {
		t.Errorf("timed out: %v", details["operation.timed_out"])
	}
}

func TestFromEntryPlane(t *testing.T) {
	t.Parallel()
	sp := spec()
	sp.Cluster, sp.TargetID, sp.TargetName, sp.Resources = "", "fleet", "fleet", make([]string, maxResources+5)
	ev, ok := FromEntry(sp, operation.Entry{Seq: 1, At: t0, Kind: operation.EntryTransition, To: operation.Pending})
	if !ok || ev.Stream != PlaneStream || ev.Cluster != "" || ev.Subject != (Subject{"fleet", "fleet", "fleet"}) {
		t.Errorf("%+v", ev)
	}
	var d OperationDetail
	if err := json.Unmarshal(ev.Detail, &d); err != nil || len(d.Resources) != maxResources || d.LeftOff != 5 {
		t.Errorf("%d resources, %d left off, %v", len(d.Resources), d.LeftOff, err)
	}
}

// TestCatalogue: every phase has its type, and every type its form and a known
// severity.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	for _, p := range operation.Phases {
		if _, ok := Lookup(OfPhase(p)); !ok {
			t.Errorf("no type for phase %s", p)
		}
	}
	seen := map[string]bool{}
	for _, a := range Catalogue() {
		known := a.Severity == Info || a.Severity == Warning || a.Severity == Error || a.Severity == Critical
		if !ValidType(a.Type) || seen[a.Type] || !known || a.Description == "" {
			t.Errorf("%+v", a)
		}
		seen[a.Type] = true
	}
	if SeverityOf("gpu.on_fire") != Info {
		t.Error("severity of an unknown type")
	}
}

func TestEventJSON(t *testing.T) {
	t.Parallel()
	e := fact("node.left", "a", 1)
	e.place("clu_a", 7)
	e.Actor, e.OperationID, e.CorrelationID = operation.Sweep, id1, "c"
	plane, err := New("manual.change", "", Subject{KindPlane, "plane", "plane"}, t0, operation.Actor{}, nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		e    Event
		want string
	}{
		{e, `{"id":"` + e.ID + `","type":"node.left","subject":{"kind":"node","id":"` + e.Subject.ID + `","name":"a"},"cluster":"clu_a","cluster_id":"clu_a",` +
			`"timestamp":"2076-07-01T12:00:01Z","received_at":"2076-07-01T12:00:01Z","stream":"clu_a","sequence":7,"detail":{"n":1},` +
			`"operation_id":"` + id1 + `","correlation_id":"c","actor":{"id":"sweep","kind":"plane"},"severity":"info"}`},
		{plane, `{"id":"` + plane.ID + `","type":"manual.change","subject":{"kind":"plane","id":"plane","name":"plane"},"cluster":null,"cluster_id":null,` +
			`"timestamp":"2076-07-01T12:00:00Z","received_at":"2076-07-01T12:00:00Z","stream":"plane","sequence":0,"detail":{},` +
			`"operation_id":null,"correlation_id":null,"actor":null,"severity":"warning"}`},
	} {
		b, err := json.Marshal(tt.e)
		if err != nil || string(b) != tt.want {
			t.Errorf("got  %s\nwant %s (%v)", b, tt.want, err)
		}
		var back Event
		if err := json.Unmarshal(b, &back); err != nil || fmt.Sprintf("%+v", back) != fmt.Sprintf("%+v", tt.e) {
			t.Errorf("back %+v\nwas  %+v (%v)", back, tt.e, err)
		}
	}
}
