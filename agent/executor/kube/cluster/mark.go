package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/opsplane/opsplane/agent/executor"
)

// Annotations and labels of what Opsplane touches.
const (
	// AnnotationMark holds the Mark of the last operation that changed the object.
	AnnotationMark = "opsplane.io/mark"
	// AnnotationCordon holds a protocol.Cordon as JSON, on a node that Opsplane
	// cordoned.
	AnnotationCordon = "opsplane.io/cordon"
	// AnnotationUncordon holds a protocol.Cordon as JSON, too, on a node that
	// Opsplane opened: whose doing that was. It is there until Opsplane cordons the
	// node again.
	AnnotationUncordon = "opsplane.io/uncordon"

	LabelManagedBy  = "app.kubernetes.io/managed-by"
	LabelOperation  = "opsplane.io/operation"
	LabelGeneration = "opsplane.io/generation"
	// LabelJob says what a Job's pod runs: JobHost or JobUpgrade.
	LabelJob = "opsplane.io/job"

	// ManagedBy is LabelManagedBy's value.
	ManagedBy  = "opsplane-agent"
	JobHost    = "host"
	JobUpgrade = "upgrade"
)

// Mark says under which lease an object was changed. It is written in the same
// conditional update as the change, so that whoever holds an older generation
// reads a newer one, or loses on the resourceVersion.
type Mark struct {
	Operation  string
	Run        int
	Generation int64
}

// MarkOf is the mark of the task's lease.
func MarkOf(t *executor.Task) Mark {
	return Mark{Operation: t.Assignment.Operation, Run: t.Assignment.Run, Generation: t.Assignment.Generation}
}

func (m Mark) String() string { return fmt.Sprintf("%s/%d/%d", m.Operation, m.Run, m.Generation) }

// ReadMark reads an object's mark. One that cannot be read is no mark: anybody
// may write annotations.
func ReadMark(annotations map[string]string) (Mark, bool) {
	part := strings.Split(annotations[AnnotationMark], "/")
	if len(part) != 3 || part[0] == "" {
		return Mark{}, false
	}
	run, err := strconv.Atoi(part[1])
	if err != nil {
		return Mark{}, false
	}
	generation, err := strconv.ParseInt(part[2], 10, 64)
	if err != nil {
		return Mark{}, false
	}
	return Mark{Operation: part[0], Run: run, Generation: generation}, true
}

// Stale tells whether by is an older lease of the operation that left this mark:
// it must not change the object any more.
func (on Mark) Stale(by Mark) bool {
	return on.Operation == by.Operation && on.Generation > by.Generation
}

// SameRun tells whether the mark is of the same run of the same operation: what
// it did is done, whichever lease did it.
func (on Mark) SameRun(by Mark) bool { return on.Operation == by.Operation && on.Run == by.Run }
