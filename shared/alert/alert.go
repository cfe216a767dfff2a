package alert

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// State is where an alert stands.
type State string

// The states of an alert.
const (
	// Pending: the condition holds, but not for as long as the rule wants. It
	// leaves by time (firing) or when the condition ends (resolved, withdrawn).
	Pending State = "pending"
	// Firing: told. It leaves when the condition has ended (resolved).
	Firing State = "firing"
	// Resolved: over. Nothing leaves it; should the condition hold again, that is
	// another alert.
	Resolved State = "resolved"
)

// States lists the states.
var States = []State{Pending, Firing, Resolved}

// Reasons of transitions.
const (
	ReasonHolds     = "condition_holds"
	ReasonEnded     = "condition_ended" // by resolve_when, or by what was missing
	ReasonQuiet     = "quiet"           // nothing matched for so long
	ReasonWithdrawn = "withdrawn"       // it did not hold for as long as the rule wants
	ReasonFlapping  = "flapping"
	ReasonSteady    = "steady"          // it flaps no more
	ReasonInhibited = "inhibited"       // an alert that keeps it from being told began to fire
	ReasonUnmuted   = "inhibition_over" // what inhibited it is resolved
	ReasonSilenced  = "silenced"
	ReasonUnsilence = "silence_over"
	ReasonChanged   = "rule_changed"  // it ended for it, or is shown otherwise
	ReasonRegrouped = "group_changed" // its rule groups by something else now
	ReasonScope     = "out_of_scope"  // its rule looks at the cluster no more
	ReasonDisabled  = "rule_disabled"
	ReasonDeleted   = "rule_deleted"
	ReasonCluster   = "cluster_deleted"
	// ReasonAcked is of a line of the history alone: a person took it on.
	ReasonAcked = "acknowledged"
)

// Evidence is an event by which an alert came about.
type Evidence struct {
	Event    string    `json:"event"`
	Type     string    `json:"type"`
	Sequence int64     `json:"sequence"`
	At       time.Time `json:"at"` // when it happened
}

// keptEvidence is how many of the first and of the last events are kept.
const keptEvidence = 5

// Ack is that a person took an alert on.
type Ack struct {
	By   operation.Actor `json:"by"`
	At   time.Time       `json:"at"`
	Note string          `json:"note,omitempty"`
}

// Alert is what a rule derived from a stream.
type Alert struct {
	ID          string            `json:"id"`
	Rule        string            `json:"rule"`
	RuleID      string            `json:"rule_id"`
	RuleVersion int64             `json:"rule_version"`
	Cluster     string            `json:"cluster,omitempty"` // empty: the plane
	Stream      string            `json:"stream"`
	Group       map[string]string `json:"group"`
	// Folded: it stands for all groups over the limit.
	Folded   bool              `json:"folded,omitempty"`
	State    State             `json:"state"`
	Severity string            `json:"severity"`
	Labels   map[string]string `json:"labels,omitempty"`
	Summary  string            `json:"summary,omitempty"`
	Runbook  string            `json:"runbook,omitempty"`
	// Since is when the condition began to hold, by the plane's clock.
	Since      time.Time  `json:"since"`
	FiredAt    *time.Time `json:"fired_at,omitempty"`
	ResolvedAt *time.Time `json:"resolved_at,omitempty"`
	// Reason is that of the last transition.
	Reason string    `json:"reason"`
	Last   time.Time `json:"last"`  // when the last match was received
	Count  int64     `json:"count"` // matches
	// Evidence has the first events and the last ones.
	Evidence []Evidence `json:"evidence"`
	Flapping bool       `json:"flapping,omitempty"`
	// InhibitedBy is the alert that keeps this one from being told, SilencedBy
	// the silence.
	InhibitedBy string `json:"inhibited_by,omitempty"`
	SilencedBy  string `json:"silenced_by,omitempty"`
	Acked       *Ack   `json:"acknowledged,omitempty"`
	// Subject and Operation are those of the event that set it off, LastSubject and
	// LastOperation those of the last match.
	Subject   event.Subject `json:"subject"`
	Operation string        `json:"operation,omitempty"`
	// Node is the name of the node that that event happened on, NodeUID its identity in
	// its cluster, where the event tells them.
	Node          string        `json:"node,omitempty"`
	NodeUID       string        `json:"node_uid,omitempty"`
	LastSubject   event.Subject `json:"last_subject"`
	LastOperation string        `json:"last_operation,omitempty"`
	History       []Step        `json:"history"`
	// GroupKey is the item that has what changes while the alert is open.
	GroupKey string `json:"group_key"`
}

