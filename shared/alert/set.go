package alert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/event"
)

// Set is all rules and silences by which streams are judged, indexed by event
// type. It does not change; it is safe for use by several goroutines.
type Set struct {
	rules    []*Compiled // by rank, then id
	byID     map[string]*Compiled
	byName   map[string]*Compiled
	inhibits map[string][]*Compiled // by an inhibitor's id, those that name it
	silences []*Matcher
	gone     string          // why a rule that is not in it is not
	resting  map[string]bool // ids of rules that cannot be used for now

	exact    map[string][]listed
	families []listed // with their prefix
	mu       sync.RWMutex
	seen     map[string][]listed // by event type
}

// listed is a rule in the index.
type listed struct {
	c      *Compiled
	may    roles
	prefix string
}

// seenTypes bounds the types whose rules are kept at hand: the catalogue has far
// fewer.
const seenTypes = 4096

// NewSet makes the set. Rules that inhibit others come before them; where they
// inhibit each other in a circle, which Cycle finds, the order is that of ids.
// The resting are ids of rules that cannot be used for now: they judge nothing, and
// their alerts stay as they are.
func NewSet(rules []*Compiled, silences []*Matcher, resting ...string) *Set {
	s := &Set{byID: map[string]*Compiled{}, byName: map[string]*Compiled{}, inhibits: map[string][]*Compiled{}, silences: silences, gone: ReasonDeleted, resting: map[string]bool{}, exact: map[string][]listed{}, seen: map[string][]listed{}}
	ranks := ranksOf(rules)
	for _, c := range rules {
		x := *c
		x.rank = ranks[c.Rule.Name]
		s.rules = append(s.rules, &x)
		s.byID[x.ID], s.byName[x.Rule.Name] = &x, &x
	}
	for _, id := range resting {
		s.resting[id] = true
	}
	slices.SortFunc(s.rules, func(a, b *Compiled) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.ID, b.ID))
	})
	for _, c := range s.rules {
		if c.Rule.IsEnabled() {
			s.index(c)
		}
		for _, in := range c.Rule.InhibitedBy {
			if by := s.byName[in.Rule]; by != nil && !slices.Contains(s.inhibits[by.ID], c) {
				s.inhibits[by.ID] = append(s.inhibits[by.ID], c)
			}
		}
	}
	return s
}

// NoRules is the set of a stream that is judged no more; its alerts end for the
// reason.
func NoRules(reason string) *Set {
	s := NewSet(nil, nil)
	s.gone = reason
	return s
}

func (s *Set) index(c *Compiled) {
	may := map[string]roles{}
	for role, cl := range c.clauses() {
		for _, t := range cl.on {
			may[t] |= role
		}
	}
	for t, r := range may {
		if family, ok := strings.CutSuffix(t, "*"); ok {
			s.families = append(s.families, listed{c, r, family})
		} else {
			s.exact[t] = append(s.exact[t], listed{c: c, may: r})
		}
	}
}

// of returns the rules that the type may concern, in their order.
func (s *Set) of(typ string) []listed {
	s.mu.RLock()
	out, ok := s.seen[typ]
	s.mu.RUnlock()
	if ok {
		return out
	}
	may := map[*Compiled]roles{}
	for _, l := range s.exact[typ] {
		may[l.c] |= l.may
	}
	for _, l := range s.families {
		if strings.HasPrefix(typ, l.prefix) {
			may[l.c] |= l.may
		}
	}
	for c, r := range may {
		out = append(out, listed{c: c, may: r})
	}
	slices.SortFunc(out, func(a, b listed) int {
		return cmp.Or(cmp.Compare(a.c.rank, b.c.rank), strings.Compare(a.c.ID, b.c.ID))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) < seenTypes {
		s.seen[typ] = out
	}
	return out
}

// Rules returns the rules in the order in which they judge.
func (s *Set) Rules() []*Compiled { return slices.Clone(s.rules) }

// Rule returns a rule by its id, or nil.
func (s *Set) Rule(id string) *Compiled { return s.byID[id] }

// NeedsSpec tells whether a rule that the event's type may concern asks for the
// spec of the event's operation.
func (s *Set) NeedsSpec(typ string) bool {
	return slices.ContainsFunc(s.of(typ), func(l listed) bool { return l.c.needsSpecFor(typ) })
}

// silenced returns the id of the silence that covers the alert at the time and
// lasts longest, or "", and when that may be another one, in Unix milliseconds: a
// silence for it begins or ends; 0: none does.
func (s *Set) silenced(a *Alert, at time.Time) (silence string, until int64) {
	var best *Matcher
	for _, m := range s.silences {
		next := m.Silence.next(at)
		if next.IsZero() || !m.Matches(a) {
			continue
		}
		if t := event.RoundUp(next); until == 0 || t < until {
			until = t
		}
		if m.Silence.Active(at) && longer(m, best) {
			best = m
		}
	}
	if best == nil {
		return "", until
	}
	return best.Silence.ID, until
}

// longer tells whether a silence lasts longer than the best so far.
func longer(m, best *Matcher) bool {
	return best == nil || m.Silence.EndsAt.After(best.Silence.EndsAt)
}

// Silenced returns the silence that covers the alert at the time and lasts
// longest, or nil.
func Silenced(silences []*Matcher, a *Alert, at time.Time) *Matcher {
	var best *Matcher
	for _, m := range silences {
		if m.Silence.Active(at) && m.Matches(a) && longer(m, best) {
			best = m
		}
	}
	return best
}

// ranksOf tells, by rule, how many inhibitors stand before it in a row.
func ranksOf(rules []*Compiled) map[string]int {
	by := map[string][]string{}
	for _, c := range rules {
		for _, in := range c.Rule.InhibitedBy {
			by[c.Rule.Name] = append(by[c.Rule.Name], in.Rule)
		}
	}
	ranks := map[string]int{}
	var rank func(name string, path []string) int
	rank = func(name string, path []string) int {
		if r, ok := ranks[name]; ok {
			return r
		}
		if slices.Contains(path, name) {
			return 0 // a circle
		}
		r := 0
		for _, in := range by[name] {
			r = max(r, 1+rank(in, append(path, name)))
		}
		ranks[name] = r
		return r
	}
	for _, c := range rules {
		rank(c.Rule.Name, nil)
	}
	return ranks
}

// Cycle finds a circle of rules that inhibit each other, as Faults, in which the
// named one is.
func Cycle(rules []*Rule, name string) error {
	by := map[string][]string{}
	for _, r := range rules {
		for _, in := range r.InhibitedBy {
			by[r.Name] = append(by[r.Name], in.Rule)
		}
	}
	seen := map[string]bool{}
	var reach func(from string, path []string) []string
	reach = func(from string, path []string) []string {
		for _, in := range by[from] {
			if in == name {
				return append(path, in)
			}
			if seen[in] {
				continue
			}
			seen[in] = true
			if p := reach(in, append(path, in)); p != nil {
				return p
			}
		}
		return nil
	}
	if p := reach(name, []string{name}); p != nil {
		return Faults{{Pointer: "/inhibited_by", Code: CodeCycle, Detail: fmt.Sprintf("is a circle: %s", strings.Join(p, ", inhibited by "))}}
	}
	return nil
}
