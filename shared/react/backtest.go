package react

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// Bounds of a backtest.
const (
	MaxBacktestAlerts = 500
	backtestBatch     = 1000
	keptErrors        = 5
	// InhibitorsBefore is how long before Since what inhibits the rule is judged, as an
	// alert that began then may go on.
	InhibitorsBefore = 24 * time.Hour
)

// Backtest says what to judge again.
type Backtest struct {
	Rule alert.Rule
	// Streams to judge: clusters' ids and "plane". nil: all.
	Streams []string
	// Sees tells whether a stored rule may be known to who asks; the others are as if
	// they were not there. nil: each.
	Sees func(Rule) bool
	// Since and Until bound when events were received; a zero Until is now.
	Since, Until time.Time
}

// Backtested is what a rule would have done.
type Backtested struct {
	// Alerts would have fired, or are pending at the end, each as it stands then, with
	// its evidence and history; the first MaxBacktestAlerts, in the order in which they
	// began.
	Alerts []alert.Alert `json:"alerts"`
	// More: there were more alerts than are listed.
	More bool `json:"more,omitempty"`
	// Complete: all events were judged; else the call's time was up, and those that
	// were received before Through were judged, of all streams.
	Complete bool      `json:"complete"`
	Through  time.Time `json:"through"`
	Judged   int64     `json:"judged"` // events
	Matched  int64     `json:"matched"`
	Errors   int64     `json:"errors"` // expressions that could not be evaluated
	// DetailsExpired are the judged events whose detail the rule reads, and retention has
	// taken: to the rule they have none.
	DetailsExpired int64 `json:"details_expired" doc:"Judged events whose detail the rule reads, and retention has taken: to the rule it is empty"`
	// EventsFrom are the streams, of those that were judged, in which there is nothing
	// from Since on but later.
	EventsFrom []EventsFrom `json:"events_from,omitempty" doc:"Of the streams judged, those whose events begin after since"`
	// FirstErrors are the first of them, at most keptErrors.
	FirstErrors []alert.Failure `json:"first_errors,omitempty"`
	Folded      int64           `json:"folded"` // groups over the limit
	// Cost is in CEL's units, Nanoseconds what judging took, reading apart, and the
	// inhibitors included.
	Cost        int64 `json:"cost"`
	Nanoseconds int64 `json:"nanoseconds"`
	// Inhibitors are the names of the stored rules that were judged beside the rule, for
	// it names them in inhibited_by. What they took is in InhibitorCost, and in no other
	// count.
	Inhibitors    []string `json:"inhibitors,omitempty"`
	InhibitorCost int64    `json:"inhibitor_cost,omitempty"`
}

// EventsFrom is where a stream's events begin.
type EventsFrom struct {
	Stream  string    `json:"stream"`
	At      time.Time `json:"at" doc:"When the first that is left was received; where none is, when the last that was taken was"`
	Expired bool      `json:"expired" doc:"There were earlier ones, and retention has taken them"`
}

// Backtest judges the stored events by one rule, as if it had been in force then, and
// by the stored rules that inhibit it, from InhibitorsBefore Since on, whose alerts are not listed. A stored rule of
// its name is not judged. Nothing is kept or told. It ends early when ctx has little
// time left. Errors: alert.Faults, for whatever saving the rule is refused for.
func (s *Service) Backtest(ctx context.Context, b Backtest) (Backtested, error) {
	var out Backtested
	b.Rule.Enabled = nil
	all, err := loadRules(ctx, s.Store)
	if err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the time is up: that is told below
		return out, err
	}
	if b.Sees != nil {
		all = slices.DeleteFunc(all, func(r Rule) bool { return !b.Sees(r) })
	}
	rules, err := tested(all, b.Rule, err == nil)
	if err != nil {
		return out, err
	}
	c := rules[0]
	for _, r := range rules[1:] {
		out.Inhibitors = append(out.Inhibitors, r.Rule.Name)
	}
	if b.Until.IsZero() || b.Until.After(s.now()) {
		b.Until = s.now()
	}
	if !b.Since.Before(b.Until) {
		return out, alert.Faults{{Pointer: "/since", Code: alert.CodeRange, Detail: "must be before until"}}
	}
	if b.Streams == nil {
		if b.Streams, err = event.Streams(ctx, s.Store); err != nil {
			return out, err
		}
	}
	streams := slices.DeleteFunc(slices.Clone(b.Streams), func(s string) bool { return !c.Covers(s) })
	set, before := alert.NewSet(rules, nil), alert.NewSet(rules[1:], nil)
	out.Complete, out.Through, out.Alerts = true, b.Until, []alert.Alert{}
	for i, stream := range streams {
		one := Backtested{Complete: true, Through: b.Until}
		err := s.backtest(ctx, before, set, c.ID, stream, &b, &one)
		if err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return out, err
		}
		out.add(&one)
		if err == nil && one.Complete {
			continue
		}
		out.Complete, out.Through = false, one.Through
		if err != nil || i < len(streams)-1 || out.Through.Before(b.Since) { // nothing is known of the others
			out.Through = b.Since
		}
		break
	}
	return out, nil
}

