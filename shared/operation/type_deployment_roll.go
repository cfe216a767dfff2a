package operation

import "encoding/json"

var _ = register(Definition{
	Type:    "deployment.roll",
	Targets: []string{KindDeployment},
	Payload: func(f *Fields) {},
	Plan: func(t Target, _ json.RawMessage) ([]Lock, []PlanStep) {
		return []Lock{{t.ID, Exclusive}}, []PlanStep{
			{Name: "preflight", Title: "Read the deployment and its rollout", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
			{Name: "restart", Title: "Restart the rollout, even if nothing changed", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "deployment.roll", Risk: "medium"},
			{Name: "wait", Title: "Wait for the replicas", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
			{Name: "confirm", Title: "Observe the deployment rolled out", Required: true, Interruptible: true, ReplaySafe: true, Capability: "deployment.roll"},
		}
	},
})
