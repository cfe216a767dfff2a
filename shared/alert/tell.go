package alert

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

func compareKeys(a, b groupKey) int {
	return cmp.Or(strings.Compare(a.rule, b.rule), strings.Compare(a.values, b.values))
}

func ms(t int64) time.Time { return time.UnixMilli(t).UTC() }

// tell brings a step's effects into the alert, and what is to be told of it.
func (s *Stream) tell(c *Compiled, g *Group, effects []effect) {
	for _, x := range effects {
		if x.begins || g.Alert == nil {
			s.inhibit(g.Alert, "")
			g.Alert = &open{ID: g.alertID(c, s.Name), Since: x.clock, Cause: g.Cause}
		}
		a := g.Alert
		a.State, a.Reason = x.state, x.reason
		if x.state == Firing && a.FiredAt == 0 {
			a.FiredAt = x.clock
		}
		if x.kind != TypeUnsilenced { // what follows says so
			a.step(Step{At: ms(x.clock), State: x.state, Reason: x.reason})
		}
		s.mute(c, g, x)
		a.N++
		t := Transition{Kind: x.kind, At: ms(x.clock), Alert: s.view(c, g), N: a.N, Silence: x.silence}
		if x.happened > 0 {
			t.Happened = ms(x.happened)
		}
		if x.state == Resolved {
			t.Alert.ResolvedAt = &t.At
			s.inhibit(a, "")
			g.Alert, g.MuteUntil = nil, 0
		}
		s.out = append(s.out, t)
		s.weight += 2 * t.Alert.bytes() // the alert, and its event
		if x.state == Resolved && s.muting[a.ID] > 0 {
			s.Position.Releases = append(s.Position.Releases, Release{a.ID, x.clock})
		}
	}
}

// step adds a line to the history, which keeps the first and the last ones.
func (a *open) step(x Step) {
	if len(a.History) == keptHistory {
		a.History = append(a.History[:1], a.History[2:]...)
	}
	a.History = append(a.History, x)
}

// mute finds what keeps a transition from being told.
func (s *Stream) mute(c *Compiled, g *Group, x effect) {
	a := g.Alert
	if x.state == Firing && x.silence == "" {
		s.inhibit(a, s.inhibitor(c, g))
	}
	v := s.view(c, g)
	a.SilencedBy, g.MuteUntil = s.set.silenced(&v, ms(x.clock))
}

// inhibit notes which alert keeps another from being told, "" for none.
func (s *Stream) inhibit(a *open, by string) {
	if a == nil || a.InhibitedBy == by {
		return
	}
	if n := s.muting[a.InhibitedBy] - 1; n > 0 {
		s.muting[a.InhibitedBy] = n
	} else {
		delete(s.muting, a.InhibitedBy)
	}
	if a.InhibitedBy = by; by != "" {
		s.muting[by]++
	}
}

// uninhibit tells of an alert that fires and that nothing keeps from being told any
// more, though what did so has not ended: its own rule changed, or the other's.
func (s *Stream) uninhibit(c *Compiled, g *Group, clock int64) {
	if a := g.Alert; a != nil && a.InhibitedBy != "" && a.State == Firing && s.inhibitor(c, g) == "" {
		s.tell(c, g, []effect{{kind: TypeFiring, state: Firing, reason: ReasonUnmuted, clock: clock}})
	}
}

// inhibitor finds an alert that fires and keeps the group's from being told.
func (s *Stream) inhibitor(c *Compiled, g *Group) string {
	for _, in := range c.Rule.InhibitedBy {
		if id := s.firing(in, s.groupOf(c, g)); id != "" {
			return id
		}
	}
	return ""
}

// firing finds a firing alert of the inhibitor's rule whose group has the keys in
// common: the first by key.
func (s *Stream) firing(in Inhibitor, group map[string]string) string {
	var best *Group
	for _, c := range s.set.rules {
		if c.Rule.Name != in.Rule {
			continue
		}
		if len(in.Equal) == len(c.keys) { // one group, if they are the same keys
			if values, ok := valuesOf(c.keys, in.Equal, group); ok {
				if o := s.groups[keyOf(c.ID, values, false)]; o != nil && o.Alert != nil && o.Alert.State == Firing {
					return o.Alert.ID
				}
				continue
			}
		}
		for k, o := range s.groups {
			if k.rule != c.ID || o.Alert == nil || o.Alert.State != Firing || !equal(in.Equal, s.groupOf(c, o), group) {
				continue
			}
			if best == nil || compareKeys(o.key, best.key) < 0 {
				best = o
			}
		}
	}
	if best == nil {
		return ""
	}
	return best.Alert.ID
}