// tested are the rule, ready, and behind it those that inhibit it: what inhibits
// these changes nothing for it, for an alert inhibits others whether it is told or
// not. The rule stands for a stored one of its name, and is refused as it would be if
// it were saved in its place, where the others were read.
func tested(all []Rule, r alert.Rule, read bool) ([]*alert.Compiled, error) {
	ruleID, version := alert.ShippedID(r.Name), int64(1)
	if i := slices.IndexFunc(all, func(x Rule) bool { return x.Rule.Name == r.Name }); i >= 0 {
		ruleID, version = all[i].ID, all[i].Version
	}
	if read {
		if err := check(all, &r, ruleID); err != nil {
			return nil, err
		}
	}
	c, err := alert.CompileMetered(r, ruleID, version)
	if err != nil {
		return nil, err
	}
	out := []*alert.Compiled{c}
	for i := range all {
		x := &all[i]
		names := func(in alert.Inhibitor) bool { return in.Rule == x.Rule.Name }
		if x.ID == ruleID || !x.Rule.IsEnabled() || !slices.ContainsFunc(r.InhibitedBy, names) {
			continue
		}
		if by, err := alert.CompileMetered(x.Rule, x.ID, x.Version); err == nil { // what cannot be used inhibits nothing
			out = append(out, by)
		}
	}
	return out, nil
}

// add adds what one stream came to. Of the alerts of both the first are kept.
func (b *Backtested) add(o *Backtested) {
	b.Judged += o.Judged
	b.Matched += o.Matched
	b.Errors += o.Errors
	b.DetailsExpired += o.DetailsExpired
	b.EventsFrom = append(b.EventsFrom, o.EventsFrom...)
	b.FirstErrors = append(b.FirstErrors, o.FirstErrors[:min(len(o.FirstErrors), keptErrors-len(b.FirstErrors))]...)
	b.Folded += o.Folded
	b.Cost += o.Cost
	b.InhibitorCost += o.InhibitorCost
	b.Nanoseconds += o.Nanoseconds
	b.Alerts = append(b.Alerts, o.Alerts...)
	slices.SortStableFunc(b.Alerts, func(x, y alert.Alert) int { return x.Since.Compare(y.Since) })
	b.More = b.More || o.More || len(b.Alerts) > MaxBacktestAlerts
	b.Alerts = b.Alerts[:min(len(b.Alerts), MaxBacktestAlerts)]
}

// backtest judges one stream, until Since by the set before; only the alerts of the
// rule of the id are listed.
func (s *Service) backtest(ctx context.Context, before, set *alert.Set, ruleID, stream string, b *Backtest, out *Backtested) error {
	first := b.Since
	if len(before.Rules()) > 0 {
		first = first.Add(-InhibitorsBefore)
	}
	from, err := event.FirstAt(ctx, s.Store.Ledger, stream, first)
	if err != nil {
		return err
	}
	until, gone, err := s.ends(ctx, stream, b.Until)
	if err != nil {
		return err
	}
	st := alert.NewStream(stream, before, alert.Position{Next: from}, nil)
	st.Only = ruleID
	never, begun := func() bool { return false }, false
	begin := func() { // what was judged before counts for nothing
		if !begun {
			st.Tick(b.Since, never)
			st.SetRules(set, "", b.Since, never)
			st.Meter, begun = alert.Meter{Keep: keptErrors}, true
		}
	}
	found := collected{rule: ruleID, last: map[string]alert.Alert{}}
	defer func() {
		begin()
		m := st.Meter
		out.FirstErrors = m.First
		out.Judged, out.Matched, out.Errors, out.Folded, out.Cost = m.Judged, m.Matched, m.Errors, m.Folded, m.Cost
		out.InhibitorCost, out.DetailsExpired = st.Beside.Cost, m.Expired
		out.Alerts, out.More = found.alerts(st)
	}()
	deadline, bounded := ctx.Deadline()
	opens := true // what is read next is the first that is there
	truly := b.Since
	for done := false; !done; {
		events, head, err := event.ReadStream(ctx, s.Store.Ledger, stream, st.Position.Next, backtestBatch)
		var expired *event.ExpiredError
		if errors.As(err, &expired) { // retention passes by
			st.Position.Next, opens = expired.Streams[stream], true
			continue
		}
		if err != nil {
			return err
		}
		if opens && st.Position.Next == head.Low {
			out.EventsFrom = eventsFrom(stream, events, head, b.Since)
		}
		opens = false
		began := time.Now()
		if done = len(events) == 0; done {
			begin()
			st.Tick(until, never)
		}
		specs, err := s.backtestSpecs(ctx, set, events)
		if err != nil {
			return err
		}
		for i := range events {
			e := &events[i]
			truly = head.Truly(e)
			if !truly.Before(b.Since) {
				begin()
			}
			if !truly.Before(until) {
				st.Tick(until, never)
				done = true
				break
			}
			var spec *operation.Spec
			if sp, ok := specs[e.OperationID]; ok {
				spec = &sp
			}
			st.Judge(alert.NewVars(e, spec), never)
		}
		if done && gone {
			st.SetRules(deleted, "", until, never)
		}
		out.Nanoseconds += time.Since(began).Nanoseconds()
		found.take(st.Take().Told)
		if err := st.Err(); err != nil {
			return err
		}
		if !done && bounded && time.Until(deadline) < time.Second {
			out.Complete, out.Through = false, truly.Truncate(time.Millisecond).UTC()
			break
		}
	}
	return nil
}

