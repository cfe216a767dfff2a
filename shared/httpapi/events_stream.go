package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/event"
)

// streaming bounds event streams (HTML Standard, "Server-sent events").
type streaming struct {
	// most is how long a stream stays open: a client takes it up again.
	most time.Duration
	// alive is after how long without an event a comment is sent, and how often it
	// is asked whether the credential still holds.
	alive time.Duration
	// patience is how long a client may take to make room for one event.
	patience time.Duration
	// retry is when a client comes back.
	retry time.Duration
	// bytes end a document where nothing can be sent before all of it.
	bytes int

	ending chan struct{} // closed: streams end
	end    func()        // closes it, once
}

// maxStream is how long a stream stays open at most.
const maxStream = time.Hour

func newStreaming() streaming {
	s := streaming{most: maxStream, alive: 15 * time.Second, patience: 15 * time.Second, retry: time.Second, bytes: 1 << 20,
		ending: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.ending) })
	return s
}

// EndStreams ends the event streams that are open, which their clients take up
// again elsewhere, and each new one at once: a server that shuts down waits for
// them otherwise.
func (a *API) EndStreams() { a.streaming.end() }

// streamEvents answers events as they happen. Until the first byte errors are
// problems; from then on the client's last id is all that it needs to go on.
//
// Where the answer is sent only when it is whole (a function behind a gateway),
// it is a document that ends as soon as it has the events that are there, or with
// nothing when the wait is over: for an EventSource that is a connection which was
// closed, and it takes the stream up again.
func (a *API) streamEvents(ctx context.Context, rq *request, in *eventsInput, q event.Query) (*eventsOutput, error) {
	from, name := "query", "cursor"
	if in.LastEventID != "" {
		q.Cursor, from, name = in.LastEventID, "header", "Last-Event-ID"
	}
	if !rq.http.URL.Query().Has("limit") {
		q.Limit = event.MaxLimit
	}
	most := a.streaming.most
	if in.Wait != "" {
		d, err := waitParam(in.Wait, maxStream)
		if err != nil {
			return nil, err
		}
		most = min(most, d)
	}
	release, err := rq.wait()
	if err != nil {
		return nil, err
	}
	s := &eventStream{api: a, rq: rq, until: time.Now().Add(most)}
	if end, ok := ctx.Deadline(); ok && end.Add(-waitSlack).Before(s.until) {
		s.until = end.Add(-waitSlack)
	}
	if s.follower, err = a.cfg.Events.Follow(ctx, q); err == nil {
		s.steps, s.more, err = s.follower.Next(ctx, 0)
	}
	if err != nil {
		release()
		return nil, cursorProblem(err, from, name)
	}
	return &eventsOutput{func(c huma.Context) {
		defer release()
		s.answer(ctx, c)
	}}, nil
}

// eventStream is one stream under way.
type eventStream struct {
	api      *API
	rq       *request
	follower *event.Follower
	until    time.Time
	steps    []event.Step // read and not yet sent
	more     bool

	w       http.ResponseWriter
	control *http.ResponseController
	whole   bool // it is sent when it is whole
	size    int  // bytes written
	wroteAt time.Time
	askedAt time.Time
}

// answer writes the head and the events until the stream ends.
func (s *eventStream) answer(ctx context.Context, c huma.Context) {
	s.w = c.BodyWriter().(http.ResponseWriter) // humago's is
	s.control = http.NewResponseController(s.w)
	s.w.Header().Set("Content-Type", mediaStream)
	s.w.Header().Set("X-Accel-Buffering", "no") // nginx would keep events back
	s.w.WriteHeader(http.StatusOK)
	if s.rq.http.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-s.api.streaming.ending:
		case <-ctx.Done():
		}
	}()
	s.askedAt = time.Now()
	if err := s.write("retry: %d\n\n", s.api.streaming.retry.Milliseconds()); err != nil {
		return
	}
	if err := s.flush(); errors.Is(err, http.ErrNotSupported) {
		s.whole = true
		s.until = earlier(s.until, time.Now().Add(s.api.cfg.MaxWait))
	} else if err != nil {
		return
	}
	if err := s.run(ctx); err != nil && ctx.Err() == nil {
		s.tell(ctx, err)
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(s.api.streaming.patience)) // for the end of the answer
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// errGone: nobody reads on, or not fast enough.
var errGone = errors.New("the client is gone")

