package operation

import (
	"fmt"
	"slices"
	"time"
)

// Holder is one operation's hold on a resource.
type Holder struct {
	Operation string    `json:"operation"`
	Mode      string    `json:"mode"`
	Type      string    `json:"type"`
	Actor     Actor     `json:"actor"`
	Since     time.Time `json:"since"`
}

// LockState is the lock of one resource: who holds it, and which operations
// left it in a state that nobody proved.
type LockState struct {
	Holders   []Holder `json:"holders,omitempty"`
	Unsettled []string `json:"unsettled,omitempty"`
}

// LockedError says that another operation holds a resource.
type LockedError struct {
	Resource string
	Holder   Holder
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is held by operation %s (%s)", e.Resource, e.Holder.Operation, e.Holder.Type)
}

// Acquire returns the lock with the holder added, or a *LockedError.
func (l LockState) Acquire(resource string, h Holder) (LockState, error) {
	for _, x := range l.Holders {
		if x.Operation == h.Operation {
			return l, nil
		}
		if x.Mode == Exclusive || h.Mode == Exclusive {
			return l, &LockedError{Resource: resource, Holder: x}
		}
	}
	l.Holders = append(slices.Clone(l.Holders), h)
	return l, nil
}

// Release returns the lock without the operation's hold. When the operation
// left the resource unsettled it is remembered, beside earlier ones; else, when its
// end settles the resource, what those left is forgotten.
func (l LockState) Release(op string, unsettled, settles bool) LockState {
	l.Holders = slices.DeleteFunc(slices.Clone(l.Holders), func(h Holder) bool { return h.Operation == op })
	switch {
	case unsettled && slices.Contains(l.Unsettled, op): // an earlier run of it did, too
	case unsettled:
		l.Unsettled = append(slices.Clone(l.Unsettled), op)
		if len(l.Unsettled) > 10 {
			l.Unsettled = l.Unsettled[len(l.Unsettled)-10:]
		}
	case settles:
		l.Unsettled = nil
	}
	return l
}
