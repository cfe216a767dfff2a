package event

import (
	"context"
	"fmt"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// maxFetch bounds the runs read by one query of a scan.
const maxFetch = 100

// scan reads one stream forward and stops at events that match.
type scan struct {
	l      ledger.Reader
	q      *Query
	stream string
	next   int64 // the sequence of the next event to look at
	head   Head  // which tells where the scan ends
	budget int   // how many events may still be looked at
	want   int   // how many matching events the page takes at most

	buffer  []Event // from next on
	perRun  int     // how many events the last runs had
	fetched bool
}

// peek returns the next event that matches, without passing it; nil at the end
// or when the budget is used up. Events that do not match are passed.
func (s *scan) peek(ctx context.Context) (*Event, error) {
	for s.next < s.head.Next {
		if len(s.buffer) == 0 {
			if s.budget <= 0 {
				return nil, nil
			}
			if err := s.fetch(ctx); err != nil {
				return nil, err
			}
			continue
		}
		e := &s.buffer[0]
		if s.q.matches(&s.head, e) {
			return e, nil
		}
		if s.budget <= 0 {
			return nil, nil
		}
		s.budget--
		s.pass()
	}
	return nil, nil
}

// pass steps over the next event.
func (s *scan) pass() {
	s.next = s.buffer[0].Sequence + 1 // one may stand for several
	s.buffer = s.buffer[1:]
}

// fetch fills the buffer from next on. The first time it finds the run that next
// is in, and skips what cannot be as late as the query asks for.
func (s *scan) fetch(ctx context.Context) error {
	if !s.fetched {
		s.fetched = true
		r, ok, err := runAt(ctx, s.l, s.stream, s.next)
		if err != nil {
			return err
		}
		if !ok || r.end <= s.next {
			return &holeError{s.stream, s.next}
		}
		if since := s.q.Since; !since.IsZero() && s.head.bound(&r) < since.UnixMilli() {
			// Every event so far happened before since: look for the first that
			// may not have.
			s.next, err = seek(ctx, s.l, s.stream, &s.head, r.end, since.UnixMilli())
			s.fetched = s.next >= s.head.Next
			return err
		}
		s.fill(r, s.next)
		return nil
	}
	need := min(int64(s.budget), s.head.Next-s.next)
	if s.q.open() {
		need = min(need, int64(s.want))
	}
	p, err := s.l.Query(ctx, ledger.Query{
		PK: record.StreamPK(s.stream), From: record.StreamRunKey(s.stream, s.next).SK, To: record.StreamRunKey(s.stream, s.head.Next).SK,
		Limit: int(min(max(need/int64(max(s.perRun, 1)), 1), maxFetch)),
	})
	if err != nil {
		return fmt.Errorf("read stream %s from %d: %w", s.stream, s.next, err)
	}
	at := s.next
	for _, it := range p.Items {
		r, err := readRun(ctx, s.l, s.stream, it)
		if err != nil {
			return err
		}
		if r.first != at {
			break
		}
		s.fill(r, at)
		at = r.end
	}
	if len(s.buffer) == 0 {
		return &holeError{s.stream, s.next}
	}
	return nil
}

// fill adds the events of a run from the sequence on.
func (s *scan) fill(r run, from int64) {
	s.perRun = len(r.Events)
	for i := range r.Events {
		if seq := r.Events[i].Sequence; seq >= from && seq < s.head.Next {
			s.buffer = append(s.buffer, r.Events[i])
		}
	}
}
