package alert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/event"
)

// DefaultGroups bounds the groups of one rule in one stream; what comes beyond
// is folded into one group.
const DefaultGroups = 1000

// Position is how far a stream is judged.
type Position struct {
	// Next is the sequence of the next event to judge.
	Next int64 `json:"next"`
	// Clock is the time of the stream in Unix milliseconds: the latest receipt of
	// an event, or timer, so far. It goes back where an event says so (setBack).
	Clock int64 `json:"clock"`
	// Back is the sequence of the last such event.
	Back int64 `json:"back,omitempty"`
	// Rules is the mark of the rules by which it was judged last.
	Rules string `json:"rules"`
	// Releases are alerts that are over and kept others from being told, which is
	// yet to be made up for.
	Releases []Release `json:"releases,omitempty"`
	// Holds are rules of which an alert began to fire, whose dependents are yet to
	// be looked at.
	Holds []Hold `json:"holds,omitempty"`
	// Failing tells, by rule, how judging by it failed; the last maxFailing rules.
	Failing map[string]*Failing `json:"failing,omitempty"`
}

// Stream judges the events of one stream in order. All of it is a function of
// the events, the clock that it is given and the set: no time and no chance of
// its own. It is not safe for use by several goroutines.
type Stream struct {
	Name     string
	Position Position
	Meter    Meter
	// MaxGroups bounds the groups of a rule; DefaultGroups when 0.
	MaxGroups int
	// Only is the id of the one rule that Meter counts for; what the others take is in
	// Beside. Empty: all.
	Only   string
	Beside Meter

	set     *Set
	groups  map[groupKey]*Group
	ofRule  map[string]map[groupKey]*Group // the same, by rule
	folded  map[string]bool                // rules that have an "(other)" group
	muting  map[string]int                 // alerts that keep others from being told: how many
	timers  timers
	idle    timers              // of groups that wait for nothing but to be forgotten
	dirty   map[groupKey]*Group // changed since the last Take
	removed map[groupKey]*Group // likewise
	weight  int                 // of the changed ones, in bytes
	out     []Transition
	failing bool // rules failed in a way that is to be kept
	err     error
}

// NewStream is a stream from a position, with the groups that were kept.
func NewStream(name string, set *Set, at Position, groups []*Group) *Stream {
	s := &Stream{
		Name: name, Position: at, set: set, groups: map[groupKey]*Group{}, ofRule: map[string]map[groupKey]*Group{}, folded: map[string]bool{}, muting: map[string]int{},
		dirty: map[groupKey]*Group{}, removed: map[groupKey]*Group{},
	}
	s.Position.Next = max(at.Next, 1)
	for _, g := range groups {
		g.key, g.heap = keyOf(g.Rule, g.Values, g.Other), -1
		s.put(g)
		c := set.Rule(g.Rule)
		if c != nil && c.former == g.Digest {
			g.Digest = c.Digest
		}
		if c != nil && c.Digest == g.Digest {
			s.schedule(c, g)
		}
	}
	return s
}

func (s *Stream) put(g *Group) {
	s.groups[g.key] = g
	if s.ofRule[g.Rule] == nil {
		s.ofRule[g.Rule] = map[groupKey]*Group{}
	}
	s.ofRule[g.Rule][g.key] = g
	s.folded[g.Rule] = s.folded[g.Rule] || g.Other
	if g.Alert != nil && g.Alert.InhibitedBy != "" {
		s.muting[g.Alert.InhibitedBy]++
	}
}

// Groups is how many groups there are.
func (s *Stream) Groups() int { return len(s.groups) }

// Due is when the next timer comes, zero when there is none. To forget groups of
// which nothing counts any more is no reason to come but after idleKept: the next
// event, or timer, takes them with it.
func (s *Stream) Due() time.Time {
	var at int64
	if len(s.timers) > 0 {
		at = s.timers[0].due
	}
	if len(s.idle) > 0 {
		if due := s.idle[0].due + idleKept.Milliseconds(); at == 0 || due < at {
			at = due
		}
	}
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMilli(at).UTC()
}

// Load is how much has changed since the last Take: groups, transitions, and
// about how many bytes they take.
func (s *Stream) Load() (groups, transitions, bytes int) {
	return len(s.dirty) + len(s.removed), len(s.out), s.weight
}

// Changes is what a Take returns: the groups to keep and to forget, and what is
// to be told, in order.
type Changes struct {
	Keep, Forget []*Group
	Told         []Transition
	// Failing: a rule failed for the first time, or twice as often as when that was
	// said last; the position tells.
	Failing bool
}

// Take returns what has changed since the last Take.
func (s *Stream) Take() Changes {
	var c Changes
	for _, g := range s.dirty {
		c.Keep = append(c.Keep, g)
	}
	for _, g := range s.removed {
		c.Forget = append(c.Forget, g)
	}
	c.Told, s.out, s.weight = s.out, nil, 0
	c.Failing, s.failing = s.failing, false
	clear(s.dirty)
	clear(s.removed)
	return c
}

// Judge judges the next event; v are its variables. Timers that are due by its
// receipt come first. full, asked between any two groups, ends it early: then it
// returns false, and judging the same event again goes on where it stopped.
func (s *Stream) Judge(v *Vars, full func() bool) bool {
	e := v.e
	if e.Sequence < s.Position.Next {
		return true
	}
	if s.PassOwn(e) {
		return true
	}
	if d, ok := event.SetBackOf(e); ok && !s.setBack(e, d.Judged, full) {
		return false
	}
	clock := max(s.Position.Clock, e.ReceivedAt.UnixMilli())
	if !s.advance(clock, full) {
		return false
	}
	for _, l := range s.set.of(e.Type) {
		if full() {
			return false
		}
		if l.c.Covers(s.Name) {
			m := s.meter(l.c)
			if e.DetailExpired && l.c.readsDetail(e) {
				m.Expired++
			}
			errs := m.Errors
			s.judge(l, v, clock, m)
			if n := m.Errors - errs; n > 0 {
				m.failed(l.c.Rule.Name, n)
				s.fail(l.c, e.Sequence, clock, m.last)
			}
		}
	}
	s.Meter.Judged++
	if v.time > e.Timestamp.UnixMilli() {
		s.Meter.Late++
	}
	s.Position.Next, s.Position.Clock = e.Sequence+1, clock
	return true
}

// Tick lets the timers come that are due at now; the stream must have been
// judged to its head at a time not before that. false: full ended it early.
func (s *Stream) Tick(now time.Time, full func() bool) bool { return s.advance(now.UnixMilli(), full) }

// Err is why the stream cannot go on, or nil: what it holds since the last Take is
// not to be kept.
func (s *Stream) Err() error { return s.err }

func (s *Stream) advance(clock int64, full func() bool) bool {
	if s.err != nil || !s.Release(full) {
		return false
	}
	for g := s.first(); g != nil && g.due <= clock; g = s.first() {
		if full() {
			return false
		}
		c := s.set.Rule(g.Rule)
		which, due := g.next(c)
		at := max(due, s.Position.Clock) // one that came late, comes now
		s.Position.Clock = at
		s.meter(c).Timers++
		if which == timerMuted {
			s.remind(c, g, at)
		} else {
			effects, removed := g.fireTimer(c, which, at)
			if removed {
				s.remove(g)
				continue
			}
			s.tell(c, g, effects)
		}
		s.changed(c, g)
		if again, next := g.next(c); again == which && next == due {
			s.err = fmt.Errorf("let timer %d of rule %s come at %d: it is due then still", which, c.ID, due)
			return false
		}
		if !s.Release(full) {
			return false
		}
	}
	return true
}

// meter counts what judging by a rule takes.
func (s *Stream) meter(c *Compiled) *Meter {
	if s.Only == "" || s.Only == c.ID {
		return &s.Meter
	}
	return &s.Beside
}

// judge takes an event to one rule.
func (s *Stream) judge(l listed, v *Vars, clock int64, m *Meter) {
	c := l.c
	is, values := c.look(l.may, v, m)
	if is == 0 {
		return
	}
	g, is := s.group(c, is, values)
	if g == nil || g.Seq >= v.e.Sequence {
		return
	}
	in := &input{seq: v.e.Sequence, at: v.time, clock: clock, is: is, e: v.e, v: v}
	if is&roleMatch != 0 && c.distinct != nil {
		in.value = brief(c.distinct.string(v, m))
	}
	if is&(roleBegin|roleEnd) != 0 {
		in.each = bound(c.each.string(v, m))
	}
	if is&roleMatch != 0 {
		m.Matched++
	}
	if is&(roleMatch|roleBegin) != 0 {
		in.shows = c.showing(v)
	}
	if g.heap == unknown {
		s.adopt(c, g, v.e.Sequence, clock)
	}
	s.tell(c, g, g.apply(c, in))
	s.changed(c, g)
}

// group finds the group of a rule, or one for it that is not kept yet, and what the
// event is to it; nil where the event cannot mean anything without one. Only what
// matches or begins is taken to "(other)": what ends something in one group must not
// end it for all that are folded.
func (s *Stream) group(c *Compiled, is roles, values []string) (*Group, roles) {
	key := keyOf(c.ID, values, false)
	if g := s.groups[key]; g != nil {
		return g, is
	}
	most := s.MaxGroups
	if most == 0 {
		most = DefaultGroups
	}
	if n := len(s.ofRule[c.ID]); n >= most || s.folded[c.ID] && n >= most-1 {
		if is &= roleMatch | roleBegin; is == 0 {
			return nil, 0
		}
		other := keyOf(c.ID, nil, true)
		if g := s.groups[other]; g != nil {
			return g, is
		}
		return &Group{Rule: c.ID, Digest: c.Digest, Other: true, key: other, heap: unknown}, is
	}
	if is&(roleMatch|roleBegin) == 0 {
		return nil, 0
	}
	return &Group{Rule: c.ID, Digest: c.Digest, Values: values, key: key, heap: unknown}, is
}

// unknown as a group's place among the timers: it is not one of the stream's yet.
const unknown = -2

// adopt makes a group one of the stream's. That groups are folded from now on is
// told.
func (s *Stream) adopt(c *Compiled, g *Group, seq, clock int64) {
	g.heap = -1
	s.put(g)
	if !g.Other {
		return
	}
	s.meter(c).Folded++
	v := Alert{Rule: c.Rule.Name, RuleID: c.ID, RuleVersion: c.Version, Stream: s.Name, Group: s.groupOf(c, g), Folded: true, Count: int64(len(s.ofRule[c.ID]))}
	if s.Name != PlaneCluster {
		v.Cluster = s.Name
	}
	s.out = append(s.out, Transition{Kind: TypeFolded, At: ms(clock), Alert: v, N: seq})
}

// SetRules takes other rules, and other silences, at a clock, which must not be
// later than the receipt of the next event to judge, or the next timer. full ends it early: then it
// returns false, and is to be called again. What becomes of open alerts is their
// rule's to say.
func (s *Stream) SetRules(set *Set, mark string, now time.Time, full func() bool) bool {
	clock := max(s.Position.Clock, now.UnixMilli())
	s.set, s.Position.Clock = set, clock
	s.forgetFailures()
	for _, g := range s.ranked() {
		if full() {
			return false
		}
		s.renew(g, clock)
	}
	s.Position.Rules = mark
	return true
}

// sorted are the groups in a fixed order.
func (s *Stream) sorted() []*Group { return inOrder(s.groups) }

func inOrder(groups map[groupKey]*Group) []*Group {
	return slices.SortedFunc(maps.Values(groups), func(a, b *Group) int { return compareKeys(a.key, b.key) })
}

// ranked are the groups in a fixed order in which those of inhibitors come before
// those that they inhibit, and those of rules that are gone before all.
func (s *Stream) ranked() []*Group {
	rank := func(g *Group) int {
		if c := s.set.Rule(g.Rule); c != nil {
			return c.rank
		}
		return -1
	}
	out := s.sorted()
	slices.SortStableFunc(out, func(a, b *Group) int { return cmp.Compare(rank(a), rank(b)) })
	return out
}

// PassOwn steps over an event of alerts and tells whether it is one: no rule judges
// what rules made.
func (s *Stream) PassOwn(e *event.Event) bool {
	if !strings.HasPrefix(e.Type, "alert.") {
		return false
	}
	s.Pass(e)
	return true
}

// Pass steps over an event unjudged.
func (s *Stream) Pass(e *event.Event) { s.Position.Next = max(s.Position.Next, e.Sequence+1) }
