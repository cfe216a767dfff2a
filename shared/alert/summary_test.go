package alert

import (
	"testing"

	"github.com/opsplane/opsplane/shared/event"
)

// A summary is one line that reads as it is stored, whatever an event's details have.
func TestSummaryIsOneLine(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: x\non: [x.a]\nsummary: |\n  {g} of\n  {subject} fails\ngroup_by: {g: event.detail.g}\n")
	for value, want := range map[string]string{
		"gpu 0":                  "gpu 0 of n1 fails",
		"a\nb\r\tc":              `a\nb\r\tc of n1 fails`,
		"a\x00b\x1b[31m":         `a\x00b\x1b[31m of n1 fails`,
		"a\u202eb\u2066c\u2028d": `a\u202eb\u2066c\u2028d of n1 fails`,
		"größe 漢字 \ufffd":        "größe 漢字 \ufffd of n1 fails",
		"{subject}":              "{subject} of n1 fails",
		"":                       "(unknown) of n1 fails",
	} {
		s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
		evs := number([]event.Event{fact(0, "x.a", "n1", "g", value)})
		s.Judge(NewVars(&evs[0], nil), never)
		told := s.Take().Told
		if len(told) != 1 || told[0].Alert.Summary != want || told[0].Alert.Group["g"] != value {
			t.Errorf("%q: told %+v, want the summary %q", value, told, want)
		}
	}
}
