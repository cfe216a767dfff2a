// Package react judges event streams by the alert rules, and keeps rules, alerts
// and silences.
//
// A Reactor reads each stream from its own position, lets package alert judge
// what it reads, and keeps in one commit the position, the groups' state, the
// alerts and their events, conditional on the position as it was. So a replay, a
// crash between any two calls, a record that comes twice or a second reactor
// neither lose an alert nor double one: whoever loses the race reads again.
//
// What wakes it (the feed's records of stream heads, the due index, another
// process) is only a hint.
package react

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Defaults of a reactor.
const (
	defaultBatch = 500
	// defaultResident bounds the groups that a process keeps at hand, of all
	// streams together.
	defaultResident = 200_000
	// Backlog is how old an event may be when a stream is judged for the first
	// time: a deployment that gets its first reactor is not told what is over.
	Backlog = time.Hour
	// saveEvery is how many events may pass that mean nothing to any rule before
	// the position is kept: judging them again changes nothing.
	saveEvery = 2000
	// maxTries bounds how often a pass is tried again after losing a race.
	maxTries = 50
)

// Bounds of one commit. They leave room below those of the ledger.
const (
	maxWrites = 80
	maxBytes  = 2 << 20
	maxTold   = 25 // an alert and an event each
)

// Reactor judges streams. It is safe for use by several goroutines, and by
// several processes over one ledger.
type Reactor struct {
	Store  *record.Store
	Logger *slog.Logger
	// Batch is how many events are read at once; 500 when 0.
	Batch int
	// MaxGroups bounds the groups of a rule in a stream; alert.DefaultGroups when 0.
	MaxGroups int
	// Resident bounds the groups kept at hand, and the streams; 200,000 when 0.
	Resident int

	Metrics Metrics

	mu      sync.Mutex
	streams map[string]*judged
	tick    int64 // counts uses, for what goes first
	rules   rules
}

// judged is a stream as this process knows it.
type judged struct {
	mu      sync.Mutex // one pass at a time
	stream  *alert.Stream
	version int64 // of its position
	since   int64 // events received before are not judged, Unix milliseconds
	due     time.Time
	saved   int64 // the position's Next as it is kept
	used    int64
	size    atomic.Int64 // groups
	passes  atomic.Int64 // that were kept, or meant nothing
	panics  int          // in a row
	// panicked is the last panic, until the stream is judged again.
	panicked *PanicError
	// ahead are events that were read and not judged yet, for a commit was full;
	// head is the stream's as it was when they were read.
	ahead []event.Event
	head  event.Head
	lead  *lead // nil: the stream's clock is not ahead
}

// position is the data of a stream's position item.
type position struct {
	alert.Position
	Since int64 `json:"since,omitempty"`
	Lead  *lead `json:"lead,omitempty"`
}

func (r *Reactor) now() time.Time { return r.Store.Now() }

func (r *Reactor) of(stream string) *judged {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		r.streams = map[string]*judged{}
	}
	j := r.streams[stream]
	if j == nil {
		j = &judged{}
		r.streams[stream] = j
	}
	r.tick++
	j.used = r.tick
	return j
}

// Follow judges a stream to its head, and lets the timers come that are due. An
// error leaves the stream as it was committed last; the others are not touched. A
// panic is an error too, a *PanicError, and so is every call after it until the
// stream may be tried again.
func (r *Reactor) Follow(ctx context.Context, stream string) error {
	j := r.of(stream)
	j.mu.Lock()
	defer j.mu.Unlock()
	return r.guarded(ctx, stream, j, func() error { return r.follow(ctx, stream, j) })
}

// Passes is how many passes over a stream have come to their end in this process:
// one that is slow and goes on is told by it from one that hangs.
func (r *Reactor) Passes(stream string) int64 { return r.of(stream).passes.Load() }

func (r *Reactor) follow(ctx context.Context, stream string, j *judged) error {
	for try := 0; ; {
		more, err := r.pass(ctx, stream, j)
		switch {
		case err == nil && !more:
			j.passes.Add(1)
			r.evict()
			return nil
		case err == nil:
			j.passes.Add(1)
			try = 0
			continue
		}
		j.stream = nil // what is at hand is not what is kept
		if !errors.Is(err, ledger.ErrConflict) || try == maxTries {
			return fmt.Errorf("judge stream %s: %w", stream, err)
		}
		r.Metrics.again()
		if err := backOff(ctx, try); err != nil {
			return fmt.Errorf("judge stream %s: %w", stream, err)
		}
		try++
	}
}

