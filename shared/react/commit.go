package react

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// AlertKept is how long a resolved alert is kept.
const AlertKept = 90 * 24 * time.Hour

// Actor is who tells of alerts.
var Actor = operation.Actor{ID: "reactor", Kind: "plane"}

// commitment says what a commit is about beside the stream's changes.
type commitment struct {
	keep   bool // the position is kept in any case
	ticked bool // timers or rules came: it must hold that the stream was read to its head
}

// commit keeps what a pass did. What means nothing is not kept each time.
func (r *Reactor) commit(ctx context.Context, stream string, j *judged, c commitment) error {
	s := j.stream
	changes := s.Take()
	j.size.Store(int64(s.Groups()))
	if err := r.name(ctx, stream, changes.Told); err != nil {
		return err
	}
	due := j.next()
	idle := len(changes.Keep)+len(changes.Forget)+len(changes.Told) == 0 && !changes.Failing
	if idle && !c.keep && due.Equal(j.due) && s.Position.Next-j.saved < saveEvery {
		return nil
	}
	next := position{Position: s.Position, Since: j.since, Lead: j.lead}
	writes := []ledger.Write{{Expect: j.version, WasDue: j.due, Item: ledger.Item{
		Key: record.JudgedKey(stream), Data: record.Encode(next), Due: due,
	}}}
	for _, g := range changes.Keep {
		writes = append(writes, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{
			Key: record.GroupKey(stream, g.Rule+"#"+g.Hash()), Data: record.Encode(g),
		}})
	}
	for _, g := range changes.Forget {
		writes = append(writes, ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion,
			Item: ledger.Item{Key: record.GroupKey(stream, g.Rule+"#"+g.Hash())}})
	}
	writes = append(writes, alertWrites(changes.Told)...)
	events, err := r.events(changes.Told)
	if err != nil {
		return err
	}
	head, err := r.put(ctx, stream, s, writes, events, c.ticked)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if len(events) > 0 && head.Next == s.Position.Next+int64(len(events)) {
		s.Position.Next = head.Next // all that follows is its own
	}
	j.version, j.due, j.saved = j.version+1, due, s.Position.Next
	r.Metrics.told(changes.Told, r.now())
	return nil
}

