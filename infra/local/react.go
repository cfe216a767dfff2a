package local

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/sweep"
)

const (
	// reactAgain is how soon a stream that could not be judged is tried again.
	reactAgain = 2 * time.Second
	// judgeWithin is how long a stream may be judged at a time. One that went on in
	// it goes on at once; one that did not hangs.
	judgeWithin = 10 * time.Second
	// judgeAtOnce bounds the streams that are judged at a time, those that hang
	// apart.
	judgeAtOnce = 8
	// doubtAfter is how long no stream need be judged, while one cannot be, until all
	// are to see whether any can: well before the reactor counts as silent.
	doubtAfter = watchdogAfter / 3
)

// judges has streams judged beside whoever finds that they should be - the feed,
// the sweep, the engine's start -, which waits for none of them. Each is judged by
// one goroutine at a time.
type judges struct {
	mu     sync.Mutex
	begin  func(stream string) // nil: nobody judges
	busy   map[string]bool     // true: to be judged once more
	hung   map[string]bool     // did not go on when they were judged last
	slots  chan struct{}
	within time.Duration
}

func newJudges() *judges {
	return &judges{busy: map[string]bool{}, hung: map[string]bool{}, slots: make(chan struct{}, judgeAtOnce), within: judgeWithin}
}

// want has the streams judged from now on, or once more when they are.
func (j *judges) want(streams ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.begin == nil {
		return
	}
	for _, s := range streams {
		_, busy := j.busy[s]
		if j.busy[s] = busy; !busy {
			j.begin(s)
		}
	}
}

// over notes how judging a stream ended, and tells whether it is to be judged once
// more, at once or, after it failed, later: whoever wanted it meanwhile may have taken
// it for one that is tried again anyway.
func (j *judges) over(stream string, failed, hung bool) (again, later bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.hung, stream)
	if hung {
		j.hung[stream] = true
	}
	wanted := j.busy[stream]
	if wanted && !failed {
		j.busy[stream] = false
		return true, false
	}
	delete(j.busy, stream)
	return false, wanted
}

// stuck notes that the time of a stream is over, and tells whether it is being judged
// still.
func (j *judges) stuck(stream string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, busy := j.busy[stream]
	if busy {
		j.hung[stream] = true
	}
	return busy
}

// waits tells whether a stream is being judged, or hung when it was, so that it is
// not known whether any can be.
func (j *judges) waits() (busy, hung bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.busy) > 0, len(j.hung) > 0
}

// behind are the streams that could not be judged.
type behind struct {
	mu      sync.Mutex
	streams map[string]bool // to be tried again
	since   map[string]time.Time
}

func (b *behind) add(streams ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams == nil {
		b.streams, b.since = map[string]bool{}, map[string]time.Time{}
	}
	for _, s := range streams {
		b.streams[s] = true
		if b.since[s].IsZero() {
			b.since[s] = time.Now()
		}
	}
}

// caughtUp forgets a stream.
func (b *behind) caughtUp(stream string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.streams, stream)
	delete(b.since, stream)
}

// any tells whether a stream is behind.
func (b *behind) any() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.since) > 0
}

// longer tells how many streams have been behind for longer than d, and since when
// the oldest has.
func (b *behind) longer(now time.Time, d time.Duration) (n int, oldest time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.since {
		if now.Sub(t) > d {
			n++
			if oldest.IsZero() || t.Before(oldest) {
				oldest = t
			}
		}
	}
	return n, oldest
}

func (b *behind) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, 0, len(b.streams))
	for s := range b.streams {
		out = append(out, s)
	}
	clear(b.streams)
	return out
}

// has tells whether the stream waits to be tried again.
func (b *behind) has(stream string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams[stream]
}

// reactDue has a stream judged of which a timer is due. The sweep waits neither for
// it nor for one that cannot be judged.
func (e *Engine) reactDue(_ context.Context, stream string) error {
	if !e.behind.has(stream) {
		e.judges.want(stream)
	}
	return sweep.ErrHandedOn
}

