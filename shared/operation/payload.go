package operation

import (
	"fmt"
	"strings"
)

// PayloadField is one field of a type's payload, for those who read about it.
type PayloadField struct {
	Name     string
	Values   string // which it takes
	Default  string // empty: none
	Required bool
	About    string
}

// about says what the fields of payloads are for, by type and name.
var about = map[string]map[string]string{
	"node.uncordon": {
		"take_over": "lift a cordon, too, that was placed by somebody else than Opsplane; it is recorded",
	},
	"node.drain": {
		"grace_period_seconds": "replaces the grace period of each pod; -1 leaves it",
		"delete_emptydir_data": "evict pods, too, whose local data is lost with them",
		"force":                "evict pods, too, that nothing will start again; needs the right to force",
		"pod_selector":         "only pods with these labels",
		"device":               "only the pods that hold this GPU of the node, by UUID, bus address or NODE/INDEX; the node is cordoned all the same. Needs the host helper. Does not go with pod_selector",
		"order":                "priority: pods of a lower priority go first, in waves; none: all at once",
		"await_volume_detach":  "end when the volumes of what went are detached, too",
		"on_deadline":          "force deletes what is left past its disruption budgets before the deadline; needs the right to force",
		"force_window_seconds": "how long before the deadline force begins; the default is 30 more than a grace_period_seconds that is given",
		"on_cancel":            "restore lifts the drain's own cordon when it is cancelled or fails",
	},
	"device.reset": {
		"drain": "evict the pods that hold the device first; without it a device that is held is refused as device_busy",
	},
	"deployment.roll": {
		"undo": "on_failure takes a rollout that failed back to the template of before; one that something stands in the way of counts as failed some time before the deadline (a quarter of the time it had, at most 3 minutes), so that there is time for it",
	},
	"component.upgrade": {
		"component": "the component's name, as GET /v1/components lists it",
		"version":   "the version to upgrade to, such as v1.2.3",
		"rollback":  "on_failure goes back to the release of before when the upgrade fails",
	},
	"plan": {
		"children":      "a list of 1 to 1000 operation requests",
		"max_in_flight": "how many children may be under way at a time",
		"max_failures":  "how many children may fail until no more are started",
	},
}

func (f *Fields) describe(d PayloadField) { f.list = append(f.list, d) }

// PayloadOf lists the fields of a type's payload in the order in which they are
// checked; nil for a type that is not supported.
func PayloadOf(typ string) []PayloadField {
	d, ok := Lookup(typ)
	if !ok {
		return nil
	}
	f := NewFields("", nil)
	d.Payload(f)
	for i := range f.list {
		f.list[i].About = about[typ][f.list[i].Name]
	}
	return f.list
}

// PayloadTable is a table of all types' payloads, in Markdown.
func PayloadTable() string {
	var b strings.Builder
	b.WriteString("| type | field | values | default | what |\n| --- | --- | --- | --- | --- |\n")
	for _, typ := range Types() {
		fields := PayloadOf(typ)
		if len(fields) == 0 {
			fmt.Fprintf(&b, "| %s | none | | | |\n", typ)
		}
		for _, f := range fields {
			def := f.Default
			if f.Required {
				def = "required"
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", typ, f.Name, f.Values, def, f.About)
		}
	}
	return b.String()
}
