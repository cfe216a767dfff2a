package operation

import "encoding/json"

var _ = register(Definition{
	Type:    "device.reset",
	Targets: []string{KindDevice},
	Payload: func(f *Fields) { f.Bool("drain", false) },
	Plan: func(t Target, p json.RawMessage) ([]Lock, []PlanStep) {
		var d struct {
			Drain bool `json:"drain"`
		}
		_ = json.Unmarshal(p, &d) // checked by Payload
		steps := []PlanStep{
			{Name: "preflight", Title: "Find holders, MIG changes, NVLink peers", Required: true, Interruptible: true, ReplaySafe: true, Capability: "device.reset"},
		}
		if d.Drain {
			steps = append(steps, PlanStep{Name: "drain_holders", Title: "Evict the pods that hold the device", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "node.drain", Risk: "high"})
		}
		steps = append(steps,
			PlanStep{Name: "reset", Title: "Reset the device", Required: true, Effect: true, Capability: "device.reset", Risk: "high", MaxAttempts: 2},
			PlanStep{Name: "verify", Title: "Observe the device usable", Required: true, Interruptible: true, ReplaySafe: true, Capability: "device.reset"})
		return []Lock{{t.ID, Exclusive}, {t.NodeID, Shared}}, steps
	},
})
