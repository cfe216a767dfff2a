package report

import (
	"fmt"
	"time"
)

// MaxAge is how old a Host's report may be to be believed: three times of serve's
// own least pace (serve.DefaultAlive). Past it the program is taken to be dead or
// hung, and the host to have changed since.
const MaxAge = 3 * time.Minute

// Stale tells why the report is not believed at a moment, "": it is. One from a
// time that is yet to come is as old as nobody knows, when the clocks are that far
// apart. Of several clocks it is enough that one finds it fresh: whoever reads the report
// may have one that is wrong, which says nothing of the hosts.
func (h *Host) Stale(now time.Time, others ...time.Time) string {
	for _, other := range others {
		if h.Stale(other) == "" {
			return ""
		}
	}
	switch age := now.Sub(h.At); {
	case h.At.IsZero():
		return "its report does not say from when it is"
	case age > MaxAge:
		return fmt.Sprintf("its last report is of %s, and nothing is believed for longer than %s", h.At.UTC().Format(time.RFC3339), MaxAge)
	case age < -MaxAge:
		return fmt.Sprintf("its report is of %s, which is yet to come: the clocks of the node and of the agent differ by more than %s", h.At.UTC().Format(time.RFC3339), MaxAge)
	}
	return ""
}
