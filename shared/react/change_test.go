package react

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/record"
)

// cut is a change of the model's rule or of its silences, in its place in the
// history.
type cut struct {
	next     int64 // the first event that is judged by it
	until    int64 // the clock until which timers came before
	clock    int64 // at which it is taken
	rule     *alert.Rule
	ruled    bool // the rule means something else
	silences []alert.Silence
}

// change changes the rule, or makes or ends a silence, while no reactor looks. From
// what is kept, and what is unread, follows when it is taken.
func (b *bench) change(rt *rapid.T, was cut) cut {
	ctx := context.Background()
	no := func(err error) {
		if err != nil {
			rt.Fatal(err)
		}
	}
	it, err := b.db.Get(ctx, record.JudgedKey(stream))
	no(err)
	at, err := record.Decode[position](it)
	no(err)
	evs, _, err := event.ReadStream(ctx, b.db, stream, at.Next, 10_000)
	no(err)
	c := cut{next: at.Next, until: at.Clock, clock: b.clock().UnixMilli(), rule: was.rule, silences: slices.Clone(was.silences)}
	if i := slices.IndexFunc(evs, func(e event.Event) bool { return !strings.HasPrefix(e.Type, "alert.") }); i >= 0 {
		c.clock = min(c.clock, evs[i].ReceivedAt.UnixMilli())
	}
	going := slices.IndexFunc(c.silences, func(s alert.Silence) bool { return b.clock().Before(s.EndsAt) })
	switch what := rapid.IntRange(0, 2).Draw(rt, "change"); {
	case what == 0:
		next := randomRule(rt)
		_, err := b.service.UpdateRule(ctx, call, "model", 0, next)
		no(err)
		c.rule, c.ruled = &next, alert.Digest(&next) != alert.Digest(was.rule)
	case what == 1 && going >= 0 && !slices.ContainsFunc(c.silences[going+1:], func(s alert.Silence) bool { return b.clock().Before(s.EndsAt) }):
		s, err := b.service.EndSilence(ctx, call, c.silences[going].ID)
		no(err)
		c.silences[going] = s
	default:
		s := alert.Silence{Matchers: []alert.Match{{Field: "rule", Op: "=", Value: "model"}}, Reason: "x",
			StartsAt: b.clock().Add(time.Duration(rapid.IntRange(0, 10).Draw(rt, "starts")) * 30 * time.Second)}
		s.EndsAt = s.StartsAt.Add(time.Duration(rapid.IntRange(1, 30).Draw(rt, "lasts")) * 30 * time.Second)
		if rapid.Bool().Draw(rt, "one group") {
			s.Matchers = append(s.Matchers, alert.Match{Field: "group.g", Op: "=", Value: "a"})
		}
		s, err := b.service.CreateSilence(ctx, call, s)
		no(err)
		c.silences = append(c.silences, s)
	}
	if !it.Due.IsZero() && !c.ruled { // timers of a rule that is no more do not come
		c.clock = min(c.clock, it.Due.UnixMilli())
	}
	c.clock = max(c.clock, at.Clock)
	return c
}

func tellCuts(cuts []cut) string {
	var out strings.Builder
	for _, c := range cuts {
		fmt.Fprintf(&out, "%s from event %d: %s %s\n", time.UnixMilli(c.clock).UTC().Sub(t0), c.next, record.Encode(c.rule), record.Encode(c.silences))
	}
	return out.String()
}

// line is what is told of a group.
type line struct {
	at   int64
	seq  int64  // of the event by which it comes, 0: a timer's
	text string // kind and reason
}

func (l line) kind() string {
	k, _, _ := strings.Cut(l.text, " ")
	return k
}

// changing is reference for a history in which rule and silences change: each rule
// has its own stretch of the events, at whose end alerts that are open end with it,
// and silences are laid over what is told.
func changing(cuts []cut, events []event.Event, until time.Time) map[string][]string {
	told := map[string][]line{}
	var ruled []cut
	for i, c := range cuts {
		if i == 0 || c.ruled {
			ruled = append(ruled, c)
		}
	}
	for i, c := range ruled {
		stretch := slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool {
			return e.Sequence < c.next || i+1 < len(ruled) && e.Sequence >= ruled[i+1].next
		})
		ends := until
		if i+1 < len(ruled) {
			ends = time.UnixMilli(ruled[i+1].until)
		}
		for group, texts := range reference(c.rule, stretch, ends) {
			for _, text := range texts {
				at, rest, _ := strings.Cut(text, " ")
				d, err := time.ParseDuration(at)
				if err != nil {
					panic(err)
				}
				told[group] = append(told[group], line{at: t0.Add(d).UnixMilli(), text: rest})
			}
			if last := told[group][len(told[group])-1]; i+1 < len(ruled) && last.kind() != "resolved" {
				told[group] = append(told[group], line{at: ruled[i+1].clock, text: "resolved " + alert.ReasonChanged})
			}
		}
	}
	out := map[string][]string{}
	for group, lines := range told {
		for _, l := range silencing(lines, cuts, group, until.UnixMilli()) {
			out[group] = append(out[group], fmt.Sprintf("%s %s", time.UnixMilli(l.at).UTC().Sub(t0), l.text))
		}
	}
	return out
}

// silencing adds what silences have told of an alert that fires.
func silencing(lines []line, cuts []cut, group string, until int64) []line {
	best := func(at int64) string { // that covers the group then and lasts longest
		var in alert.Silence
		i := len(cuts) - 1
		for i > 0 && cuts[i].clock > at {
			i--
		}
		for _, s := range cuts[i].silences {
			if s.Active(time.UnixMilli(at)) && (len(s.Matchers) == 1 || group == "a") && s.EndsAt.After(in.EndsAt) {
				in = s
			}
		}
		return in.ID
	}
	var looks []int64
	for _, c := range cuts {
		looks = append(looks, c.clock)
		for _, s := range c.silences {
			looks = append(looks, s.StartsAt.UnixMilli(), s.EndsAt.UnixMilli())
		}
	}
	slices.Sort(looks)
	looks = slices.DeleteFunc(looks, func(at int64) bool { // a timer of a rule that is no more
		return slices.ContainsFunc(cuts, func(c cut) bool { return c.ruled && at > c.until && at <= c.clock })
	})
	var out []line
	firing, told, silenced := false, "", ""
	look := func(to int64) {
		for ; len(looks) > 0 && looks[0] < to; looks = looks[1:] {
			at := looks[0]
			switch is := best(at); {
			case !firing || is == silenced:
			case is != "":
				out = append(out, line{at: at, text: "silenced " + alert.ReasonSilenced})
				silenced = is
			default:
				out = append(out, line{at: at, text: "unsilenced " + alert.ReasonUnsilence}, line{at: at, text: told + " " + alert.ReasonUnsilence})
				silenced = is
			}
		}
	}
	for _, l := range lines {
		look(l.at)
		out = append(out, l)
		told = l.kind()
		firing, silenced = told == "firing" || told == "flapping", best(l.at)
	}
	look(until + 1)
	return out
}