// Step is a line of an alert's history.
type Step struct {
	At     time.Time `json:"at"`
	State  State     `json:"state"`
	Reason string    `json:"reason"`
	// By and Note are those of ReasonAcked.
	By   *operation.Actor `json:"by,omitempty"`
	Note string           `json:"note,omitempty"`
}

// keptHistory bounds an alert's history: the first line and the last ones.
const keptHistory = 30

// bytes is about what the alert takes when it is kept.
func (a *Alert) bytes() int {
	n := 2000 + len(a.Summary) + len(a.Runbook) + len(a.Evidence)*220 + len(a.History)*100
	for k, v := range a.Labels {
		n += len(k) + len(v) + 8
	}
	for k, v := range a.Group {
		n += len(k) + len(v) + 8
	}
	return n
}

// Muted tells whether someone said that the alert should not be told.
func (a *Alert) Muted() bool { return a.SilencedBy != "" || a.InhibitedBy != "" }

// Transition is a change of an alert that is told.
type Transition struct {
	// Kind is the type of its event: event.TypeAlert...
	Kind  string
	At    time.Time
	Alert Alert // as it is afterwards
	// N counts the alert's transitions: with its id it tells one from another.
	N int64
	// Happened is when the event that caused it happened, zero for a timer's.
	Happened time.Time
	// Silence is the one that a TypeSilenced or TypeUnsilenced is about.
	Silence string
}

// Detail is what the transition's event says: the alert, and the silence that it
// is about; that groups are folded is about no alert.
func (t *Transition) Detail() any {
	if a := &t.Alert; t.Kind == TypeFolded {
		return event.GroupsFoldedDetail{Rule: a.Rule, RuleID: a.RuleID, RuleVersion: a.RuleVersion, Cluster: a.Cluster, Stream: a.Stream, Group: a.Group, Groups: a.Count}
	}
	if t.Silence == "" {
		return &t.Alert
	}
	return struct {
		*Alert
		Silence string `json:"silence"`
	}{&t.Alert, t.Silence}
}

// Types of the events of alerts.
const (
	TypePending  = "alert.pending"
	TypeFiring   = "alert.firing"
	TypeFlapping = "alert.flapping"
	TypeResolved = "alert.resolved"
	TypeFolded   = "alert.groups_folded"
	// TypeSilenced and TypeUnsilenced: a silence began for an alert that fires, or
	// is in force no more. The latter is followed by a TypeFiring, or TypeFlapping.
	TypeSilenced   = "alert.silenced"
	TypeUnsilenced = "alert.unsilenced"
	// TypeInhibited: an alert that keeps this one from being told began to fire after
	// it, or is another one now. When it is over a TypeFiring follows, or TypeFlapping.
	TypeInhibited = "alert.inhibited"
)

// summary fills a rule's summary in: "{subject}" is the name of what the last
// match was about, "{detail.KEY}" is of its detail; what is not known is said so. It is
// one line.
func summary(text string, group map[string]string, subject string, details map[string]string) string {
	text = strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", " ")
	if !strings.Contains(text, "{") {
		return text
	}
	known := func(v string) string { return cmp.Or(visible(v), "(unknown)") }
	pairs := make([]string, 0, 2*len(group)+2)
	for _, k := range slices.Sorted(maps.Keys(group)) {
		pairs = append(pairs, "{"+k+"}", known(group[k]))
	}
	for _, k := range detailsOf(text) {
		pairs = append(pairs, "{"+detailPrefix+k+"}", known(details[k]))
	}
	return strings.NewReplacer(append(pairs, "{subject}", known(subject))...).Replace(text)
}

// visible writes out what would break a line, or have it read otherwise than it is
// stored: control characters, separators of lines and overrides of the direction.
func visible(s string) string {
	var out strings.Builder
	for _, r := range s {
		if clean := r == utf8.RuneError || r != '\t' && r != '\n' && operation.CleanText(string(r)); clean {
			out.WriteRune(r)
		} else {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return out.String()
}
