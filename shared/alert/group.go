package alert

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sort"
	"strconv"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
)

// Group is the state of one rule for one group of one stream: all that the
// events so far mean for those to come. Times are Unix milliseconds: At of a
// sample is event time, all others are the stream's clock.
type Group struct {
	Rule   string   `json:"r"` // id
	Digest string   `json:"d"`
	Values []string `json:"v,omitempty"` // of the rule's keys, in their order
	// Other: it stands for all groups over the limit.
	Other bool `json:"other,omitempty"`
	// Seq is the last event that it was judged by: one that comes again is passed
	// over.
	Seq     int64 `json:"seq"`
	Touched int64 `json:"touched"`

	// The condition.
	Samples    []sample `json:"s,omitempty"` // by time
	Newest     int64    `json:"newest,omitempty"`
	Last       int64    `json:"last,omitempty"` // match
	Active     bool     `json:"active,omitempty"`
	ArmedUntil int64    `json:"armed,omitempty"` // of an absence
	ArmedSeq   int64    `json:"armed_seq,omitempty"`
	ArmedAt    int64    `json:"armed_at,omitempty"`
	Open       []string `json:"open,omitempty"` // of a while

	// What the condition says, before flapping is taken out.
	Raw       State   `json:"raw,omitempty"` // "", Pending or Firing
	PendingAt int64   `json:"pending_at,omitempty"`
	ClearAt   int64   `json:"clear_at,omitempty"` // when it is over, in keep_firing_for
	CauseSeq  int64   `json:"cause,omitempty"`    // the event by which it began to hold
	CauseAt   int64   `json:"cause_at,omitempty"` // when that happened
	Changes   []int64 `json:"changes,omitempty"`

	// What is told.
	Alert     *open  `json:"alert,omitempty"`
	Flapping  bool   `json:"flapping,omitempty"`
	MuteUntil int64  `json:"mute_until,omitempty"` // when its silences are looked at again
	Count     int64  `json:"count,omitempty"`
	Evidence  []seen `json:"evidence,omitempty"`

	// Subject and Operation are those of the last match, Cause has those of the event
	// CauseSeq.
	Subject   event.Subject `json:"subject,omitzero"`
	Operation string        `json:"op,omitempty"`
	Cause     about         `json:"cause_of,omitzero"`
	// Details are what the rule's summary shows of the last match's detail.
	Details map[string]string `json:"details,omitempty"`

	key    groupKey
	hash   string
	heap   int   // its place among the timers; -1: none
	idle   bool  // these are the stream's idle ones
	weight int   // bytes, when it was changed last
	due    int64 // its next timer; 0: none
}

// open is an alert that is not resolved.
type open struct {
	ID          string `json:"id"`
	State       State  `json:"state"`
	Since       int64  `json:"since"`
	FiredAt     int64  `json:"fired,omitempty"`
	N           int64  `json:"n"`
	Reason      string `json:"reason"`
	SilencedBy  string `json:"silenced,omitempty"`
	InhibitedBy string `json:"inhibited,omitempty"`
	History     []Step `json:"history,omitempty"`
	Cause       about  `json:"cause,omitzero"`
	Face        *face  `json:"face,omitempty"`
}

// sample is a match, or several at one time, or a value that was last seen then.
type sample struct {
	At int64  `json:"t"`
	N  int    `json:"n,omitempty"`
	V  string `json:"v,omitempty"`
}

// seen is Evidence as it is kept: it is written at each match.
type seen struct {
	Event string `json:"e"`
	Type  string `json:"y"`
	Seq   int64  `json:"q"`
	At    int64  `json:"t"`
	// Happened is when it happened, where that is not At: windows go by At.
	Happened int64 `json:"h,omitempty"`
}

// groupKey tells groups of a stream apart.
type groupKey struct{ rule, values string }

func keyOf(rule string, values []string, other bool) groupKey {
	if other {
		return groupKey{rule, "other"} // no joined values look like that
	}
	var b []byte
	for _, v := range values {
		b = append(strconv.AppendInt(b, int64(len(v)), 10), ':')
		b = append(b, v...)
	}
	return groupKey{rule, string(b)}
}

// Hash names the group among those of its rule.
func (g *Group) Hash() string {
	if g.hash == "" {
		h := sha256.Sum256([]byte(g.key.values))
		g.hash = hex.EncodeToString(h[:12])
	}
	return g.hash
}

// bytes is about what the group takes when it is kept.
func (g *Group) bytes() int {
	n := 1500 + len(g.Evidence)*200 + len(g.Samples)*80 + len(g.Changes)*16
	for _, v := range g.Values {
		n += len(v)
	}
	for _, v := range g.Open {
		n += len(v) + 4
	}
	for k, v := range g.Details {
		n += len(k) + len(v) + 8
	}
	if g.Alert != nil {
		n += len(g.Alert.History) * 100
		if g.Alert.Face != nil {
			n += g.Alert.Face.bytes()
		}
	}
	return n
}

// input is an event as a group sees it.
type input struct {
	seq   int64
	at    int64 // event time
	clock int64 // the stream's
	is    roles
	value string // of distinct
	each  string // of a while
	shows map[string]string
	e     *event.Event
	v     *Vars // of e
}

