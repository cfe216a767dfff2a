package react

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// Bounds of a backtest.
const (
	MaxBacktestAlerts = 500
	backtestBatch     = 1000
	keptErrors        = 5
)

// Backtest says what to judge again.
type Backtest struct {
	Rule alert.Rule
	// Streams to judge: clusters' ids and "plane". nil: all.
	Streams []string
	// Since and Until bound when events were received; a zero Until is now.
	Since, Until time.Time
}

// Backtested is what a rule would have done.
type Backtested struct {
	// Alerts would have fired, each as it stood at the end, with its evidence and
	// history; the first MaxBacktestAlerts, in the order in which they began.
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
	// FirstErrors are the first of them, at most keptErrors.
	FirstErrors []alert.Failure `json:"first_errors,omitempty"`
	Folded      int64           `json:"folded"` // groups over the limit
	// Cost is in CEL's units, Nanoseconds what judging took, reading apart.
	Cost        int64 `json:"cost"`
	Nanoseconds int64 `json:"nanoseconds"`
}

// Backtest judges the stored events by one rule, as if it had been in force then.
// Nothing is kept or told. It ends early when ctx has little time left. Errors:
// alert.Faults.
func (s *Service) Backtest(ctx context.Context, b Backtest) (Backtested, error) {
	var out Backtested
	b.Rule.Enabled = nil
	c, err := alert.CompileMetered(b.Rule, alert.ShippedID(b.Rule.Name), 1)
	if err != nil {
		return out, err
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
	set := alert.NewSet([]*alert.Compiled{c}, nil)
	out.Complete, out.Through, out.Alerts = true, b.Until, []alert.Alert{}
	for i, stream := range streams {
		one := Backtested{Complete: true, Through: b.Until}
		err := s.backtest(ctx, set, stream, &b, &one)
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

// add adds what one stream came to. Of the alerts of both the first are kept.
func (b *Backtested) add(o *Backtested) {
	b.Judged += o.Judged
	b.Matched += o.Matched
	b.Errors += o.Errors
	b.FirstErrors = append(b.FirstErrors, o.FirstErrors[:min(len(o.FirstErrors), keptErrors-len(b.FirstErrors))]...)
	b.Folded += o.Folded
	b.Cost += o.Cost
	b.Nanoseconds += o.Nanoseconds
	b.Alerts = append(b.Alerts, o.Alerts...)
	slices.SortStableFunc(b.Alerts, func(x, y alert.Alert) int { return x.Since.Compare(y.Since) })
	b.More = b.More || o.More || len(b.Alerts) > MaxBacktestAlerts
	b.Alerts = b.Alerts[:min(len(b.Alerts), MaxBacktestAlerts)]
}

// backtest judges one stream.
func (s *Service) backtest(ctx context.Context, set *alert.Set, stream string, b *Backtest, out *Backtested) error {
	from, err := event.FirstAt(ctx, s.Store.Ledger, stream, b.Since)
	if err != nil {
		return err
	}
	st := alert.NewStream(stream, set, alert.Position{Next: from}, nil)
	st.Meter.Keep = keptErrors
	never := func() bool { return false }
	defer func() {
		m := st.Meter
		out.FirstErrors = m.First
		out.Judged, out.Matched, out.Errors, out.Folded, out.Cost = m.Judged, m.Matched, m.Errors, m.Folded, m.Cost
	}()
	place := map[string]int{}
	deadline, bounded := ctx.Deadline()
	for done := false; !done; {
		events, _, err := event.ReadStream(ctx, s.Store.Ledger, stream, st.Position.Next, backtestBatch)
		var expired *event.ExpiredError
		if errors.As(err, &expired) { // retention passes by
			st.Position.Next = expired.Streams[stream]
			continue
		}
		if err != nil {
			return err
		}
		began := time.Now()
		if done = len(events) == 0; done {
			st.Tick(b.Until, never)
		}
		specs, err := s.backtestSpecs(ctx, set, events)
		if err != nil {
			return err
		}
		for i := range events {
			e := &events[i]
			if e.ReceivedAt.Before(b.Since) {
				st.Pass(e)
				continue
			}
			if !e.ReceivedAt.Before(b.Until) {
				st.Tick(b.Until, never)
				done = true
				break
			}
			var spec *operation.Spec
			if sp, ok := specs[e.OperationID]; ok {
				spec = &sp
			}
			st.Judge(alert.NewVars(e, spec), never)
		}
		out.Nanoseconds += time.Since(began).Nanoseconds()
		collect(st.Take().Told, place, out)
		if err := st.Err(); err != nil {
			return err
		}
		if !done && bounded && time.Until(deadline) < time.Second {
			out.Complete, out.Through = false, time.UnixMilli(st.Position.Clock).UTC()
			break
		}
	}
	return nil
}

func (s *Service) backtestSpecs(ctx context.Context, set *alert.Set, events []event.Event) (map[string]operation.Spec, error) {
	r := &Reactor{Store: s.Store}
	return r.specs(ctx, set, events)
}

// collect keeps the last state of each alert that fired.
func collect(told []alert.Transition, place map[string]int, out *Backtested) {
	for _, t := range told {
		if t.Alert.ID == "" || t.Alert.FiredAt == nil {
			continue
		}
		i, ok := place[t.Alert.ID]
		switch {
		case ok:
			out.Alerts[i] = t.Alert
		case len(out.Alerts) == MaxBacktestAlerts:
			out.More = true
		default:
			place[t.Alert.ID] = len(out.Alerts)
			out.Alerts = append(out.Alerts, t.Alert)
		}
	}
}
