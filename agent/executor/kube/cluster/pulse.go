package cluster

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// How soon a server is missed that takes connections and answers nothing, such as
// one whose process hangs or whose packets get lost: requests wait 8 s and watches
// wait for ever, and client-go gives a connection up after 45 s. Two questions in a
// row go without an answer before it is said: within 10 s (pulseQuiet + 2 pulseWithin).
const (
	pulseQuiet  = 4 * time.Second // without any answer, after which it is asked
	pulseWithin = 3 * time.Second // how long an answer may take
)

// Pulse tells whether the API server answers. It takes every answer that the agent
// gets that came out of etcd, and what its watches stream; while there is none it asks
// for one. All that
// wait share it, so that it costs one cheap question now and then, however many they
// are, and none while others are answered. Nothing is asked while nobody listens. A
// nil Pulse, of a Cluster that was made by hand, knows of no silence.
type Pulse struct {
	// ask asks once whether the server can serve. It goes past the client's rate
	// limiter, whose limit is no silence.
	ask func(ctx context.Context) error

	mu        sync.Mutex
	heard     time.Time     // the last answer to anybody
	silent    *Unanswered   // nil: it answers
	changed   chan struct{} // closed when silent is another one
	listeners int
	stop      context.CancelFunc // of the questions
}

// NewPulse makes the Pulse of a server that is asked with ask, whose context ends
// when it has taken too long. It was heard just now.
func NewPulse(ask func(ctx context.Context) error) *Pulse {
	return &Pulse{ask: ask, heard: time.Now(), changed: make(chan struct{})}
}

// Listen has the server asked, where nobody is answered, until stop is called.
func (p *Pulse) Listen() (stop func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners++; p.listeners == 1 {
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		go p.run(ctx)
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.listeners--; p.listeners == 0 {
			p.stop()
			p.say(nil) // nobody asks any more
		}
	})
}

// State says since when and why the server does not answer; nil: it does. changed is
// closed when that is another one. It is for those who listen.
func (p *Pulse) State() (silent *Unanswered, changed <-chan struct{}) {
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent, p.changed
}

// Tell listens, and tells the state now and after each change, until ctx ends.
func (p *Pulse) Tell(ctx context.Context, tell func(silent *Unanswered)) {
	if p == nil {
		return
	}
	defer p.Listen()()
	for {
		silent, changed := p.State()
		tell(silent)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// note takes the answer to any request, and what it streams from then on, as far as it
// shows that the server can serve: one whose etcd is away goes on answering much. A
// watch is one answer that lasts.
func (p *Pulse) note(r *http.Response) {
	switch {
	case r.StatusCode >= http.StatusMultipleChoices || r.StatusCode == http.StatusSwitchingProtocols || !ofStore(r.Request):
	case isWatch(r.Request):
		r.Body = &stream{r.Body, p, changesOf(r)}
	default:
		p.hear()
		r.Body = &stream{r.Body, p, nil}
	}
}

// stream is the body of an answer.
type stream struct {
	io.ReadCloser
	of    *Pulse
	watch *changes // nil: it is none
}

func (s *stream) Read(b []byte) (n int, err error) {
	if n, err = s.ReadCloser.Read(b); n > 0 && (s.watch == nil || s.watch.in(b[:n])) {
		s.of.hear()
	}
	return n, err
}

func (p *Pulse) hear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
	p.say(nil)
}

// say makes the state another one.
func (p *Pulse) say(u *Unanswered) {
	if u == p.silent || u != nil && p.silent != nil && u.Error() == p.silent.Error() {
		return
	}
	p.silent = u
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Pulse) last() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard
}

// missed says that questions went without an answer, the last of which was asked at
// a time, unless somebody was answered since.
func (p *Pulse) missed(ctx context.Context, asked time.Time, u *Unanswered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil && !p.heard.After(asked) {
		p.say(u)
	}
}

// run asks until ctx ends.
func (p *Pulse) run(ctx context.Context) {
	wait := time.NewTimer(pulseQuiet - time.Since(p.last()))
	defer wait.Stop()
	var since time.Time // the first question without an answer was asked; zero: none was
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		asked := time.Now()
		if left := pulseQuiet - asked.Sub(p.last()); left > 0 {
			since = time.Time{}
			wait.Reset(left)
			continue
		}
		err := p.once(ctx)
		if err == nil {
			p.hear()
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || p.last().After(asked): // whoever was answered
			since = time.Time{}
			wait.Reset(pulseQuiet)
			continue
		case since.IsZero(): // one answer may get lost
			since = asked
		default:
			p.missed(ctx, asked, &Unanswered{Since: since, Err: err})
		}
		wait.Reset(max(0, pulseWithin-time.Since(asked)))
	}
}

func (p *Pulse) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pulseWithin)
	defer cancel()
	return p.ask(ctx)
}