// pass judges one batch of a stream and commits it. more: there may be more to do.
func (r *Reactor) pass(ctx context.Context, stream string, j *judged) (more bool, err error) {
	set, mark, err := r.load(ctx, stream, j)
	if err != nil {
		return false, err
	}
	s := j.stream
	now := r.now()
	events, head, err := r.read(ctx, stream, j)
	var expired *event.ExpiredError
	if errors.As(err, &expired) {
		r.Metrics.lose(head.Passed(s.Position.Next))
		r.Logger.WarnContext(ctx, "events passed retention before they were judged", "stream", stream, "from", s.Position.Next, "through", head.Low-1)
		s.Position.Next = head.Low
		return true, r.commit(ctx, stream, j, commitment{keep: true})
	}
	if err != nil {
		return false, err
	}
	if s.Position.Rules != mark {
		return true, r.change(ctx, stream, j, set, mark, now)
	}
	whole, err := r.judge(ctx, s, j, set, events)
	if err != nil {
		return false, err
	}
	// The first commit of a stream says from where it is judged, and by which rules.
	c := commitment{keep: j.version == 0 && head.Next > 1 && mark != markDeleted}
	if whole && s.Position.Next >= head.Next {
		if due := s.Due(); !due.IsZero() && !due.After(now) {
			c.ticked = true
			whole = s.Tick(now, full(s))
		}
	} else {
		more = true
	}
	if err := s.Err(); err != nil {
		return false, err
	}
	back := false
	if whole && !more { // all is judged
		j.ahead = nil
		back = j.leads(head, now) && mark != markDeleted
		if mark == markDeleted { // nothing waits in it
			j.lead = nil
		}
	}
	if err := r.commit(ctx, stream, j, c); err != nil || !back {
		return more || !whole, err
	}
	return true, r.setBack(ctx, stream, j, now)
}

// read returns the next events of a stream, and its head when they were read.
func (r *Reactor) read(ctx context.Context, stream string, j *judged) ([]event.Event, event.Head, error) {
	next := j.stream.Position.Next
	for len(j.ahead) > 0 && j.ahead[0].Sequence < next {
		j.ahead = j.ahead[1:]
	}
	if len(j.ahead) > 0 && j.ahead[0].Sequence == next {
		return j.ahead, j.head, nil
	}
	batch := r.Batch
	if batch == 0 {
		batch = defaultBatch
	}
	events, head, err := event.ReadStream(ctx, r.Store.Ledger, stream, next, batch)
	if err == nil {
		j.ahead, j.head = events, head
	}
	return events, head, err
}

// change brings a stream under other rules: now, unless there are events or timers
// that it has yet to judge, for the rules come before these and so not later. What
// is appended behind the last event is received later than that.
func (r *Reactor) change(ctx context.Context, stream string, j *judged, set *alert.Set, mark string, now time.Time) error {
	s := j.stream
	rest := j.ahead
	for len(rest) > 0 && s.PassOwn(&rest[0]) {
		rest = rest[1:]
	}
	read := len(rest) == 0 && s.Position.Next >= j.head.Next
	if len(rest) == 0 && !read { // more of its own: the rules come behind them
		return r.commit(ctx, stream, j, commitment{keep: true})
	}
	if !read && rest[0].ReceivedAt.Before(now) {
		now = rest[0].ReceivedAt
	}
	if due := s.Due(); !due.IsZero() && due.Before(now) {
		now = due
	}
	s.SetRules(set, mark, now, full(s))
	return r.commit(ctx, stream, j, commitment{keep: true, ticked: read})
}

// judge judges events until the commit is full. It returns whether it judged all.
func (r *Reactor) judge(ctx context.Context, s *alert.Stream, j *judged, set *alert.Set, events []event.Event) (bool, error) {
	specs, err := r.specs(ctx, set, events)
	if err != nil {
		return false, err
	}
	defer r.Metrics.meter(s)
	for i := range events {
		e := &events[i]
		if n := event.Unreadable(e); n > 0 {
			r.Metrics.skip(n)
			r.Logger.ErrorContext(ctx, "events cannot be read and are passed over", "stream", s.Name, "through", e.Sequence, "events", n)
		}
		if _, ok := event.SetBackOf(e); ok { // since may have been told by the clock that was ahead
			j.since = min(j.since, e.ReceivedAt.UnixMilli())
		}
		if e.ReceivedAt.UnixMilli() < j.since {
			s.Pass(e)
			continue
		}
		var spec *operation.Spec
		if sp, ok := specs[e.OperationID]; ok {
			spec = &sp
		}
		if !s.Judge(alert.NewVars(e, spec), full(s)) {
			return false, s.Err()
		}
	}
	return s.Release(full(s)), nil
}

// specs reads the specs of operations that rules ask for.
func (r *Reactor) specs(ctx context.Context, set *alert.Set, events []event.Event) (map[string]operation.Spec, error) {
	var ids []string
	seen := map[string]bool{}
	for i := range events {
		if id := events[i].OperationID; id != "" && !seen[id] && set.NeedsSpec(events[i].Type) {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	specs, err := r.Store.Specs(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read specs of operations: %w", err)
	}
	return specs, nil
}

// full tells whether what has changed takes a commit of its own.
func full(s *alert.Stream) func() bool {
	return func() bool {
		groups, told, bytes := s.Load()
		return groups+2*told >= maxWrites || told >= maxTold || bytes >= maxBytes
	}
}

// weight is what the stream counts for among those at hand: its groups, and itself.
func (j *judged) weight() int { return 1 + int(j.size.Load()) }

// evict forgets the streams that were used longest ago when too many groups are
// at hand.
func (r *Reactor) evict() {
	most := r.Resident
	if most == 0 {
		most = defaultResident
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for _, j := range r.streams {
		total += j.weight()
	}
	for total > most && len(r.streams) > 0 {
		var oldest string
		for name, j := range r.streams {
			if oldest == "" || j.used < r.streams[oldest].used {
				oldest = name
			}
		}
		total -= r.streams[oldest].weight()
		delete(r.streams, oldest) // a pass that has it goes on with its own
	}
}
