package operation

import (
	"fmt"
	"testing"
	"time"
)

// Since when something stands in the way outlasts the lease under which it was first
// seen, for as long as whoever takes over meets it soon and goes on meeting it.
func TestSinceOutlastsALease(t *testing.T) {
	t.Parallel()
	show := func(h *history, list ...Blocker) *history {
		return h.after(t, Renew{Agent: "agt_a", Generation: h.s.Generation, Until: h.at.Add(time.Hour), Progress: &Progress{Step: "evict", Blockers: list}})
	}
	held := func() *history { return running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning)) }
	first := held().at.Add(-time.Hour)
	stands := func(pod string, since time.Time) Blocker {
		return Blocker{Code: "pdb", Resource: "pod/" + pod, Rule: "pdb/web", Detail: "needs every one", Since: &since}
	}
	many := func(pods int) (list []Blocker) {
		for i := range pods {
			list = append(list, stands(fmt.Sprint("p", i), held().at))
		}
		return list
	}
	over := func(h *history) *history { return show(h, stands("a", first)).after(t, LoseLease{}).claimed(t) }
	for name, c := range map[string]struct {
		h    *history
		late time.Duration // the last report
		want bool          // since the first lease
	}{
		"met at once":                      {over(held()), 0, true},
		"met after a look":                 {show(over(held())), time.Minute, true},
		"met late":                         {show(over(held())), 3 * time.Minute, false},
		"met at once and for long":         {show(over(held()), stands("a", held().at)), time.Hour, true},
		"over in between":                  {show(show(over(held()), stands("a", held().at))), 0, false},
		"behind ten others":                {show(over(held()), many(MaxProgressBlockers)...), time.Hour, true},
		"a third lease, nothing shown":     {over(held()).after(t, LoseLease{}).claimed(t), 0, true},
		"a third lease, nothing found":     {show(over(held())).after(t, LoseLease{}).claimed(t), 0, true},
		"a third lease, over in between":   {show(show(over(held()), stands("a", held().at))).after(t, LoseLease{}).claimed(t), 0, false},
		"a third lease, met by the second": {show(over(held()), stands("a", held().at)).after(t, LoseLease{}).claimed(t), 0, true},
	} {
		h := c.h
		h.at = h.at.Add(c.late)
		now := h.at
		show(h, stands("b", now), stands("a", now), Blocker{Code: "pdb", Resource: "pod/a", Rule: "pdb/other", Since: &now})
		got := h.s.Progress.Blockers
		if !got[0].Since.Equal(now) || !got[2].Since.Equal(now) {
			t.Errorf("%s: others stand since %v and %v", name, got[0].Since, got[2].Since)
		}
		if want := map[bool]time.Time{true: first, false: now}[c.want]; !got[1].Since.Equal(want) {
			t.Errorf("%s: it stands since %s, not %s", name, got[1].Since, want)
		}
	}
}
