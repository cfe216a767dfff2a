package agentapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/protocol"
)

// snapshotKept bounds how long the parts of a full inventory are kept.
const snapshotKept = time.Hour

// Events appends what the fleet reported to the cluster's stream, by its numbers,
// in whichever order a call has it. Resends are dropped by their numbers, a hole
// becomes a stream.gap event, and one bad event leaves the others: the answer says
// which it was and why, and so does a stream.gap in its place. When it happened is the
// agent's word, when it was received is the plane's.
func (s *Service) Events(ctx context.Context, cluster string, req protocol.EventsRequest) (protocol.EventsAnswer, error) {
	if len(req.Events) > protocol.MaxEvents {
		return protocol.EventsAnswer{}, tooMany("events", len(req.Events), protocol.MaxEvents)
	}
	agent, err := s.agent(ctx, cluster, req.AgentID, req.Boot)
	if err != nil {
		return protocol.EventsAnswer{}, err
	}
	answer := protocol.EventsAnswer{Refused: []protocol.RefusedEvent{}}
	var all Received
	defer func() {
		if s.Received != nil && all != (Received{}) {
			s.Received(ctx, cluster, all)
		}
	}()
	evs, place := inOrder(req.Events)
	for at, first := 0, true; first || at < len(evs); first = false {
		part := evs[at:][:batchOf(evs[at:])]
		for try := 0; ; try++ {
			through, refused, got, err := s.events(ctx, cluster, agent.ID, agent.Name, req.Boot, part)
			if err == nil {
				all.add(got)
				s.Intake.add(got)
				answer.Through = through
				for _, r := range refused {
					r.Index = place[r.Index+at]
					answer.Refused = append(answer.Refused, r)
				}
				break
			}
			if !errors.Is(err, ledger.ErrConflict) || try > 10 {
				return answer, fmt.Errorf("append events: %w", err)
			}
		}
		at += len(part)
	}
	slices.SortStableFunc(answer.Refused, func(a, b protocol.RefusedEvent) int { return cmp.Compare(a.Index, b.Index) })
	return answer, nil
}

// inOrder returns the events by their numbers, and where in the call each was: what
// comes late in a call is no gap.
func inOrder(in []protocol.Event) (out []protocol.Event, place []int) {
	place = make([]int, len(in))
	for i := range in {
		place[i] = i
	}
	slices.SortStableFunc(place, func(a, b int) int { return cmp.Compare(in[a].N, in[b].N) })
	out = make([]protocol.Event, len(in))
	for i, at := range place {
		out[i] = in[at]
	}
	return out, place
}

// Bounds of one append; one event more than the bytes may go in.
const (
	eventsPerAppend = 100
	bytesPerAppend  = 1 << 20
)

// batchOf returns how many of the leading events go into one append.
func batchOf(evs []protocol.Event) int {
	n, total := 0, 0
	for n < len(evs) && n < eventsPerAppend && total < bytesPerAppend {
		total += len(evs[n].Detail)
		n++
	}
	return n
}

func (s *Service) events(ctx context.Context, cluster, agentID, name, boot string, in []protocol.Event) (int64, []protocol.RefusedEvent, Received, error) {
	var got Received
	at, err := s.mark(ctx, cluster, agentID, boot)
	if err != nil {
		return 0, nil, got, err
	}
	now := s.Store.Now().UTC()
	var evs []event.Event
	var refused []protocol.RefusedEvent
	told := int64(0) // refusals
	used := false    // a number that the mark has yet to count
	for i, r := range in {
		numbered := 1 <= r.N && r.N <= protocol.MaxEventNumber
		if numbered && r.N <= at.Through {
			got.Resent++
			continue
		}
		if numbered {
			if first := at.Through + 1; first < r.N {
				got.Gaps, got.Missing = got.Gaps+1, sum(got.Missing, r.N-first)
				evs = append(evs, event.Gap(cluster, agentID, name, boot, first, r.N-1, "", now))
			}
			at.Through, used = r.N, true
		}
		e, err := event.FromReport(cluster, agentID, boot, r, now)
		if err != nil { // always, of one without a number
			refused = append(refused, refusedEvent(r.N, i, err))
			if numbered { // its number is used up, and nobody sends it again
				told++
				evs = append(evs, event.Gap(cluster, agentID, name, boot, r.N, r.N, refused[len(refused)-1].Detail, now))
			}
			continue
		}
		evs = append(evs, e)
	}
	if err := s.belong(ctx, cluster, evs); err != nil {
		return 0, nil, got, err
	}
	mark := at.writes(now)
	switch {
	case len(evs) > 0:
		var kept []event.Event
		kept, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(cluster), evs, func() ([]ledger.Write, error) { return mark, nil })
		var by time.Duration
		if got.Raised, by = event.Raised(evs, kept); got.Raised > 0 {
			s.Logger.WarnContext(ctx, "a stream's clock is ahead: a clock of the plane's is or was wrong, and rules go by it until the stream's is set back, or that time has come",
				"stream", event.StreamOf(cluster), "ahead", by)
		}
	case used:
		err = s.Store.Ledger.Commit(ctx, mark...)
	}
	got.Taken, got.Refused = int64(len(evs))-got.Gaps-told, int64(len(refused))
	return at.Through, refused, got, err
}

// belong puts events of cordons to the operations that agents say placed them, where
// these exist and are of the agents' cluster. Specs never change: what was read once
// is at hand for the next event, and the reads of a call are one.
func (s *Service) belong(ctx context.Context, cluster string, evs []event.Event) error {
	var ids []string
	for i := range evs {
		if id := evs[i].ToldOperation(); id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	specs, err := s.Store.Specs(ctx, ids)
	if err != nil {
		return fmt.Errorf("read operations of cordons: %w", err)
	}
	for i := range evs {
		if sp, ok := specs[evs[i].ToldOperation()]; ok && sp.Cluster == cluster {
			evs[i].OperationID, evs[i].CorrelationID = sp.ID, sp.CorrelationID
		}
	}
	return nil
}

// refusedEvent says which event of a call was not taken, and why.
func refusedEvent(n int64, index int, err error) protocol.RefusedEvent {
	r := protocol.RefusedEvent{N: n, Index: index, Code: protocol.RefusedInvalid, Detail: detail(err.Error())}
	if over, ok := errors.AsType[*event.LimitError](err); ok {
		r.Code, r.Limit = protocol.RefusedTooLarge, over.Limit
	}
	return r
}