// name gives alerts whose rule is gone what they were called and shown by; one that
// cannot be read has its rule's id alone.
func (r *Reactor) name(ctx context.Context, stream string, told []alert.Transition) error {
	var keys []ledger.Key
	for i := range told {
		if told[i].Alert.Rule == "" {
			keys = append(keys, record.AlertKey(told[i].Alert.ID))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	items, err := r.Store.Ledger.GetMany(ctx, keys)
	if err != nil {
		return fmt.Errorf("read alerts of deleted rules: %w", err)
	}
	for i := range told {
		a := &told[i].Alert
		it, ok := items[record.AlertKey(a.ID)]
		if a.Rule != "" || !ok {
			continue
		}
		was, err := record.Decode[alert.Alert](it)
		if err != nil {
			r.Logger.ErrorContext(ctx, "an alert of a deleted rule cannot be read and ends without its name", "stream", stream, "alert", a.ID, "err", err)
			a.Rule = a.RuleID
			continue
		}
		callAs(a, &was)
	}
	return nil
}

// callAs gives an alert what it was called and shown by.
func callAs(a, was *alert.Alert) {
	a.Rule, a.RuleVersion, a.Group, a.Severity = was.Rule, was.RuleVersion, was.Group, was.Severity
	a.Labels, a.Summary, a.Runbook = was.Labels, was.Summary, was.Runbook
}

// put commits the writes with the events, and returns the head behind them. Where
// only the head was lost to another append it tries again, unless timers or rules
// came: what was appended may come before them. And where they came, the stream's
// clock moves to theirs, so that an append that is under way comes behind them:
// the stream alone says what was first. What was read moved the stream's clock itself;
// to where that was before it was set back no event of an alert takes it again.
func (r *Reactor) put(ctx context.Context, stream string, s *alert.Stream, writes []ledger.Write, events []event.Event, ticked bool) (event.Head, error) {
	for try := 0; ; try++ {
		all := slices.Clone(writes)
		var next event.Head
		if len(events) > 0 || ticked {
			head, version, err := event.LoadHead(ctx, r.Store.Ledger, stream)
			if err != nil {
				return next, err
			}
			if ticked && head.Next > s.Position.Next {
				return next, fmt.Errorf("the stream went on: %w", ledger.ErrConflict)
			}
			next = head
			if len(events) > 0 {
				if ticked {
					head.Received = max(head.Received, s.Position.Clock)
				}
				var more []ledger.Write
				if more, next, err = event.AppendWrites(head, version, stream, events); err != nil {
					return next, err
				}
				all = append(all, more...)
			} else {
				all = append(all, event.ClockWrite(head, version, stream, s.Position.Clock))
			}
		}
		err := r.Store.Ledger.Commit(ctx, all...)
		if err == nil {
			return next, nil
		}
		conflict, ok := errors.AsType[*ledger.ConflictError](err)
		headOnly := ok && len(conflict.Keys) == 1 && conflict.Keys[0] == record.StreamHeadKey(stream)
		if !headOnly || ticked || try == maxTries {
			return next, err
		}
		r.Metrics.again()
		if err := backOff(ctx, try); err != nil {
			return next, err
		}
	}
}

// alertWrites keeps the alerts as they are after their last transition.
func alertWrites(told []alert.Transition) []ledger.Write {
	last := map[string]int{}
	for i, t := range told {
		if t.Alert.ID != "" {
			last[t.Alert.ID] = i
		}
	}
	var out []ledger.Write
	for i := range told {
		a := &told[i].Alert
		if a.ID != "" && last[a.ID] == i {
			out = append(out, ledger.Write{Expect: ledger.AnyVersion, Item: alertItem(a)})
		}
	}
	return out
}

func alertItem(a *alert.Alert) ledger.Item {
	sort := record.TimeSort(a.Since, a.ID)
	it := ledger.Item{Key: record.AlertKey(a.ID), Data: record.Encode(a), Index: map[ledger.Index]ledger.Key{
		ledger.List:   {PK: record.ListAlerts, SK: sort},
		ledger.Scope:  {PK: record.AlertsOfStream(a.Stream), SK: sort},
		ledger.Lookup: {PK: record.AlertsOfRule(a.Rule), SK: sort},
	}}
	if a.State == alert.Resolved {
		it.Expires = a.ResolvedAt.Add(AlertKept)
	} else {
		it.Index[ledger.Live] = ledger.Key{PK: record.ListAlerts, SK: sort}
	}
	return it
}

// events are the transitions as the stream tells of them. The ids derive from the
// alerts and the numbers of their transitions.
func (r *Reactor) events(told []alert.Transition) ([]event.Event, error) {
	out := make([]event.Event, 0, len(told))
	for i := range told {
		t := &told[i]
		a := &t.Alert
		subject, parts := a.Subject, []string{a.ID, strconv.FormatInt(t.N, 10)}
		if a.ID == "" {
			subject, parts = event.Subject{Kind: "rule", ID: a.RuleID, Name: a.Rule}, []string{a.RuleID, a.Stream, strconv.FormatInt(t.N, 10)}
		}
		e, err := event.New(t.Kind, a.Cluster, subject, t.At, Actor, t.Detail(), parts...)
		if err != nil {
			return nil, fmt.Errorf("tell of alert %s: %w", a.ID, err)
		}
		e.ReceivedAt = r.now().UTC()
		e.OperationID = a.Operation
		if t.Kind == alert.TypeFiring || t.Kind == alert.TypeFlapping {
			e.Severity = a.Severity
		}
		out = append(out, e)
	}
	return out, nil
}

// backOff waits a little, more with each try, with jitter.
func backOff(ctx context.Context, try int) error {
	t := time.NewTimer(time.Duration(rand.Int64N(int64(time.Millisecond) << min(try, 6))))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
