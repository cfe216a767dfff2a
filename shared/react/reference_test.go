package react

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

// The reference evaluator: what a rule makes of a whole history, in three passes
// over each group's list of events. It shares nothing with the reactor but the
// shape of rules. Its rules look at types by name: "x.match" is on, "x.resolve"
// is resolve_when, "x.expect" absence.expect, "x.begin" and "x.end" while; they
// group by the subject's name, count distinct detail.V, and tell what is under way
// by detail.V. What inhibits them is a rule of which "x.over" begins an alert and
// "x.under" ends it.

// span is a time in which something holds, from the event cause on.
type span struct {
	from, to    int64 // clock; to is 0 while it goes on
	cause       int64
	fromEvent   bool // it begins at an event and not at a timer
	toEvent     bool
	begun, over int64 // sequences of these events
	why         string
}

// change is a change of what the condition says, before flapping is taken out.
type change struct {
	at    int64
	to    alert.State // "" for nothing
	cause int64
	seq   int64 // of the event by which it comes, 0: a timer's
	why   string
}

// reference returns, by group, what is to be told until the time, as lines.
func reference(r *alert.Rule, events []event.Event, until time.Time) map[string][]string {
	groups := map[string][]event.Event{}
	clock := map[int64]int64{}
	var now int64
	for _, e := range events { // the stream's clock never goes back
		now = max(now, e.ReceivedAt.UnixMilli())
		clock[e.Sequence] = now
		groups[e.Subject.Name] = append(groups[e.Subject.Name], e)
	}
	out := map[string][]string{}
	for name, evs := range groups {
		changes := changesOf(r, holding(r, evs, clock, until.UnixMilli()), until.UnixMilli())
		for _, l := range inhibiting(r, tellings(r, changes, until.UnixMilli()), name, events, clock) {
			out[name] = append(out[name], fmt.Sprintf("%s %s", time.UnixMilli(l.at).UTC().Sub(t0), l.text))
		}
	}
	return out
}

// active finds when the condition holds, while apart.
func active(r *alert.Rule, evs []event.Event, clock map[int64]int64, until int64) []span {
	quiet := quietOf(r)
	var spans []span
	var matches []event.Event // since the condition ended last
	var last, armed int64
	var armedBy event.Event
	on := func() bool { return len(spans) > 0 && spans[len(spans)-1].to == 0 }
	end := func(at int64, byEvent bool, seq int64, why string) {
		matches = nil
		if on() {
			s := &spans[len(spans)-1]
			s.to, s.toEvent, s.over, s.why = at, byEvent, seq, why
		}
	}
	timers := func(now int64) {
		if armed != 0 && armed <= now {
			spans = append(spans, span{from: armed, cause: armedBy.Sequence})
			last, armed = armed, 0
		}
		if on() && last+quiet <= now {
			end(last+quiet, false, 0, alert.ReasonQuiet)
		}
	}
	for _, e := range evs {
		at := clock[e.Sequence]
		timers(at)
		switch {
		case e.Type == "x.expect" && r.Absence != nil:
			armed = 0
			end(at, true, e.Sequence, alert.ReasonEnded)
		case e.Type == "x.resolve" && r.ResolveWhen != nil:
			end(at, true, e.Sequence, alert.ReasonEnded)
		case e.Type == "x.match" && r.Absence != nil:
			if last = at; !on() && armed == 0 {
				armed, armedBy = at+r.Absence.Within.D().Milliseconds(), e
			}
		case e.Type == "x.match":
			last, matches = at, append(matches, e)
			if !on() && counted(r, matches) >= max(r.Count, 1) {
				spans = append(spans, span{from: at, cause: e.Sequence, fromEvent: true, begun: e.Sequence})
			}
		}
	}
	timers(until)
	return spans
}

// counted counts the matches, or their values, that lie within the window.
func counted(r *alert.Rule, matches []event.Event) int {
	newest := int64(0)
	for i := range matches {
		newest = max(newest, happened(matches[i]))
	}
	values := map[string]bool{}
	n := 0
	for i := range matches {
		if r.Window == 0 || happened(matches[i]) > newest-r.Window.D().Milliseconds() {
			n++
			values[value(matches[i])] = true
		}
	}
	if r.Distinct != "" {
		return len(values)
	}
	return n
}

