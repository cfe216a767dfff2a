package record

import (
	"errors"

	"github.com/opsplane/opsplane/shared/operation"
)

// StateFormat is the format in which operations' states are written. Raise it with
// each new field that must not get lost: a version that does not know the field
// drops it when it writes the state again, while a deployment goes on or after it
// was taken back. A state without a format is of format 0.
const StateFormat = 0

// ErrNewer: a state is of a newer format than this version knows. It is neither
// used nor written over: a newer version goes on with it.
var ErrNewer = errors.New("written by a newer version of the plane")

// formatOf is the format that a decoded value says it is of.
func formatOf(v any) int {
	switch v := v.(type) {
	case *operation.State:
		return v.Format
	case *Glance:
		return v.Format
	}
	return 0
}
