package react

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Filter says which alerts are asked for; what is empty asks for all.
type Filter struct {
	States     []alert.State
	Severities []string
	Rule       string // name
	// Streams are those that the caller may see and wants: clusters' ids, and
	// "plane". nil: all.
	Streams []string
	// Since and Until bound when the alert began: Since is included, Until not.
	Since, Until time.Time
}

// open tells whether only alerts that are not resolved are asked for.
func (f *Filter) open() bool {
	return len(f.States) > 0 && !slices.Contains(f.States, alert.Resolved)
}

func (f *Filter) matches(a *alert.Alert) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, a.State)) &&
		(len(f.Severities) == 0 || slices.Contains(f.Severities, a.Severity)) &&
		(f.Rule == "" || f.Rule == a.Rule) &&
		(f.Streams == nil || slices.Contains(f.Streams, a.Stream))
}

// Listed is an alert in the list, with its place.
type Listed struct {
	Alert alert.Alert
	Place string
}

// maxLooked bounds the alerts that one call looks at, which with a filter may be more
// than it returns; lookedAt are those of one read.
const (
	maxLooked = 5000
	lookedAt  = 200
)

// Alerts reads a part of the list of alerts, the one that began last first,
// behind the place after (""; the beginning). next is where to go on, "" at the
// end: a page for which maxLooked alerts were looked at may be short, even empty, and
// still have one.
func (s *Service) Alerts(ctx context.Context, f Filter, after string, limit int) (found []Listed, next string, err error) {
	q := ledger.Query{Index: ledger.List, PK: record.ListAlerts}
	switch {
	case f.open():
		q.Index = ledger.Live
	case f.Rule != "":
		q = ledger.Query{Index: ledger.Lookup, PK: record.AlertsOfRule(f.Rule)}
	case len(f.Streams) == 1:
		q = ledger.Query{Index: ledger.Scope, PK: record.AlertsOfStream(f.Streams[0])}
	}
	sp := record.Span{Reverse: true, After: after, Limit: lookedAt}
	if !f.Since.IsZero() {
		sp.From = record.TimeSort(f.Since, "")
	}
	if !f.Until.IsZero() {
		sp.To = record.TimeSort(f.Until, "")
	}
	for looked := 0; looked < maxLooked; {
		p, err := s.Store.Ledger.Query(ctx, sp.Query(q))
		if err != nil {
			return nil, "", fmt.Errorf("list alerts: %w", err)
		}
		looked += max(len(p.Items), 1)
		for i, it := range p.Items {
			sp.After = it.Index[q.Index].SK
			a, err := record.Decode[alert.Alert](it)
			if err == nil && f.matches(&a) { // one that cannot be read is passed over
				found = append(found, Listed{Alert: a, Place: sp.After})
			}
			if len(found) == limit {
				if i < len(p.Items)-1 || p.Next != "" {
					next = sp.After
				}
				return found, next, s.fill(ctx, found)
			}
		}
		if p.Next == "" {
			return found, "", s.fill(ctx, found)
		}
	}
	return found, sp.After, s.fill(ctx, found)
}

// Alert returns an alert by its id; not_found.
func (s *Service) Alert(ctx context.Context, alertID string) (alert.Alert, error) {
	it, err := s.Store.Ledger.Get(ctx, record.AlertKey(alertID))
	if errors.Is(err, ledger.ErrNotFound) {
		return alert.Alert{}, operation.Refuse("not_found", "there is no alert %.128s", alertID)
	}
	if err != nil {
		return alert.Alert{}, fmt.Errorf("read alert: %w", err)
	}
	a, err := record.Decode[alert.Alert](it)
	if err != nil {
		return a, err
	}
	one := []Listed{{Alert: a}}
	err = s.fill(ctx, one)
	return one[0].Alert, err
}

// fill adds what is kept elsewhere: acknowledgements, and what changes of an open
// alert without a transition.
func (s *Service) fill(ctx context.Context, found []Listed) error {
	if err := s.silence(ctx, found); err != nil {
		return err
	}
	for len(found) > 0 {
		part := found[:min(len(found), ledger.MaxWrites/2)]
		found = found[len(part):]
		var keys []ledger.Key
		for i := range part {
			a := &part[i].Alert
			keys = append(keys, record.AckKey(a.ID))
			if k := record.GroupKey(a.Stream, a.GroupKey); a.State != alert.Resolved && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
		items, err := s.Store.Ledger.GetMany(ctx, keys)
		if err != nil {
			return fmt.Errorf("read what alerts have: %w", err)
		}
		for i := range part {
			a := &part[i].Alert
			if it, ok := items[record.AckKey(a.ID)]; ok {
				if acks, err := record.Decode[acks](it); err == nil { // the alert is worth more than what it lacks
					acks.show(a)
				}
			}
			it, ok := items[record.GroupKey(a.Stream, a.GroupKey)]
			if !ok || a.State == alert.Resolved {
				continue
			}
			if g, err := record.Decode[alert.Group](it); err == nil && g.OpenAlert() == a.ID {
				g.Refresh(a)
			}
		}
	}
	return nil
}

// silence notes on alerts that are not resolved which silence is in force for them
// now: one may have begun since they were told.
func (s *Service) silence(ctx context.Context, found []Listed) error {
	if !slices.ContainsFunc(found, func(l Listed) bool { return l.Alert.State != alert.Resolved }) {
		return nil
	}
	all, err := loadSilences(ctx, s.Store, silently)
	if err != nil {
		return err
	}
	now := s.now()
	var ms []*alert.Matcher
	for _, x := range all {
		if !x.Active(now) {
			continue
		}
		if m, err := alert.CompileSilence(x); err == nil {
			ms = append(ms, m)
		}
	}
	for i := range found {
		a := &found[i].Alert
		if a.State == alert.Resolved {
			continue
		}
		if a.SilencedBy = ""; len(ms) == 0 {
			continue
		}
		if m := alert.Silenced(ms, a, now); m != nil {
			a.SilencedBy = m.Silence.ID
		}
	}
	return nil
}