// apply takes an event. The effects are those that it has on the alert.
func (g *Group) apply(c *Compiled, in *input) []effect {
	g.Seq, g.Touched = in.seq, in.clock
	x := &step{g: g, c: c, clock: in.clock, seq: in.seq, happened: in.e.Timestamp.UnixMilli(), in: in, why: ReasonEnded}
	if in.is&roleExpect != 0 {
		g.ArmedUntil = 0
		g.clear()
	}
	if in.is&roleResolve != 0 {
		g.clear()
	}
	if in.is&roleEnd != 0 {
		g.Open = slices.DeleteFunc(g.Open, func(s string) bool { return s == in.each })
	}
	if in.is&roleBegin != 0 {
		g.begin(in)
	}
	if in.is&roleMatch != 0 {
		g.match(c, in)
	}
	x.settle()
	return x.effects
}

// clear ends the condition; what counted for it counts no more.
func (g *Group) clear() {
	g.Active, g.Samples, g.Newest = false, nil, 0
}

// maxOpen bounds what is under way at once in a group; what is beyond is as if
// it were not.
const maxOpen = 64

func (g *Group) begin(in *input) {
	if slices.Contains(g.Open, in.each) || len(g.Open) == maxOpen {
		return
	}
	g.Open = append(g.Open, in.each)
	if g.Active && g.Alert == nil {
		g.note(in)
	}
}

// match takes an event that matches the rule.
func (g *Group) match(c *Compiled, in *input) {
	g.Last = in.clock
	if a := c.Rule.Absence; a != nil {
		if g.Other { // one's event is no answer to what another waits for
			return
		}
		if !g.Active && g.ArmedUntil == 0 {
			g.fresh()
			g.Cause = in.about()
			g.ArmedUntil, g.ArmedSeq, g.ArmedAt = in.clock+a.Within.ms(), in.seq, in.e.Timestamp.UnixMilli()
		}
		g.note(in)
		return
	}
	if !g.Active && len(g.Samples) == 0 {
		g.fresh()
	}
	g.note(in)
	window := c.Rule.Window.ms()
	if window == 0 {
		g.Active = true
		return
	}
	g.Newest = max(g.Newest, in.at)
	g.sample(c, in, window)
	if c.Rule.Distinct == "" && !g.Active {
		g.Count = 0
		for _, s := range g.Samples {
			g.Count += int64(s.N)
		}
	}
	held := int64(len(g.Samples))
	if c.Rule.Distinct == "" {
		held = 0
		for _, s := range g.Samples {
			held += int64(s.N)
		}
	}
	if held >= int64(c.Rule.count()) {
		g.Active = true
	}
	if !g.Active {
		g.Evidence = slices.DeleteFunc(g.Evidence, func(e seen) bool { return e.At <= g.Newest-window })
	}
}

// exactCount is up to which count times are kept as they are; above it they are
// rounded up to a thousandth of the window.
const exactCount = 1000

// sample counts a match in: the count latest are kept, for whether they all lie
// within the window is what matters.
func (g *Group) sample(c *Compiled, in *input, window int64) {
	most := c.Rule.count()
	s := sample{At: in.at, N: 1}
	if most > exactCount {
		grain := max(window/exactCount, 1)
		s.At = (s.At + grain - 1) / grain * grain
	}
	if c.Rule.Distinct != "" {
		s = sample{At: in.at, V: in.value}
		if i := slices.IndexFunc(g.Samples, func(o sample) bool { return o.V == s.V }); i >= 0 {
			s.At = max(s.At, g.Samples[i].At)
			g.Samples = slices.Delete(g.Samples, i, i+1)
		}
	}
	i := sort.Search(len(g.Samples), func(i int) bool { return g.Samples[i].At > s.At })
	if i > 0 && c.Rule.Distinct == "" && g.Samples[i-1].At == s.At {
		g.Samples[i-1].N++
	} else {
		g.Samples = slices.Insert(g.Samples, i, s)
	}
	n, from := 0, len(g.Samples)
	for from > 0 && g.Samples[from-1].At > g.Newest-window && n < most {
		from--
		n += max(g.Samples[from].N, 1)
	}
	g.Samples = slices.Delete(g.Samples, 0, from)
}

// fresh forgets the evidence of what went before, unless an alert is open.
func (g *Group) fresh() {
	if g.Alert == nil {
		g.Count, g.Evidence = 0, nil
	}
}

// note keeps the event as evidence: the first ones and the last ones.
func (g *Group) note(in *input) {
	g.Count++
	g.Subject, g.Operation, g.Details = in.e.Subject, in.e.OperationID, in.shows
	if len(g.Evidence) == 2*keptEvidence {
		g.Evidence = slices.Delete(g.Evidence, keptEvidence, keptEvidence+1)
	}
	x := seen{Event: in.e.ID, Type: in.e.Type, Seq: in.seq, At: in.at}
	if h := in.e.Happened().UnixMilli(); h != x.At {
		x.Happened = h
	}
	g.Evidence = append(g.Evidence, x)
}

// alertID derives the id of the alert that the event began.
func (g *Group) alertID(c *Compiled, stream string) string {
	return id.Derive(id.Alert, g.Rule, c.Digest, stream, g.key.values, strconv.FormatInt(g.CauseSeq, 10))
}
