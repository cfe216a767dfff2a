package operation

import "encoding/json"

var _ = register(Definition{
	Type:    "node.cordon",
	Targets: []string{KindNode},
	Payload: func(f *Fields) {},
	Plan: func(t Target, _ json.RawMessage) ([]Lock, []PlanStep) {
		return []Lock{{t.ID, Exclusive}}, []PlanStep{
			{Name: "cordon", Title: "Mark the node unschedulable", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "node.cordon", Risk: "low"},
			{Name: "confirm", Title: "Observe the node cordoned", Required: true, Interruptible: true, ReplaySafe: true, Capability: "node.cordon"},
		}
	},
})
