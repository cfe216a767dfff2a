package loop

import (
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// pace is how soon the plane wants to hear what need not be told at once.
type pace struct {
	every time.Duration
	// rides: renewals come as often, so that progress alone waits for one.
	rides bool
}

// paceOf is the pace that the plane asks for.
func paceOf(answer protocol.HeartbeatAnswer) pace {
	p := pace{every: lazyEvery}
	if answer.ReportMS > 0 {
		p.every = ms(min(answer.ReportMS, lazyMost.Milliseconds()))
		p.rides = answer.LeaseMS > 0 && answer.ReportMS >= answer.LeaseMS/3
	}
	return p
}

// untilFlush is how long the next lazy report waits: reports of all operations
// leave together, in fewer calls.
func (p pace) untilFlush(now time.Duration) time.Duration { return p.every - now%p.every }
