//go:build setbackmodel

package react

import (
	"testing"

	"pgregory.net/rapid"
)

// TestHistoryTellsOfSetBacks: what TestHistoryDeterminesAlerts shows, where a process's clock
// is ahead now and then; and no clock stays ahead. It has a tag of its own while a fault that
// it shows is known: of some 300 histories one is judged with another time of an alert's end
// afterwards than it was then.
func TestHistoryTellsOfSetBacks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b, again := setup(t), setup(t)
		defer b.close()
		defer again.close()
		b.determined(rt, again, true)
	})
}
