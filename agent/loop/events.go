package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	eventsMost  = 10_000
	eventsBytes = protocol.MaxBodyBytes - 64<<10
)

// events numbers what the fleet reports, from 1 in each boot, and holds it until
// the plane has it. When it is full the oldest goes: the hole in the numbers
// tells the plane.
type events struct {
	metrics *Metrics
	now     func() time.Time

	mu      sync.Mutex
	waiting []protocol.Event // in the order of N, without holes
	last    int64
	ring    chan struct{}
}

func newEvents(m *Metrics, now func() time.Time) *events {
	return &events{metrics: m, now: now, ring: make(chan struct{}, 1)}
}

func (e *events) add(in []protocol.Event) {
	if len(in) == 0 {
		return
	}
	e.mu.Lock()
	for _, event := range in {
		e.last++
		event.N = e.last
		event.Detail = redactJSON(event.Detail, protocol.MaxEventBytes)
		if event.At.IsZero() {
			event.At = e.now()
		}
		event.At = event.At.UTC()
		e.waiting = append(e.waiting, event)
	}
	if n := len(e.waiting) - eventsMost; n > 0 {
		e.metrics.EventsLost.Add(int64(n))
		e.waiting = append([]protocol.Event(nil), e.waiting[n:]...)
	}
	e.mu.Unlock()
	select {
	case e.ring <- struct{}{}:
	default:
	}
}

// batch returns the oldest that fit one call.
func (e *events) batch() []protocol.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, size := 0, 0
	for n < len(e.waiting) && n < protocol.MaxEvents {
		event := e.waiting[n]
		size += len(event.Detail) + 2*(len(event.Type)+len(event.Subject.Name)+len(event.Subject.UID)) + 160
		if size > eventsBytes && n > 0 {
			break
		}
		n++
	}
	return append([]protocol.Event(nil), e.waiting[:n]...)
}

// through drops what the plane is done with and returns how many those were.
func (e *events) through(n int64) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := 0
	for i < len(e.waiting) && e.waiting[i].N <= n {
		i++
	}
	e.waiting = e.waiting[i:]
	return i
}

// sendEvents sends until the plane's Through covers everything.
func (a *Agent) sendEvents(ctx context.Context) {
	tries := 0
	for {
		batch := a.events.batch()
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-a.events.ring:
			}
			continue
		}
		if a.session.waitUp(ctx) != nil {
			return
		}
		moved, err := a.postEvents(ctx, batch)
		if err == nil && moved {
			tries = 0
			continue
		}
		if tries++; tries == 1 && ctx.Err() == nil {
			a.log.Warn("events were not taken", slog.Int("events", len(batch)), slog.Any("err", err))
		}
		if !pause(ctx, backoff(tries, 200*time.Millisecond, 5*time.Second)) {
			return
		}
	}
}

// postEvents sends one batch and tells whether the plane took any of it.
func (a *Agent) postEvents(ctx context.Context, batch []protocol.Event) (bool, error) {
	var answer protocol.EventsAnswer
	err := a.api.post(ctx, "/v1/agent/events", "", protocol.EventsRequest{
		AgentID: a.session.get().AgentID, Boot: a.boot, Events: batch,
	}, &answer)
	if refused(err) {
		if len(batch) > 1 {
			return a.postEvents(ctx, batch[:1]) // find the one that spoils it
		}
		a.log.Error("the plane refuses an event", slog.String("type", batch[0].Type), slog.Any("err", err))
		a.metrics.EventsLost.Add(1)
		a.events.through(batch[0].N)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	through, unwanted := min(answer.Through, batch[len(batch)-1].N), 0
	for _, r := range answer.Refused {
		a.log.Warn("an event was refused", slog.Int64("n", r.N), slog.String("detail", redact(r.Detail, 256)))
		a.metrics.EventsLost.Add(1)
		unwanted++
		if r.N == through+1 { // its number is used up
			through++
		}
	}
	a.metrics.EventsSent.Add(int64(max(a.events.through(through)-unwanted, 0)))
	return through >= batch[0].N, nil
}
