package local

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much may be made beside what lives before it is collected.
// What the engine makes dies young, and little lives: collecting half as often as
// by default saves a tenth of the processor time of an operation, for some tens
// of megabytes.
const gcPercent = 300

// TuneMemory sets the process's garbage collection, unless GOGC says how. A
// GOMEMLIMIT counts as ever.
func TuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
