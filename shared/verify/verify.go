// Package verify proves a ledger's promises from what is stored: journals are
// whole chains, locks belong to live operations, streams have no holes and tell
// each published transition once.
package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// maxProblems bounds how many findings are kept; all are counted.
const maxProblems = 100

// Report is what a walk found.
type Report struct {
	Operations int
	Live       int
	Entries    int
	Locks      int
	Streams    int
	Events     int
	Problems   []string
	Count      int // of problems
	Twice      int // of them, events that are there twice (event.LeaveOutRepeats)
}

func (r *Report) problem(format string, args ...any) {
	r.Count++
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// toldProblems is how many problems an error names.
const toldProblems = 5

// Err is nil where all holds, else it names the first problems, and what to do about those
// that can be mended.
func (r *Report) Err() error {
	if r.Count == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems found: %s", r.Count, strings.Join(r.Problems[:min(len(r.Problems), toldProblems)], "; "))
	if r.Count > toldProblems {
		b.WriteString("; and more, which opsplane verify tells")
	}
	if r.Twice > 0 {
		fmt.Fprintf(&b, ". Events are there twice: %d; opsplane restore and export leave the second of each out, and tell so in its place, with --mend", r.Twice)
	}
	return errors.New(b.String())
}

// eventID is an event's identifier, hashed short: a walk keeps one per event.
type eventID [12]byte

func keyOf(id string) eventID {
	h := sha256.Sum256([]byte(id))
	return eventID(h[:12])
}

// Run walks the whole ledger. Bound tells how long after its deadline an
// operation may still be live: one that is past it at now is a problem.
func Run(ctx context.Context, st *record.Store, now time.Time, bound time.Duration) (Report, error) {
	var r Report
	seen, err := r.streams(ctx, st)
	if err != nil {
		return r, err
	}
	q := ledger.Query{Index: ledger.List, PK: record.ListOperations, Limit: 100}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return r, fmt.Errorf("list operations: %w", err)
		}
		for _, it := range p.Items {
			if id := record.OperationOf(it.Key); id != "" {
				if err := r.operation(ctx, st, id, seen, now, bound); err != nil {
					return r, err
				}
			}
		}
		if p.Next == "" {
			return r, nil
		}
		q.After = p.Next
	}
}

func (r *Report) operation(ctx context.Context, st *record.Store, id string, seen map[eventID]bool, now time.Time, bound time.Duration) error {
	op, err := st.Load(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		r.problem("operation %s cannot be read: %v", id, err)
		return nil
	}
	r.Operations++
	entries, err := st.Journal(ctx, id, 1, 0)
	if err != nil {
		return err
	}
	r.Entries += len(entries)
	if err := operation.VerifyChain(entries, op.State.Journal); err != nil {
		r.problem("operation %s: %v", id, err)
	}
	r.consistent(&op, entries)
	live := !op.State.Phase.Terminal()
	if live {
		r.Live++
		if now.Sub(op.State.Deadline) > bound {
			r.problem("operation %s is %s %s past its deadline", id, op.State.Phase, now.Sub(op.State.Deadline).Round(time.Second))
		}
	} else if op.State.Result == nil {
		r.problem("operation %s is %s without a result", id, op.State.Phase)
	}
	resources := make([]string, len(op.Spec.Locks))
	for i, l := range op.Spec.Locks {
		resources[i] = l.Resource
	}
	locks, err := st.Locks(ctx, resources)
	if err != nil {
		return err
	}
	for _, res := range resources {
		held := false
		for _, h := range locks[res].Holders {
			held = held || h.Operation == id
		}
		switch {
		case held && live:
			r.Locks++
		case held:
			r.problem("operation %s is %s and still holds %s", id, op.State.Phase, res)
		case live:
			r.problem("operation %s is %s and does not hold %s", id, op.State.Phase, res)
		}
	}
	return r.published(ctx, st, &op, entries, seen)
}

// consistent checks that the state and the spec say what the journal says.
func (r *Report) consistent(op *operation.Operation, entries []operation.Entry) {
	var last operation.Phase
	for _, e := range entries {
		if e.Kind == operation.EntryTransition {
			last = e.To
		}
	}
	if last != op.State.Phase {
		r.problem("operation %s is %s, its journal ends in %s", op.Spec.ID, op.State.Phase, last)
	}
	if len(entries) > 0 && (entries[0].By != op.Spec.Actor || entries[0].Reason != op.Spec.Request.Reason) {
		r.problem("operation %s: actor or reason are not those of its journal", op.Spec.ID)
	}
}

// published checks that each transition up to the marker is in the stream.
func (r *Report) published(ctx context.Context, st *record.Store, op *operation.Operation, entries []operation.Entry, seen map[eventID]bool) error {
	_, pubs, err := st.Glances(ctx, []string{op.Spec.ID})
	if err != nil {
		return err
	}
	head, _, err := event.LoadHead(ctx, st.Ledger, event.StreamOf(op.Spec.Cluster))
	if err != nil {
		return err
	}
	if head.Low > 1 {
		return nil // retention has cut the stream
	}
	for _, e := range entries {
		ev, ok := event.FromEntry(&op.Spec, e)
		if ok && e.Seq <= pubs[op.Spec.ID].Seq && !seen[keyOf(ev.ID)] {
			r.problem("operation %s: journal entry %d (%s) is not in its stream", op.Spec.ID, e.Seq, ev.Type)
		}
	}
	return nil
}

// streams walks every stream: sequences without holes, ids without repeats.
func (r *Report) streams(ctx context.Context, st *record.Store) (map[eventID]bool, error) {
	seen := map[eventID]bool{}
	names, err := event.Streams(ctx, st)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		head, _, err := event.LoadHead(ctx, st.Ledger, name)
		if err != nil {
			return nil, err
		}
		r.Streams++
		next := max(head.Low, 1)
		for {
			evs, _, err := event.ReadStream(ctx, st.Ledger, name, next, 1000)
			if err != nil {
				r.problem("stream %s cannot be read from %d: %v", name, next, err)
				break
			}
			for _, e := range evs {
				if n := event.Unreadable(&e); n > 0 {
					r.problem("stream %s: %d events up to %d cannot be read", name, n, e.Sequence)
				} else if e.Sequence != next && (e.Type != event.TypeRestored || e.Sequence < next) {
					r.problem("stream %s: %d follows %d", name, e.Sequence, next-1)
				}
				next = e.Sequence + 1
				if k := keyOf(e.ID); seen[k] {
					r.Twice++
					r.problem("stream %s: event %s is there twice, again at %d", name, e.ID, e.Sequence)
				} else {
					seen[k] = true
				}
			}
			r.Events += len(evs)
			if len(evs) == 0 {
				break
			}
		}
		if next < head.Next {
			r.problem("stream %s ends at %d, its head says %d", name, next-1, head.Next-1)
		}
	}
	return seen, nil
}