// valuesOf returns the values of the keys, when equal names just these.
func valuesOf(keys, equal []string, group map[string]string) ([]string, bool) {
	named := map[string]bool{}
	for _, k := range equal {
		named[k] = true
	}
	out := make([]string, len(keys))
	for i, k := range keys {
		if !named[k] {
			return nil, false
		}
		out[i] = group[k]
	}
	return out, true
}

func equal(keys []string, a, b map[string]string) bool {
	for _, k := range keys {
		if x, ok := a[k]; !ok || x != b[k] {
			return false
		}
	}
	return true
}

// Release tells what alerts that are over have kept from being told. full ends it
// early: then it returns false, and goes on when it is called again.
func (s *Stream) Release(full func() bool) bool {
	for len(s.Position.Releases) > 0 {
		r := s.Position.Releases[0]
		for _, g := range s.sorted() {
			if g.Alert == nil || g.Alert.InhibitedBy != r.Alert {
				continue
			}
			if full() {
				return false
			}
			c := s.set.Rule(g.Rule)
			if c == nil || c.Digest != g.Digest {
				continue // it rests; its rule's return looks anew
			}
			s.inhibit(g.Alert, "")
			if g.Alert.State == Firing {
				s.tell(c, g, []effect{{kind: TypeFiring, state: Firing, reason: ReasonUnmuted, clock: r.Clock}})
			}
			s.changed(c, g)
		}
		s.Position.Releases = s.Position.Releases[1:]
	}
	return true
}

// remind looks anew at the silences of an open alert. Of one that fires is told
// that a silence began for it, or that none is in force any more: then, too, that it
// fires.
func (s *Stream) remind(c *Compiled, g *Group, at int64) {
	v := s.view(c, g)
	was := g.Alert.SilencedBy
	is, until := s.set.silenced(&v, ms(at))
	g.Alert.SilencedBy, g.MuteUntil = is, until
	switch {
	case is == was || g.Alert.State != Firing:
	case is != "":
		s.tell(c, g, []effect{{kind: TypeSilenced, state: Firing, reason: ReasonSilenced, clock: at, silence: is}})
	default:
		s.tell(c, g, []effect{
			{kind: TypeUnsilenced, state: Firing, reason: ReasonUnsilence, clock: at, silence: was},
			{kind: TypeFiring, state: Firing, reason: ReasonUnsilence, clock: at},
		})
	}
}

// groupOf is the group's key by name.
func (s *Stream) groupOf(c *Compiled, g *Group) map[string]string {
	out := make(map[string]string, len(c.keys))
	for i, k := range c.keys {
		if g.Other {
			out[k] = otherValue
		} else if i < len(g.Values) {
			out[k] = g.Values[i]
		}
	}
	return out
}

// otherValue is the value of each key of the group that stands for all over the
// limit.
const otherValue = "(other)"

// view is the group's alert as everyone sees it.
func (s *Stream) view(c *Compiled, g *Group) Alert {
	a := g.Alert
	v := Alert{
		ID: a.ID, Rule: c.Rule.Name, RuleID: c.ID, RuleVersion: c.Version, Stream: s.Name, Group: s.groupOf(c, g), Folded: g.Other,
		State: a.State, Severity: c.severity(), Labels: maps.Clone(c.Rule.Labels), Runbook: c.Rule.Runbook,
		Since: ms(a.Since), Reason: a.Reason, SilencedBy: a.SilencedBy, InhibitedBy: a.InhibitedBy,
		History: append([]Step(nil), a.History...),
	}
	g.Refresh(&v)
	v.Subject, v.Operation = a.Cause.Subject, a.Cause.Operation
	if a.Cause == (about{}) { // it was kept before there was one
		v.Subject, v.Operation = g.Subject, g.Operation
	}
	v.Summary = summary(c.Rule.Summary, v.Group, g.Subject.Name)
	if s.Name != PlaneCluster {
		v.Cluster = s.Name
	}
	if a.FiredAt > 0 {
		t := ms(a.FiredAt)
		v.FiredAt = &t
	}
	return v
}

