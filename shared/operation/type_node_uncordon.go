package operation

import "encoding/json"

var _ = register(Definition{
	Type:    "node.uncordon",
	Targets: []string{KindNode},
	Payload: func(f *Fields) { f.Bool("take_over", false) },
	Plan: func(t Target, _ json.RawMessage) ([]Lock, []PlanStep) {
		return []Lock{{t.ID, Exclusive}}, []PlanStep{
			{Name: "uncordon", Title: "Mark the node schedulable", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "node.cordon", Risk: "low"},
			{Name: "confirm", Title: "Observe the node schedulable", Required: true, Interruptible: true, ReplaySafe: true, Capability: "node.cordon"},
		}
	},
})
