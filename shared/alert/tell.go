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
			f := c.face()
			g.Alert = &open{ID: g.alertID(c, s.Name), Since: x.clock, Cause: g.Cause, Face: &f}
		}
		a := g.Alert
		was := a.State
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
		switch {
		case x.state == Resolved && s.muting[a.ID] > 0:
			s.Position.Releases = append(s.Position.Releases, Release{a.ID, x.clock})
		case x.state == Firing && was != Firing:
			s.hold(c, x.clock)
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

// remind looks anew at the silences of an open alert. Of one that fires is told
// that a silence began for it, or that none is in force any more: then, too, that it
// fires, or flaps.
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
			{kind: g.told(), state: Firing, reason: ReasonUnsilence, clock: at},
		})
	}
}

// groupOf is the group's key by name, as its rule has it.
func (s *Stream) groupOf(c *Compiled, g *Group) map[string]string { return g.named(c.keys) }

// otherValue is the value of each key of the group that stands for all over the
// limit.
const otherValue = "(other)"

// view is the group's alert as everyone sees it.
func (s *Stream) view(c *Compiled, g *Group) Alert {
	a, f := g.Alert, g.face(c)
	v := Alert{
		ID: a.ID, Rule: f.Rule, RuleID: c.ID, RuleVersion: f.Version, Stream: s.Name, Group: g.named(f.Keys), Folded: g.Other,
		State: a.State, Severity: f.Severity, Labels: maps.Clone(f.Labels), Runbook: f.Runbook,
		Since: ms(a.Since), Reason: a.Reason, SilencedBy: a.SilencedBy, InhibitedBy: a.InhibitedBy,
		History: append([]Step(nil), a.History...),
	}
	v.GroupKey = g.Rule + "#" + g.Hash()
	g.Refresh(&v)
	v.Subject, v.Operation, v.Node, v.NodeUID = a.Cause.Subject, a.Cause.Operation, a.Cause.Node, a.Cause.NodeUID
	if a.Cause == (about{}) { // it was kept before there was one
		v.Subject, v.Operation = g.Subject, g.Operation
	}
	v.Summary = summary(f.Summary, v.Group, g.Subject.Name, g.Details)
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
		v.Evidence[i] = Evidence{Event: e.Event, Type: e.Type, Sequence: e.Seq, At: ms(cmp.Or(e.Happened, e.At))}
	}
	v.Flapping, v.LastSubject, v.LastOperation = g.Flapping, g.Subject, g.Operation
}

// OpenAlert is the id of the group's alert that is not resolved, or "".
func (g *Group) OpenAlert() string {
	if g.Alert == nil {
		return ""
	}
	return g.Alert.ID
}

// Open are the groups of alerts that are not resolved, by the alerts' ids.
func (s *Stream) Open() map[string]*Group {
	out := map[string]*Group{}
	for _, g := range s.groups {
		if g.Alert != nil {
			out[g.Alert.ID] = g
		}
	}
	return out
}
