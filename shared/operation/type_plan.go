package operation

import "encoding/json"

// MaxChildren bounds a plan's children.
const MaxChildren = 1000

// PlanPayload is the payload of plan as it is kept on the operation; the
// children are items of their own.
type PlanPayload struct {
	MaxInFlight int `json:"max_in_flight"`
	MaxFailures int `json:"max_failures"`
	Children    int `json:"children"` // how many
}

var _ = register(Definition{
	Type:       "plan",
	Targets:    []string{KindCluster, KindFleet},
	PlaneLocal: true,
	Payload: func(f *Fields) {
		f.Int("max_in_flight", 1, MaxChildren, 1)
		f.Int("max_failures", 0, MaxChildren, 0)
		raw := f.Raw("children")
		var children []json.RawMessage
		if json.Unmarshal(raw, &children) != nil || len(children) == 0 {
			f.Fail("children", "required", "must be a list of 1 to 1000 operation requests")
		} else if len(children) > MaxChildren {
			f.fail("children", "max_items", "has %d requests, the limit is %d", len(children), MaxChildren)
		}
		f.Set("children", len(children))
	},
})
