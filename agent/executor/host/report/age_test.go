package report

import (
	"strings"
	"testing"
	"time"
)

func TestStale(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for name, c := range map[string]struct {
		at   time.Time
		says string
	}{
		"of now":           {now, ""},
		"at the limit":     {now.Add(-MaxAge), ""},
		"past it":          {now.Add(-MaxAge - time.Second), "last report is of 2026-03-04T05:03:06Z"},
		"a clock before":   {now.Add(MaxAge), ""},
		"a clock far away": {now.Add(MaxAge + time.Second), "clocks"},
		"of no time":       {time.Time{}, "does not say"},
	} {
		h := Host{At: c.at}
		if got := h.Stale(now); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

// One clock that finds the report fresh is enough.
func TestStaleBySeveralClocks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	h := Host{At: at}
	wrong, other := at.Add(time.Hour), at.Add(-time.Hour)
	if h.Stale(wrong, at) != "" || h.Stale(at, wrong) != "" || h.Stale(wrong, wrong, at) != "" {
		t.Error("a clock that finds it fresh is not enough")
	}
	if got := h.Stale(wrong, other); !strings.Contains(got, "last report is of") {
		t.Errorf("no clock finds it fresh: %q", got)
	}
	if (&Host{}).Stale(at, at) == "" {
		t.Error("a report of no time is believed")
	}
}