// react has the streams judged that the records are about. The feed does not wait
// for that: what was not judged when the engine ends, it judges when it begins.
func (e *Engine) react(ctx context.Context, changes []ledger.Change) error {
	streams, all := record.Wakes(changes)
	if all {
		every, err := event.Streams(ctx, e.Store)
		if err != nil {
			return err
		}
		streams = append(streams, every...)
	}
	e.judges.want(streams...)
	return nil
}

// judge judges a stream until nobody wants it any more.
func (e *Engine) judge(ctx context.Context, stream string) {
	for again := true; again; {
		failed, hung := true, false
		select {
		case <-ctx.Done():
		case e.judges.slots <- struct{}{}:
			failed, hung = e.judgeOnce(ctx, stream)
		}
		var later bool
		if again, later = e.judges.over(stream, failed, hung); later && ctx.Err() == nil {
			e.behind.add(stream)
		}
	}
}

// judgeOnce judges a stream within its time, for which it holds a slot and no
// longer, whatever hangs.
func (e *Engine) judgeOnce(ctx context.Context, stream string) (failed, hung bool) {
	within, cancel := context.WithTimeout(ctx, e.judges.within)
	defer cancel()
	context.AfterFunc(within, func() {
		<-e.judges.slots
		if errors.Is(within.Err(), context.DeadlineExceeded) && e.judges.stuck(stream) {
			e.behind.add(stream)
		}
	})
	passes := e.Reactor.Passes(stream)
	err := e.Reactor.Follow(within, stream)
	hung = within.Err() != nil
	switch {
	case err == nil:
		e.reactorLives()
		e.behind.caughtUp(stream)
		return false, false
	case ctx.Err() != nil:
		return true, false
	case hung && e.Reactor.Passes(stream) != passes:
		e.reactorLives()
		e.judges.want(stream) // it is slow, and goes on
		return false, false
	}
	e.behind.add(stream)
	e.opts.Logger.Error("a stream could not be judged", "stream", stream, "hung", hung, "err", err)
	return true, hung
}

// feedLives says that the reactor lives when its feed came round, unless something
// hangs or fails of which nobody knows whether it is all streams.
func (e *Engine) feedLives() {
	if busy, hung := e.judges.waits(); !busy && !hung && !e.behind.any() {
		e.reactorLives()
	}
}

// wall is the clock as it was looked at last.
type wall struct{ last time.Time }

// wentBack tells whether the clock was set back since: what was appended while it was
// ahead may have left streams there, of which nothing else tells.
func (w *wall) wentBack(now time.Time) bool {
	back := now.Add(event.ClocksDiffer).Before(w.last)
	w.last = now
	return back
}

// reactLoop has all streams judged once, for what happened while nobody did, and
// from then on those again that could not be - and all when one hangs, or fails while
// none was judged lately, which tells whether others can be judged, or when the clock
// went back. It ends when ctx does and none is judged any more.
func (e *Engine) reactLoop(ctx context.Context) {
	var wg sync.WaitGroup
	e.judges.mu.Lock()
	e.judges.begin = func(stream string) { wg.Go(func() { e.judge(ctx, stream) }) }
	e.judges.mu.Unlock()
	defer func() {
		e.judges.mu.Lock()
		e.judges.begin = nil
		e.judges.mu.Unlock()
		wg.Wait()
	}()
	var clock wall
	for all := true; ; {
		if all = clock.wentBack(e.Store.Now()) || all; all {
			streams, err := event.Streams(ctx, e.Store)
			if err != nil && ctx.Err() == nil {
				e.opts.Logger.Error("streams cannot be listed to be judged", "err", err)
			}
			e.judges.want(streams...)
			all = err != nil
		}
		if !sleep(ctx, reactAgain) {
			return
		}
		e.judges.want(e.behind.take()...)
		_, hung := e.judges.waits()
		all = all || hung || e.behind.any() && time.Since(e.reactorSince()) > doubtAfter
	}
}
