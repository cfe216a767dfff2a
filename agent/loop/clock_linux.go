package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootClock counts on CLOCK_BOOTTIME (clock_gettime(2)): like the monotonic
// clock it goes on while this process is stopped, and unlike it also while the
// whole machine is suspended, when leases run out just the same.
func bootClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			return time.Since(start) // no such clock in this sandbox, for good
		}
		return time.Duration(ts.Nano())
	}
}