// happened is when it happened, as far as that is believed.
func happened(e event.Event) int64 {
	at, received := e.Timestamp, e.ReceivedAt
	if at.After(received) {
		at = received
	}
	if least := received.Add(-5 * time.Minute); at.Before(least) {
		at = least
	}
	return at.UnixMilli()
}

// value is detail.V as it is written out, "" where it is not there or null.
func value(e event.Event) string {
	var d map[string]any
	if _ = json.Unmarshal(e.Detail, &d); d["V"] == nil {
		return ""
	}
	return fmt.Sprint(d["V"])
}

func quietOf(r *alert.Rule) int64 {
	switch {
	case r.ResolveAfter > 0:
		return r.ResolveAfter.D().Milliseconds()
	case r.ResolveWhen != nil || r.Absence != nil:
		return alert.LongestQuiet.Milliseconds()
	}
	return max(alert.DefaultQuiet, r.Window.D()).Milliseconds()
}

// holding is active, cut to when something is under way.
func holding(r *alert.Rule, evs []event.Event, clock map[int64]int64, until int64) []span {
	spans := active(r, evs, clock, until)
	if r.While == nil {
		return spans
	}
	var ways, out []span
	open := map[string]bool{}
	for _, e := range evs {
		was := len(open)
		switch e.Type {
		case "x.begin":
			open[value(e)] = true
		case "x.end":
			delete(open, value(e))
		}
		switch at := clock[e.Sequence]; {
		case was == 0 && len(open) > 0:
			ways = append(ways, span{from: at, cause: e.Sequence, fromEvent: true, begun: e.Sequence})
		case was > 0 && len(open) == 0:
			w := &ways[len(ways)-1]
			w.to, w.toEvent, w.over, w.why = at, true, e.Sequence, alert.ReasonEnded
		}
	}
	before := func(aT, aS, bT, bS int64) bool { return aT < bT || aT == bT && aS < bS } // a timer is before events
	for _, a := range spans {
		for _, w := range ways {
			s := a
			if before(a.from, a.begun, w.from, w.begun) {
				s.from, s.cause, s.fromEvent, s.begun = w.from, w.cause, true, w.begun
			}
			if a.to == 0 || w.to != 0 && before(w.to, w.over, a.to, a.over) {
				s.to, s.toEvent, s.over, s.why = w.to, w.toEvent, w.over, w.why
			}
			if s.to == 0 || before(s.from, s.begun, s.to, s.over) {
				out = append(out, s)
			}
		}
	}
	return out
}

// changesOf applies for and keep_firing_for.
func changesOf(r *alert.Rule, spans []span, until int64) []change {
	wait, keep := r.For.D().Milliseconds(), r.KeepFiringFor.D().Milliseconds()
	var out []change
	clearAt, why := int64(-1), "" // when a firing whose condition has ended is over
	over := func() {
		out = append(out, change{clearAt, "", 0, 0, why})
		clearAt = -1
	}
	for _, s := range spans {
		firing := false
		if clearAt >= 0 && (s.from < clearAt || s.from == clearAt && !s.fromEvent) { // a timer of the condition comes first
			firing, clearAt = true, -1
		} else if clearAt >= 0 {
			over()
		}
		if !firing {
			if wait > 0 {
				out = append(out, change{s.from, alert.Pending, s.cause, s.begun, ""})
			}
			fires := s.from + wait
			switch {
			case wait == 0:
				out = append(out, change{fires, alert.Firing, s.cause, s.begun, ""})
			case s.to == 0 && fires > until:
				return out
			case s.to == 0 || fires < s.to || fires == s.to && s.toEvent:
				out = append(out, change{fires, alert.Firing, s.cause, 0, ""})
			default:
				out = append(out, change{s.to, "", 0, s.over, alert.ReasonWithdrawn})
				continue
			}
		}
		if s.to == 0 {
			return out
		}
		if keep == 0 {
			out = append(out, change{s.to, "", 0, s.over, s.why})
		} else {
			clearAt, why = s.to+keep, alert.ReasonEnded
		}
	}
	if clearAt >= 0 && clearAt <= until {
		over()
	}
	return out
}

