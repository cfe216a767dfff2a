package operation

import "encoding/json"

// DrainPayload is the payload of node.drain with its defaults set.
type DrainPayload struct {
	// GracePeriodSeconds replaces each pod's own grace period; -1 leaves it.
	GracePeriodSeconds int `json:"grace_period_seconds"`
	// DeleteEmptyDirData allows pods whose local data is lost with them.
	DeleteEmptyDirData bool `json:"delete_emptydir_data"`
	// Force allows pods that nothing will start again elsewhere.
	Force       bool   `json:"force"`
	PodSelector string `json:"pod_selector"`
	// Device narrows the drain to the pods on one device of the node, by any of
	// its spellings; empty: all of them.
	Device string `json:"device"`
	// Order is "priority" (pods of a lower priority go first, in waves) or "none"
	// (all at once).
	Order string `json:"order"`
	// AwaitVolumeDetach waits until the node's volumes are detached, too.
	AwaitVolumeDetach bool `json:"await_volume_detach"`
	// OnDeadline is "stop", or "force": pods that are left are deleted past
	// their disruption budgets in the window before the deadline.
	OnDeadline         string `json:"on_deadline"`
	ForceWindowSeconds int    `json:"force_window_seconds"`
	// OnCancel is "leave" (the cordon stays) or "restore".
	OnCancel string `json:"on_cancel"`
}

var _ = register(Definition{
	Type:    "node.drain",
	Targets: []string{KindNode},
	Payload: func(f *Fields) {
		grace := f.Int("grace_period_seconds", -1, 24*3600, -1)
		f.Bool("delete_emptydir_data", false)
		f.Bool("force", false)
		if sel := f.String("pod_selector", false, 1024); sel != "" && len(sel) <= 1024 {
			if err := CheckSelector(sel); err != nil {
				f.Fail("pod_selector", "format", "is no label selector: "+err.Error())
			}
		}
		if f.String("device", false, 512) != "" && f.raw["pod_selector"] != nil {
			f.Fail("device", "conflict", "does not go with pod_selector: name one of them")
		}
		f.Enum("order", "priority", "priority", "none")
		f.Bool("await_volume_detach", false)
		onDeadline := f.Enum("on_deadline", "stop", "stop", "force")
		f.Int("force_window_seconds", 1, 24*3600, max(grace, 0)+30)
		f.Enum("on_cancel", "leave", "leave", "restore")
		if onDeadline != "force" && f.raw["force_window_seconds"] != nil {
			f.Fail("force_window_seconds", "conflict", `goes with "on_deadline": "force"`)
		}
	},
	Force: func(p json.RawMessage) bool {
		var d DrainPayload
		return json.Unmarshal(p, &d) == nil && (d.Force || d.OnDeadline == "force")
	},
	Plan: func(t Target, p json.RawMessage) ([]Lock, []PlanStep) {
		var d DrainPayload
		_ = json.Unmarshal(p, &d) // checked by Payload
		steps := []PlanStep{
			{Name: "preflight", Title: "Judge every pod before anything is touched", Required: true, Interruptible: true, ReplaySafe: true, Capability: "node.drain"},
			{Name: "cordon", Title: "Mark the node unschedulable", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "node.cordon", Risk: "low"},
			{Name: "evict", Title: "Evict the planned pods", Required: true, Interruptible: true, ReplaySafe: true, Effect: true, Capability: "node.drain", Risk: "high"},
			{Name: "wait", Title: "Wait for in-flight requests and for the pods to stop", Required: true, Interruptible: true, ReplaySafe: true, Capability: "node.drain"},
			{Name: "confirm", Title: "Observe every planned pod gone by UID and the node cordoned", Required: true, Interruptible: true, ReplaySafe: true, Capability: "node.drain"},
		}
		if d.Device != "" || d.AwaitVolumeDetach { // an agent that knows neither would drain too much, or claim too much
			for i := range steps {
				if steps[i].Capability == "node.drain" {
					steps[i].MinVersion = 2
				}
			}
		}
		if d.OnCancel == "restore" {
			steps = append(steps, PlanStep{Name: "restore", Title: "Lift the cordon that this drain placed", Interruptible: true, ReplaySafe: true, Effect: true, Cleanup: true, Capability: "node.cordon", Risk: "low"})
		}
		return []Lock{{t.ID, Exclusive}}, steps
	},
})