// Refresh brings an open alert up to its group's state: what changes without a
// transition is kept there alone.
func (g *Group) Refresh(v *Alert) {
	v.Last, v.Count, v.Evidence = ms(g.Last), g.Count, make([]Evidence, len(g.Evidence))
	for i, e := range g.Evidence {
		v.Evidence[i] = Evidence{Event: e.Event, Type: e.Type, Sequence: e.Seq, At: ms(e.At)}
	}
	v.Flapping, v.LastSubject, v.LastOperation = g.Flapping, g.Subject, g.Operation
	v.GroupKey = g.Rule + "#" + g.Hash()
}

// OpenAlert is the id of the group's alert that is not resolved, or "".
func (g *Group) OpenAlert() string {
	if g.Alert == nil {
		return ""
	}
	return g.Alert.ID
}

// renew brings a group under the stream's rules. Where its rule has another
// meaning, or is gone, the group begins anew: its alert ends, or goes on as the
// rule says.
func (s *Stream) renew(g *Group, clock int64) {
	c := s.set.Rule(g.Rule)
	if c != nil && c.Digest == g.Digest && c.Covers(s.Name) {
		s.resilence(c, g, clock)
		return
	}
	reason := ReasonChanged
	switch {
	case c == nil && s.set.resting[g.Rule]:
		s.timers.set(g, 0)
		return
	case c == nil:
		reason = s.set.gone
	case !c.Covers(s.Name):
		reason = ReasonDisabled
	case c.Rule.OnChange == OnChangeKeep && g.Alert != nil && len(g.Values) == len(c.keys):
		s.keep(c, g, clock)
		return
	}
	if g.Alert != nil {
		if c == nil { // what it was called is in the alert as it was kept
			c = &Compiled{ID: g.Rule, Digest: g.Digest}
		}
		g.Flapping = false
		s.tell(c, g, []effect{{kind: TypeResolved, state: Resolved, reason: reason, clock: clock}})
	}
	s.remove(g)
}

// keep takes an open alert over to its changed rule: as firing, until the rule's
// own resolve_when or time of quiet, counted from now, ends it; a pending one
// waits from now.
func (s *Stream) keep(c *Compiled, g *Group, clock int64) {
	was := g.Alert.State
	*g = Group{
		Rule: g.Rule, Digest: c.Digest, Values: g.Values, Other: g.Other, Seq: g.Seq, Touched: clock,
		Active: true, Last: clock, Open: g.Open, Raw: Firing, CauseSeq: g.CauseSeq, CauseAt: g.CauseAt,
		Alert: g.Alert, MuteUntil: g.MuteUntil, Count: g.Count, Evidence: g.Evidence, Subject: g.Subject, Operation: g.Operation,
		key: g.key, hash: g.hash, heap: g.heap, due: g.due,
	}
	if was == Pending && c.Rule.For > 0 {
		g.Raw, g.PendingAt = Pending, clock
	} else if was == Pending {
		s.tell(c, g, []effect{{kind: TypeFiring, state: Firing, reason: ReasonHolds, clock: clock}})
	}
	s.uninhibit(c, g, clock)
	s.remind(c, g, clock)
	s.changed(c, g)
}

// resilence looks at the silences anew, and at what inhibits.
func (s *Stream) resilence(c *Compiled, g *Group, clock int64) {
	if g.Alert != nil {
		was, until := *g.Alert, g.MuteUntil
		s.uninhibit(c, g, clock)
		s.remind(c, g, clock)
		if g.Alert.SilencedBy != was.SilencedBy || g.Alert.N != was.N || g.MuteUntil != until {
			s.changed(c, g)
			return
		}
	}
	_, due := g.next(c) // quiet may have another default
	s.timers.set(g, due)
}