// tellings takes flapping out.
func tellings(r *alert.Rule, changes []change, until int64) []line {
	var out []line
	tell := func(at, seq int64, kind, why string) { out = append(out, line{at, seq, kind + " " + why}) }
	var flips []int64
	flapping := false
	var raw alert.State
	steady := func() {
		at := flips[len(flips)-1] + r.Flap.Window.D().Milliseconds()
		flapping, flips = false, nil
		if raw == alert.Firing {
			tell(at, 0, "firing", alert.ReasonSteady)
			return
		}
		if tell(at, 0, "resolved", alert.ReasonSteady); raw == alert.Pending {
			tell(at, 0, "pending", alert.ReasonHolds)
		}
	}
	for _, c := range changes {
		if flapping {
			if end := flips[len(flips)-1] + r.Flap.Window.D().Milliseconds(); end < c.at || end == c.at && c.seq > 0 {
				steady()
			}
		}
		was := raw
		raw = c.to
		flips = flipped(r, flips, c, was)
		switch quiet := flapping; {
		case r.Flap != nil && len(flips) >= r.Flap.Changes && (c.to == alert.Firing || was == alert.Firing):
			if flapping = true; !quiet {
				tell(c.at, c.seq, "flapping", alert.ReasonFlapping)
			}
		case quiet:
		case c.to == "":
			tell(c.at, c.seq, "resolved", c.why)
		default:
			tell(c.at, c.seq, string(c.to), alert.ReasonHolds)
		}
	}
	if flapping && flips[len(flips)-1]+r.Flap.Window.D().Milliseconds() <= until {
		steady()
	}
	return out
}

// inhibiting lays over what is told of a group what the alerts of its inhibitor, one
// for each name, keep from being told: an asterisk stands for that, and that it begins
// or ends for an alert that fires is a line of its own; but what flaps, and was told
// so, is told no more until it is steady.
func inhibiting(r *alert.Rule, lines []line, group string, events []event.Event, clock map[int64]int64) []line {
	if len(r.InhibitedBy) == 0 {
		return lines
	}
	var out []line
	over, by, firing, flapping := map[string]bool{}, "", false, false
	choose := func() string {
		for _, name := range []string{by, "a", "b"} { // who does so already goes on
			if over[name] && (len(r.InhibitedBy[0].Equal) == 0 || name == group) {
				return name
			}
		}
		return ""
	}
	tell := func(at int64, text string) {
		if by != "" {
			text += "*"
		}
		out = append(out, line{at: at, text: text})
	}
	look := func(before func(at, seq int64) bool) {
		for ; len(events) > 0 && before(clock[events[0].Sequence], events[0].Sequence); events = events[1:] {
			e := events[0]
			if e.Type == "x.over" || e.Type == "x.under" {
				over[e.Subject.Name] = e.Type == "x.over"
			}
			is := choose()
			if !firing || is == by || flapping && by == "" {
				continue
			}
			switch by = is; {
			case by != "":
				tell(clock[e.Sequence], "inhibited "+alert.ReasonInhibited)
			case flapping:
				tell(clock[e.Sequence], "flapping "+alert.ReasonUnmuted)
			default:
				tell(clock[e.Sequence], "firing "+alert.ReasonUnmuted)
			}
		}
	}
	for _, l := range lines {
		look(func(at, seq int64) bool { return at < l.at || at == l.at && seq < l.seq })
		switch l.kind() {
		case "firing", "flapping":
			firing, flapping, by = true, l.kind() == "flapping", choose()
			tell(l.at, l.text)
		default:
			tell(l.at, l.text)
			firing, flapping, by = false, false, ""
		}
	}
	look(func(int64, int64) bool { return true })
	return out
}

// flipped adds a change between firing and not to those of the window.
func flipped(r *alert.Rule, flips []int64, c change, was alert.State) []int64 {
	if r.Flap == nil || c.to != alert.Firing && was != alert.Firing {
		return flips
	}
	flips = slices.DeleteFunc(flips, func(t int64) bool { return t <= c.at-r.Flap.Window.D().Milliseconds() })
	flips = append(flips, c.at)
	return flips[max(0, len(flips)-r.Flap.Changes):]
}
