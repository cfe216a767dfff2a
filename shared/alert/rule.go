// Package alert is the domain of alert rules: what a rule is and when it is
// refused, what it makes of a stream of events, and the alerts that it derives.
//
// It is pure: no storage, no HTTP, no clock of its own. Package react reads the
// streams, feeds a Stream with their events in order, and keeps in one commit
// what that returns. See infra/docs/alerts.md for the language of rules.
package alert

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits of a rule. What is over one is refused with it.
const (
	MaxRuleBytes  = 32 << 10
	MaxRules      = 1000 // beside the shipped ones
	MaxNameBytes  = 63
	MaxTextBytes  = 4 << 10 // of a description
	MaxShortBytes = 1 << 10 // of a runbook link, a summary or a label's value
	MaxLabels     = 32
	MaxOn         = 50 // types and families of one clause
	MaxKeys       = 8  // expressions of group_by
	MaxClusters   = 200
	MaxInhibitors = 10
	MaxExprBytes  = 4 << 10
	MaxCount      = 100_000
	// MaxDistinct bounds count where it counts distinct values: so many are kept.
	MaxDistinct = 1000
	MaxChanges  = 100 // of flap
	MinSpan     = time.Second
	MaxSpan     = 31 * 24 * time.Hour
)

// DefaultQuiet is the least time without a match after which an alert resolves
// whose rule says neither resolve_when nor resolve_after; a longer window is used
// instead. LongestQuiet is that of a rule that says resolve_when alone: should
// what resolves it never come, the alert does not stay for good.
const (
	DefaultQuiet = 5 * time.Minute
	LongestQuiet = MaxSpan
)

// PlaneCluster stands for the plane's own stream among a rule's clusters.
const PlaneCluster = "plane"

// What becomes of open alerts when their rule changes, also where only what they
// show does.
const (
	OnChangeResolve = "resolve" // they end, and the changed rule begins anew
	OnChangeKeep    = "keep"    // they go on under the changed rule
)

// Duration is a time.Duration that is written "90s", "5m", "1h30m" or "7d".
type Duration time.Duration

// D is the duration as Go has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

func (d Duration) ms() int64 { return time.Duration(d).Milliseconds() }

// String writes whole days as days.
func (d Duration) String() string {
	const day = 24 * time.Hour
	switch t := time.Duration(d); {
	case t != 0 && t%day == 0:
		return fmt.Sprintf("%dd", t/day)
	case t != 0 && t%time.Hour == 0:
		return fmt.Sprintf("%dh", t/time.Hour)
	case t != 0 && t%time.Minute == 0:
		return fmt.Sprintf("%dm", t/time.Minute)
	default:
		return t.String()
	}
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	t, err := parseDuration(string(b))
	*d = Duration(t)
	return err
}

// parseDuration reads a duration: what Go reads, and days.
func parseDuration(s string) (time.Duration, error) {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		days, err := strconv.Atoi(n)
		if err != nil || days < 0 || days > 3660 {
			return 0, fmt.Errorf("duration %.32q: write it as 90s, 5m, 1h30m or 7d", s)
		}
		return time.Duration(days) * 24 * time.Hour, nil
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("duration %.32q: write it as 90s, 5m, 1h30m or 7d", s)
	}
	return t, nil
}

// Clause picks events: those of the types or families On for which When holds.
type Clause struct {
	// On are exact types ("node.left") or families ("node.*").
	On []string `json:"on"`
	// When is a CEL condition over event and operation; empty holds always.
	When string `json:"when,omitempty"`
}

// Absence says that a match must be followed by another event of its group.
type Absence struct {
	Expect Clause `json:"expect"`
	// Within is how long after the match; the rule's condition holds when it is
	// over, and until the event comes.
	Within Duration `json:"within"`
}

// While narrows a rule's condition to the time in which something of its group
// is under way.
type While struct {
	Begin Clause `json:"begin"`
	End   Clause `json:"end"`
	// Each tells one thing that is under way from another; CEL giving a string.
	Each string `json:"each"`
}

// Flap says when an alert counts as flapping: after so many changes between
// firing and not within the window. Until it has been steady for as long, it
// stays and is told no more.
type Flap struct {
	Changes int      `json:"changes"`
	Window  Duration `json:"window"`
}

// Inhibitor says that alerts of another rule of the same stream keep this rule's
// from being told, where their groups have the keys Equal in common.
type Inhibitor struct {
	Rule  string   `json:"rule"`
	Equal []string `json:"equal,omitempty"`
}

// Rule is an alert rule as people write it. All windows lie within one stream,
// a cluster's or the plane's: that is what has an order.
type Rule struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Summary     string            `json:"summary,omitempty"` // "{node}" stands for a key of the group, "{subject}" for the subject's name
	Runbook     string            `json:"runbook,omitempty"`
	Severity    string            `json:"severity,omitempty" enum:"info,warning,error,critical" doc:"warning when absent"`
	Labels      map[string]string `json:"labels,omitempty"`
	Enabled     *bool             `json:"enabled,omitempty"` // nil: true
	// Clusters are those whose streams the rule looks at, by id; "plane" is the
	// plane's. Empty: all.
	Clusters []string `json:"clusters,omitempty"`

	On   []string `json:"on"`
	When string   `json:"when,omitempty"`
	// GroupBy names the keys that tell one alert of the rule from another; each
	// is CEL giving a string.
	GroupBy map[string]string `json:"group_by,omitempty"`
	// Count within Window is how many matches make the condition hold; 1 when 0.
	Count  int      `json:"count,omitempty" minimum:"1"`
	Window Duration `json:"window,omitempty"`
	// Distinct counts values instead of events; CEL giving a string.
	Distinct string   `json:"distinct,omitempty"`
	Absence  *Absence `json:"absence,omitempty"`
	While    *While   `json:"while,omitempty"`
	// For is how long the condition must hold before the alert fires.
	For Duration `json:"for,omitempty"`
	// ResolveWhen ends the condition; so does a time of ResolveAfter without a
	// match.
	ResolveWhen  *Clause  `json:"resolve_when,omitempty"`
	ResolveAfter Duration `json:"resolve_after,omitempty"`
	// KeepFiringFor is how long the alert outlives the condition.
	KeepFiringFor Duration    `json:"keep_firing_for,omitempty"`
	Flap          *Flap       `json:"flap,omitempty"`
	InhibitedBy   []Inhibitor `json:"inhibited_by,omitempty"`
	OnChange      string      `json:"on_change,omitempty" enum:"resolve,keep" doc:"What becomes of open alerts when the rule changes; resolve when absent"`
}

// IsEnabled tells whether the rule is judged.
func (r *Rule) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }

// count is Count with its default.
func (r *Rule) count() int { return max(r.Count, 1) }

// quiet is the time without a match after which the condition ends.
func (r *Rule) quiet() time.Duration {
	switch {
	case r.ResolveAfter > 0:
		return r.ResolveAfter.D()
	case r.ResolveWhen != nil || r.Absence != nil:
		return LongestQuiet
	}
	return max(DefaultQuiet, r.Window.D())
}
