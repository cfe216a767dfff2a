package alert

// renew brings a group under the stream's rules. Where its rule has another
// meaning, shows its alert otherwise, or is gone, the alert ends, or goes on as the
// rule says; infra/docs/alerts.md has the table.
func (s *Stream) renew(g *Group, clock int64) {
	c := s.set.Rule(g.Rule)
	if c == nil && s.set.resting[g.Rule] {
		s.unschedule(g)
		return
	}
	reason, keeps := "", c != nil && c.Rule.OnChange == OnChangeKeep
	switch {
	case c == nil:
		reason = s.set.gone
	case !c.Rule.IsEnabled():
		reason = ReasonDisabled
	case !c.Covers(s.Name):
		reason = ReasonScope
	case c.Digest == g.Digest && !s.looksOther(c, g):
		s.resilence(c, g, clock)
		return
	case c.Digest == g.Digest && keeps:
		s.reshow(c, g, clock)
		s.changed(c, g)
		return
	case keeps && g.Alert != nil && g.sameGroups(c):
		s.keep(c, g, clock)
		return
	case keeps && g.Alert != nil:
		reason = ReasonRegrouped
	default:
		reason = ReasonChanged
	}
	if g.Alert != nil {
		if c == nil { // what it was called is in its face, or in the alert as it was kept
			c = &Compiled{ID: g.Rule, Digest: g.Digest}
		}
		g.Flapping = false
		s.tell(c, g, []effect{{kind: TypeResolved, state: Resolved, reason: reason, clock: clock}})
	}
	s.remove(g)
}

// looksOther tells whether an open alert was told with another face than its rule's.
func (s *Stream) looksOther(c *Compiled, g *Group) bool {
	if g.Alert == nil {
		return false
	}
	f := g.face(c)
	return !f.same(c.face())
}

// sameGroups tells whether what belonged to the group's alert belongs to the same
// group of the changed rule.
func (g *Group) sameGroups(c *Compiled) bool {
	if g.Alert.Face == nil {
		return len(g.Values) == len(c.keys)
	}
	return g.Alert.Face.By == groupDigest(c.Rule.GroupBy)
}

// reshow gives an open alert its rule's face, and tells it under that: as firing
// once more, for those who listen to its severity and labels only now.
func (s *Stream) reshow(c *Compiled, g *Group, clock int64) {
	f := c.face()
	g.Alert.Face = &f
	s.tell(c, g, []effect{{kind: g.told(), state: g.Alert.State, reason: ReasonChanged, clock: clock}})
}

// told is the kind of transition that tells how an open alert stands.
func (g *Group) told() string {
	switch {
	case g.Alert.State == Pending:
		return TypePending
	case g.Flapping:
		return TypeFlapping
	}
	return TypeFiring
}

// keep takes an open alert over to its changed rule: as firing, until the rule's
// own resolve_when or time of quiet, counted from now, ends it; a pending one
// waits from now. One whose condition is over already - it flaps, or is kept firing -
// goes on as that, for no longer than it would have, and ends where the changed rule
// knows no such thing.
func (s *Stream) keep(c *Compiled, g *Group, clock int64) {
	was, other, over := g.Alert.State, s.looksOther(c, g), g.Raw == "" || g.ClearAt > 0
	flaps := g.Flapping && c.Rule.Flap != nil
	next := Group{
		Rule: g.Rule, Digest: c.Digest, Values: g.Values, Other: g.Other, Seq: g.Seq, Touched: clock,
		Active: true, Last: clock, Open: g.Open, Raw: Firing, CauseSeq: g.CauseSeq, CauseAt: g.CauseAt,
		Alert: g.Alert, MuteUntil: g.MuteUntil, Count: g.Count, Evidence: g.Evidence, Subject: g.Subject, Operation: g.Operation, Cause: g.Cause, Details: g.Details,
		key: g.key, hash: g.hash, heap: g.heap, idle: g.idle, due: g.due,
	}
	if flaps {
		next.Flapping, next.Changes = true, g.Changes
	}
	switch {
	case !over && g.Raw == Pending && c.Rule.For > 0:
		next.Raw, next.PendingAt = Pending, clock
	case !over:
	case g.ClearAt > 0 && c.Rule.KeepFiringFor > 0:
		next.Active, next.ClearAt = g.Active, min(g.ClearAt, clock+c.Rule.KeepFiringFor.ms())
	case flaps:
		next.Active, next.Raw = g.Active, ""
	default:
		g.Flapping = false
		s.tell(c, g, []effect{{kind: TypeResolved, state: Resolved, reason: ReasonEnded, clock: clock}})
		s.remove(g)
		return
	}
	unsteady := g.Flapping && !flaps
	*g = next
	switch {
	case was == Pending && c.Rule.For == 0:
		f := c.face()
		g.Alert.Face = &f
		s.tell(c, g, []effect{{kind: TypeFiring, state: Firing, reason: ReasonHolds, clock: clock}})
	case other || unsteady:
		s.reshow(c, g, clock)
	}
	s.reinhibit(c, g, clock)
	s.remind(c, g, clock)
	s.changed(c, g)
}

// resilence looks at the silences anew, and at what inhibits.
func (s *Stream) resilence(c *Compiled, g *Group, clock int64) {
	if g.Alert != nil {
		was, until := *g.Alert, g.MuteUntil
		s.reinhibit(c, g, clock)
		s.remind(c, g, clock)
		if g.Alert.SilencedBy != was.SilencedBy || g.Alert.N != was.N || g.MuteUntil != until {
			s.changed(c, g)
			return
		}
	}
	s.schedule(c, g) // quiet may have another default
}

// changed notes that a group is to be kept, and when its next timer comes.
func (s *Stream) changed(c *Compiled, g *Group) {
	s.keeps(g)
	s.schedule(c, g)
}

// keeps notes that a group is to be kept.
func (s *Stream) keeps(g *Group) {
	if s.dirty[g.key] != nil {
		s.weight -= g.weight
	}
	s.dirty[g.key] = g
	g.weight = g.bytes()
	s.weight += g.weight
	delete(s.removed, g.key)
}

func (s *Stream) remove(g *Group) {
	s.unschedule(g)
	delete(s.groups, g.key)
	delete(s.dirty, g.key)
	s.removed[g.key] = g
	if delete(s.ofRule[g.Rule], g.key); len(s.ofRule[g.Rule]) == 0 {
		delete(s.ofRule, g.Rule)
	}
	if g.Other {
		s.folded[g.Rule] = false
	}
}
