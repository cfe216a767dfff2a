package event

import (
	"encoding/json"

	"github.com/opsplane/opsplane/shared/id"
)

// ToldOperation returns the id of the operation that placed, or lifted, the cordon of
// a reported event, by the word of the agent; "" for an event of another type, and
// where there is none. Whether there is such an operation is for the caller to see.
func (e *Event) ToldOperation() string {
	if e.Type != TypeNodeCordoned && e.Type != TypeNodeUncordoned {
		return ""
	}
	var d CordonDetail
	if json.Unmarshal(e.Detail, &d) != nil || !id.Valid(id.Operation, d.Operation) {
		return ""
	}
	return d.Operation
}