// run sends events until it is time to end. Nothing is read ahead of what is
// sent: a slow client costs one page.
func (s *eventStream) run(ctx context.Context) error {
	for {
		sent := len(s.steps) > 0
		full, err := s.send()
		if err != nil {
			return err
		}
		left := time.Until(s.until)
		if ctx.Err() != nil || full || s.whole && sent && !s.more {
			return nil
		}
		if left <= 0 {
			return s.rest(ctx)
		}
		if time.Since(s.askedAt) >= s.api.streaming.alive {
			s.askedAt = time.Now()
			if err := s.rq.stillAllowed(ctx); err != nil {
				return err
			}
		}
		wait := left
		if !s.whole {
			if time.Since(s.wroteAt) >= s.api.streaming.alive {
				if err := s.keepAlive(ctx); err != nil {
					return err
				}
			}
			wait = min(left, max(s.api.streaming.alive-time.Since(s.wroteAt), time.Millisecond))
		}
		if s.steps, s.more, err = s.follower.Next(ctx, wait); err != nil {
			return err
		}
	}
}

// send writes the events that were read. full: the document may not get longer.
func (s *eventStream) send() (full bool, err error) {
	if len(s.steps) == 0 {
		return false, nil
	}
	for _, step := range s.steps {
		b, err := json.Marshal(step.Event) // without line breaks
		if err != nil {
			return false, fmt.Errorf("encode event %s: %w", step.Event.ID, err)
		}
		if err := s.write("id: %s\ndata: %s\n\n", step.Cursor, b); err != nil {
			return false, err
		}
		if s.whole && s.size >= s.api.streaming.bytes {
			return true, nil
		}
	}
	s.steps = nil
	return false, s.flush()
}

// keepAlive shows the client, and what stands between, that the stream is alive,
// and takes its cursor past what did not match.
func (s *eventStream) keepAlive(ctx context.Context) error {
	if err := s.write(": keep-alive\n\n"); err != nil {
		return err
	}
	if err := s.rest(ctx); err != nil {
		return err
	}
	return s.flush()
}

// rest moves the client's cursor past what was looked at and did not match, by a
// block that has an id alone.
func (s *eventStream) rest(ctx context.Context) error {
	if !s.follower.Passed() {
		return nil
	}
	cursor, err := s.follower.Cursor(ctx)
	if err != nil {
		return err
	}
	return s.write("id: %s\n\n", cursor)
}

// write writes a part within the client's patience.
func (s *eventStream) write(format string, args ...any) error {
	s.wroteAt = time.Now()
	_ = s.control.SetWriteDeadline(s.wroteAt.Add(s.api.streaming.patience)) // a gateway's recorder has none
	n, err := fmt.Fprintf(s.w, format, args...)
	s.size += n
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// flush sends what was written. Between events no write is due: on HTTP/2 a
// deadline that passes then would end the stream.
func (s *eventStream) flush() error {
	if s.whole {
		return nil
	}
	err := s.control.Flush()
	_ = s.control.SetWriteDeadline(time.Time{}) // a gateway's recorder has none
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// tell says why the stream ends early, as an event of its own name: a client that
// comes back with its last id gets the same as an answer.
func (s *eventStream) tell(ctx context.Context, err error) {
	if errors.Is(err, errGone) {
		return
	}
	p := *problemOf(err)
	p.Instance, p.CorrelationID = s.rq.http.URL.Path, s.rq.correlation
	if p.Status >= http.StatusInternalServerError {
		s.api.log.ErrorContext(ctx, "event stream failed", "err", err, "correlation_id", s.rq.correlation)
	}
	b, err := json.Marshal(&p)
	if err == nil {
		err = s.write("event: problem\ndata: %s\n\n", b)
	}
	if err == nil {
		_ = s.flush() // the stream is over either way
	}
}
