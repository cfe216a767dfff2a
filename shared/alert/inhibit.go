package alert

import "slices"

// Release is an alert that ended at a clock.
type Release struct {
	Alert string `json:"alert"`
	Clock int64  `json:"clock"`
}

// Hold is a rule of which an alert began to fire at a clock: it may keep others from
// being told that were told already.
type Hold struct {
	Rule  string `json:"rule"` // id
	Clock int64  `json:"clock"`
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

// hold notes that an alert of the rule began to fire, where that may mean something
// to others.
func (s *Stream) hold(c *Compiled, clock int64) {
	concerns := func(d *Compiled) bool { return len(s.ofRule[d.ID]) > 0 }
	if !slices.ContainsFunc(s.set.inhibits[c.ID], concerns) {
		return
	}
	if !slices.ContainsFunc(s.Position.Holds, func(h Hold) bool { return h.Rule == c.ID }) {
		s.Position.Holds = append(s.Position.Holds, Hold{c.ID, clock})
	}
}

// reinhibit looks anew at what keeps an alert that fires from being told, and tells
// when that is something, something else, or nothing any more. One that flaps, and was
// told so, is told no more until it is steady: then it is looked at.
func (s *Stream) reinhibit(c *Compiled, g *Group, clock int64) {
	a := g.Alert
	if a == nil || a.State != Firing || g.Flapping && a.InhibitedBy == "" {
		return
	}
	switch by := s.inhibitor(c, g); by {
	case a.InhibitedBy:
	case "":
		s.tell(c, g, []effect{{kind: g.told(), state: Firing, reason: ReasonUnmuted, clock: clock}})
	default:
		s.tell(c, g, []effect{{kind: TypeInhibited, state: Firing, reason: ReasonInhibited, clock: clock}})
	}
}

// inhibitor finds an alert that fires and keeps the group's from being told: the one
// that does so already, or the first by the rule's order and by key. Of rules that
// inhibit each other in a circle one inhibits nothing, or all would be silent.
func (s *Stream) inhibitor(c *Compiled, g *Group) string {
	var first string
	for _, in := range c.Rule.InhibitedBy {
		by := s.set.byName[in.Rule]
		if by == nil || by.rank >= c.rank {
			continue
		}
		id := s.firing(by, in.Equal, s.groupOf(c, g), g)
		if id != "" && id == g.Alert.InhibitedBy {
			return id
		}
		if first == "" {
			first = id
		}
	}
	return first
}

// firing finds a firing alert of the inhibitor's rule whose group has the keys in
// common with that of g: the one that inhibits it already, or the first by key. What
// nobody knows is like nothing: an empty value, and a group that stands for all over
// the limit.
func (s *Stream) firing(by *Compiled, equal []string, group map[string]string, g *Group) string {
	if len(equal) > 0 && g.Other || slices.ContainsFunc(equal, func(k string) bool { return group[k] == "" }) {
		return ""
	}
	if values, ok := valuesOf(by.keys, equal, group); ok { // one group, as they are the same keys
		if o := s.groups[keyOf(by.ID, values, false)]; o != nil && o.Alert != nil && o.Alert.State == Firing {
			return o.Alert.ID
		}
		return ""
	}
	var best *Group
	for _, o := range s.ofRule[by.ID] {
		if o.Alert == nil || o.Alert.State != Firing || len(equal) > 0 && o.Other || !same(equal, s.groupOf(by, o), group) {
			continue
		}
		if o.Alert.ID == g.Alert.InhibitedBy {
			return o.Alert.ID
		}
		if best == nil || compareKeys(o.key, best.key) < 0 {
			best = o
		}
	}
	if best == nil {
		return ""
	}
	return best.Alert.ID
}

// valuesOf returns the values of the keys, when equal names just these.
func valuesOf(keys, equal []string, group map[string]string) ([]string, bool) {
	if len(keys) != len(equal) {
		return nil, false
	}
	out := make([]string, len(keys))
	for i, k := range keys {
		if !slices.Contains(equal, k) {
			return nil, false
		}
		out[i] = group[k]
	}
	return out, true
}

// same tells whether both groups have the keys, with the same values.
func same(keys []string, a, b map[string]string) bool {
	for _, k := range keys {
		if x, ok := a[k]; !ok || x != b[k] {
			return false
		}
	}
	return true
}

// Release tells what alerts that began to fire keep from being told from now on, and
// what those that are over have kept from it. full ends it early: then it returns
// false, and goes on when it is called again.
func (s *Stream) Release(full func() bool) bool {
	for len(s.Position.Holds) > 0 {
		h := s.Position.Holds[0]
		for _, d := range s.set.inhibits[h.Rule] {
			for _, g := range inOrder(s.ofRule[d.ID]) {
				if g.Alert == nil || g.Alert.State != Firing || g.Alert.InhibitedBy != "" || g.Digest != d.Digest {
					continue
				}
				if full() {
					return false
				}
				if s.reinhibit(d, g, h.Clock); g.Alert.InhibitedBy != "" {
					s.changed(d, g)
				}
			}
		}
		s.Position.Holds = s.Position.Holds[1:]
	}
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
			if g.Alert.State != Firing {
				s.inhibit(g.Alert, "")
			}
			s.reinhibit(c, g, r.Clock)
			s.changed(c, g)
		}
		s.Position.Releases = s.Position.Releases[1:]
	}
	return true
}
