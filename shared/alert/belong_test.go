package alert

import (
	"testing"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestEventsThatBelongToOperations: of one that is no transition the operation's spec
// tells what the operation is, and the agent's detail nothing of it.
func TestEventsThatBelongToOperations(t *testing.T) {
	t.Parallel()
	spec := &operation.Spec{ID: "op_1", TargetID: "nod_1", TargetName: "node:n1", NodeName: "n1", Parent: "op_0", Resources: []string{"nod_1"},
		Request: operation.Request{Type: "node.drain", Reason: "firmware"}, Actor: operation.Actor{ID: "ann", Kind: "token"}}
	e := fact(0, "node.cordoned", "n1", "operation", "op_1", "type", "node.explode", "phase", "failed", "from", "running", "reason", "by hand", "target", "nod_9",
		"generation", 7, "resources", []string{"nod_9"})
	e.OperationID = "op_1"
	for expr, want := range map[string]bool{
		`operation.id == "op_1"`:         true,
		`operation.type == "node.drain"`: true,
		`operation.reason == "firmware"`: true,
		`operation.actor.id == "ann"`:    true,
		`operation.target == "nod_1" && operation.node == "n1" && operation.parent == "op_0" && operation.target_name == "node:n1"`: true,
		`operation.resources == ["nod_1"]`:                  true,
		`operation.phase == "" && operation.from == ""`:     true,
		`operation.code == "" && operation.generation == 0`: true,
		`event.detail.reason == "by hand"`:                  true,
		`operation.type == "node.explode"`:                  false,
	} {
		c := rule(t, "name: x\non: [node.cordoned]\nwhen: '"+expr+"'")
		s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
		x := number([]event.Event{e})[0]
		if !s.Judge(NewVars(&x, spec), never) {
			t.Fatal("ended early")
		}
		if got := len(s.Take().Told) > 0; got != want || s.Meter.Errors > 0 {
			t.Errorf("%s: %v, want %v", expr, got, want)
		}
	}
	typed := rule(t, "name: a\non: [node.*, operation.failed]\nwhen: operation.type == 'node.drain'")
	byID := rule(t, "name: b\non: [node.left]\nwhen: operation.id != ''")
	set := NewSet([]*Compiled{typed}, nil)
	if !set.NeedsSpec("node.cordoned") || set.NeedsSpec("operation.failed") || NewSet([]*Compiled{byID}, nil).NeedsSpec("node.left") {
		t.Error("the spec is read for what does not need it, or not for what does")
	}
}
