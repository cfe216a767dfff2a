package operation

import "encoding/json"

// RollPayload is the payload of deployment.roll with its defaults set.
type RollPayload struct {
	// Undo is "never", or "on_failure": a rollout that failed is taken back to the
	// template of before.
	Undo string `json:"undo"`
}

var _ = register(Definition{
	Type:    "deployment.roll",
	Targets: []string{KindDeployment},
	Payload: func(f *Fields) { f.Enum("undo", "never", "never", "on_failure") },
	Plan: func(t Target, p json.RawMessage) ([]Lock, []PlanStep) {
		var r RollPayload
		_ = json.Unmarshal(p, &r) // checked by Payload
		steps := []PlanStep{
			{Name: "preflight", Title: "Read the deployment and its rollout", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
			{Name: "restart", Title: "Restart the rollout, even if nothing changed", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "deployment.roll", Risk: "medium"},
			{Name: "wait", Title: "Wait for the replicas", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
			{Name: "confirm", Title: "Observe the deployment rolled out", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
		}
		if r.Undo == "on_failure" {
			steps = append(steps, PlanStep{Name: "undo", Title: "Take the deployment back to the template of before", ReplaySafe: true, Effect: true, Cleanup: true, Capability: "deployment.roll", Risk: "medium", MinVersion: 2})
		}
		return []Lock{{t.ID, Exclusive}}, steps
	},
})
