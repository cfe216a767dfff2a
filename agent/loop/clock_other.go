//go:build !linux

package loop

import "time"

// bootClock counts on Go's monotonic clock, which goes on while this process is
// stopped.
func bootClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