// eventsFrom is where the events begin of a stream that was read from its first on,
// where that is later than since.
func eventsFrom(stream string, events []event.Event, head event.Head, since time.Time) []EventsFrom {
	x := EventsFrom{Stream: stream, Expired: head.Low > 1}
	switch {
	case len(events) > 0:
		x.At = head.Truly(&events[0]).UTC()
	case x.Expired:
		x.At = time.UnixMilli(head.At).UTC()
	}
	if !x.At.After(since) {
		return nil
	}
	return []EventsFrom{x}
}

// ends is until when a stream is judged: that of a deleted cluster until its deletion,
// with which its alerts end (gone).
func (s *Service) ends(ctx context.Context, stream string, until time.Time) (end time.Time, gone bool, err error) {
	at, err := s.Store.FormerAt(ctx, stream)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return until, false, nil
	case err != nil:
		return until, false, fmt.Errorf("read when cluster %s was deleted: %w", stream, err)
	case at.After(until):
		return until, false, nil
	case at.IsZero():
		return until, true, nil
	}
	return at, true, nil
}

func (s *Service) backtestSpecs(ctx context.Context, set *alert.Set, events []event.Event) (map[string]operation.Spec, error) {
	r := &Reactor{Store: s.Store}
	return r.specs(ctx, set, events)
}

// collected are a rule's alerts that fired, or are pending, as of their last
// transitions; of those that fired the first.
type collected struct {
	rule  string
	fired []string // ids, in the order in which they fired
	more  bool
	last  map[string]alert.Alert
}

func (c *collected) take(told []alert.Transition) {
	for _, t := range told {
		a := t.Alert
		if a.ID == "" || a.RuleID != c.rule {
			continue
		}
		was, known := c.last[a.ID]
		if known && a.Rule == "" { // it ended with its cluster
			callAs(&a, &was)
		}
		fires := a.FiredAt != nil && (!known || was.FiredAt == nil)
		switch {
		case a.FiredAt == nil && a.State == alert.Resolved: // it was withdrawn
			delete(c.last, a.ID)
		case !fires && (known || a.FiredAt == nil):
			c.last[a.ID] = a
		case len(c.fired) == MaxBacktestAlerts:
			delete(c.last, a.ID)
			c.more = true
		default:
			c.fired = append(c.fired, a.ID)
			c.last[a.ID] = a
		}
	}
}

// alerts are those that fired, and those that are pending, as they stand: what
// changes without a transition is in their groups. more: they are not all.
func (c *collected) alerts(st *alert.Stream) (out []alert.Alert, more bool) {
	open := st.Open()
	add := func(a alert.Alert) {
		if g := open[a.ID]; g != nil {
			g.Refresh(&a)
		}
		out = append(out, a)
	}
	for _, id := range c.fired {
		add(c.last[id])
		delete(c.last, id)
	}
	for _, a := range c.last {
		add(a)
	}
	slices.SortStableFunc(out, func(x, y alert.Alert) int {
		return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.ID, y.ID))
	})
	return out[:min(len(out), MaxBacktestAlerts)], c.more || len(out) > MaxBacktestAlerts
}
