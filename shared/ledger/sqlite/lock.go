package sqlite

import "fmt"

// LockedError says which process holds the ledger. errors.Is(err, ErrLocked)
// holds.
type LockedError struct {
	Path string // the lock file
	PID  int    // 0 when the holder has not written it
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s by process %d (%s)", ErrLocked, e.PID, e.Path)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }
