package alert

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// Limits of silences.
const (
	MaxSilences     = 1000
	MaxMatchers     = 10
	MaxSilence      = 366 * 24 * time.Hour
	maxMatcherBytes = 512
)

// Operators of matchers.
const (
	OpEqual    = "="
	OpNotEqual = "!="
	OpMatch    = "=~" // RE2, the whole value
)

// Match is one condition of a silence: all must hold.
type Match struct {
	// Field is rule, severity, cluster, "labels.NAME" or "group.KEY".
	Field string `json:"field"`
	Op    string `json:"op" enum:"=,!=,=~"`
	Value string `json:"value"`
	// Name is that of the cluster whose id the value is; it is told, not taken.
	Name string `json:"name,omitempty"`
}

// Silence keeps alerts from being told for a time. They fire, and are listed.
type Silence struct {
	ID       string          `json:"id"`
	Matchers []Match         `json:"matchers"`
	StartsAt time.Time       `json:"starts_at"`
	EndsAt   time.Time       `json:"ends_at"`
	Author   operation.Actor `json:"author"`
	Reason   string          `json:"reason"`
	Created  time.Time       `json:"created_at"`
	Version  int64           `json:"version"`
}

// Active tells whether the silence is in force at the time.
func (s *Silence) Active(at time.Time) bool { return !at.Before(s.StartsAt) && at.Before(s.EndsAt) }

// next is when the silence begins or ends next, after the time; zero when it does
// neither any more.
func (s *Silence) next(at time.Time) time.Time {
	switch {
	case at.Before(s.StartsAt):
		return s.StartsAt
	case at.Before(s.EndsAt):
		return s.EndsAt
	}
	return time.Time{}
}

// Matcher is a silence that is ready to match.
type Matcher struct {
	Silence  Silence
	patterns []*regexp.Regexp // by matcher, nil without one
}

var fieldForm = regexp.MustCompile(`^(rule|severity|cluster|(labels|group)\.[a-z][a-z0-9_]{0,62})$`)

// CompileSilence checks a silence and makes it ready. The error is Faults.
func CompileSilence(s Silence) (*Matcher, error) {
	f := &Faults{}
	m := &Matcher{Silence: s, patterns: make([]*regexp.Regexp, len(s.Matchers))}
	if n := len(s.Matchers); n == 0 || n > MaxMatchers {
		f.add("/matchers", CodeRange, "must have 1 to %d", MaxMatchers)
	}
	for i, x := range s.Matchers {
		p := fmt.Sprintf("/matchers/%d", i)
		if !fieldForm.MatchString(x.Field) {
			f.add(p+"/field", CodeFormat, "must be rule, severity, cluster, labels.NAME or group.KEY")
		}
		if len(x.Value) > maxMatcherBytes {
			f.add(p+"/value", CodeRange, "has %d bytes, the limit is %d", len(x.Value), maxMatcherBytes)
			continue
		}
		switch x.Op {
		case OpEqual, OpNotEqual:
		case OpMatch:
			re, err := compileRegexp(x.Value)
			if err != nil {
				f.add(p+"/value", CodeFormat, "%v", err)
			}
			m.patterns[i] = re
		default:
			f.add(p+"/op", CodeFormat, "must be %s, %s or %s", OpEqual, OpNotEqual, OpMatch)
		}
	}
	switch {
	case s.StartsAt.IsZero() || s.EndsAt.IsZero():
		f.add("/ends_at", CodeRequired, "must say when it ends")
	case !s.EndsAt.After(s.StartsAt):
		f.add("/ends_at", CodeRange, "must be after starts_at")
	case s.EndsAt.Sub(s.StartsAt) > MaxSilence:
		f.add("/ends_at", CodeRange, "must be at most %s after starts_at", Duration(MaxSilence))
	}
	if s.Reason == "" {
		f.add("/reason", CodeRequired, "must say why")
	}
	text(f, "/reason", s.Reason, MaxShortBytes)
	return m, f.orNil()
}

// Matches tells whether the silence is for the alert.
func (m *Matcher) Matches(a *Alert) bool {
	for i, x := range m.Silence.Matchers {
		if !m.holds(i, a.field(x.Field)) {
			return false
		}
	}
	return len(m.Silence.Matchers) > 0
}

// Concerns tells whether the silence may be for an alert of the cluster.
func (m *Matcher) Concerns(cluster string) bool {
	for i, x := range m.Silence.Matchers {
		if x.Field == "cluster" && !m.holds(i, cluster) {
			return false
		}
	}
	return true
}

// holds tells whether the i-th condition holds for a value.
func (m *Matcher) holds(i int, v string) bool {
	x := m.Silence.Matchers[i]
	if x.Field == "cluster" && x.Value == "" {
		x.Value = PlaneCluster // as it was written before that had a name
	}
	switch x.Op {
	case OpEqual:
		return v == x.Value
	case OpNotEqual:
		return v != x.Value
	case OpMatch:
		return m.patterns[i] != nil && m.patterns[i].MatchString(v)
	}
	return false
}

// field reads what a matcher names; "" where the alert has none.
func (a *Alert) field(name string) string {
	switch name {
	case "rule":
		return a.Rule
	case "severity":
		return a.Severity
	case "cluster":
		return cmp.Or(a.Cluster, PlaneCluster)
	}
	if k, ok := cutPrefix(name, "labels."); ok {
		return a.Labels[k]
	}
	k, _ := cutPrefix(name, "group.")
	return a.Group[k]
}
