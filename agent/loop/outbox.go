package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	reportCommands = 200         // commands a report, under the plane's limit
	draftCommands  = 2000        // commands that wait while the plane is away
	draftNotes     = 48          // notes a report, under the plane's 50
	reportSteps    = 90          // step reports a report, under the plane's 100
	lazyEvery      = time.Second // unless the plane says otherwise
	lazyMost       = 30 * time.Second
)

// errRefused: the plane will not take a report of this run.
var errRefused = errors.New("the plane refuses the report")

type stepAt struct {
	protocol.StepReport
	at time.Duration
}

type commandAt struct {
	protocol.Command
	start, end time.Duration
	sent       bool // a copy left already, while it was in flight
}

// draft is what happened and was not sent yet.
type draft struct {
	steps    []stepAt
	commands []*commandAt
	notes    []protocol.Note
	progress *operation.Progress
	settled  bool
	final    *protocol.Final
}

func (d *draft) empty() bool {
	return d.progressAlone() && d.progress == nil
}

// progressAlone tells whether it holds nothing but progress.
func (d *draft) progressAlone() bool {
	return len(d.steps) == 0 && len(d.commands) == 0 && len(d.notes) == 0 && !d.settled && d.final == nil
}

// frozen is a report that has its number: it is resent unchanged until it is
// answered.
type frozen struct {
	n      int64
	covers int64 // everything added up to here is in it or was in an earlier one
	draft  draft
}

type outboxState int

const (
	idle    outboxState = iota
	queued              // waits for a worker
	busy                // in a call
	backing             // waits to be sent again
)

// outbox is what one run still has to tell: a report under way, and the draft
// of the next, which grows meanwhile.
type outbox struct {
	operation   string
	generation  int64
	correlation string
	mono        func() time.Duration
	pace        func() pace
	push        func(*outbox) // hands it to the reporter

	mu       sync.Mutex
	draft    draft
	frozen   *frozen
	lastN    int64
	seq      int64 // counts additions
	urgent   int64 // what must go without waiting
	acked    int64
	err      error // why nothing more is taken
	state    outboxState
	tries    int
	lazy     bool // a lazy flush is due
	told     bool // the plane heard the final report, too late for it to count
	stripped bool // its final report was made a plain one
	changed  chan struct{}
	dropped  int
	progress *operation.Progress // the newest, for renewals
}

func newOutbox(a *protocol.Assignment, mono func() time.Duration, pace func() pace, push func(*outbox)) *outbox {
	return &outbox{
		operation: a.Operation, generation: a.Generation, correlation: a.CorrelationID,
		mono: mono, pace: pace, push: push, changed: make(chan struct{}),
	}
}

// add changes the draft and returns the number to wait for. With flush it goes
// as soon as a call is free, else with the next report or at the plane's pace.
func (o *outbox) add(flush bool, f func(*draft)) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.draft)
	o.seq++
	if o.err != nil { // it is kept, and not sent from here
		return o.seq
	}
	if flush || len(o.draft.commands) >= reportCommands {
		o.flush()
	} else if p := o.pace(); !o.lazy && !(p.rides && o.draft.progressAlone()) {
		o.lazy = true
		time.AfterFunc(p.untilFlush(o.mono()), o.lazyFlush)
	}
	return o.seq
}

func (o *outbox) lazyFlush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lazy = false
	if o.err == nil && !o.draft.empty() {
		o.flush()
	}
}

func (o *outbox) flush() {
	o.urgent = o.seq
	if o.state == idle {
		o.state = queued
		o.push(o)
	}
}

// wait returns nil when the plane has acknowledged seq, or why it never will.
func (o *outbox) wait(ctx context.Context, seq int64) error {
	for {
		o.mu.Lock()
		acked, err, changed := o.acked, o.err, o.changed
		o.mu.Unlock()
		switch {
		case acked >= seq:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// landed waits until no call carries the outbox, and tells whether the plane has
// acknowledged seq. A run whose lease is over asks it before it gives its final
// report up: the answer may be on its way. Whatever ends a call leaves busy and
// notifies, or this waits out its context.
func (o *outbox) landed(ctx context.Context, seq int64) bool {
	for {
		o.mu.Lock()
		acked, state, changed := o.acked, o.state, o.changed
		o.mu.Unlock()
		if acked >= seq || state != busy {
			return acked >= seq
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

func (o *outbox) step(flush bool, r protocol.StepReport) int64 {
	r.Detail = detail(r.Detail)
	return o.add(flush, func(d *draft) { d.steps = append(d.steps, stepAt{r, o.mono()}) })
}

func (o *outbox) note(n protocol.Note) {
	n.Detail = detail(n.Detail)
	o.add(false, func(d *draft) {
		if len(d.notes) < draftNotes {
			d.notes = append(d.notes, n)
		}
	})
}

func (o *outbox) tell(p operation.Progress) {
	p.Message, p.Unit = detail(p.Message), cut(clean(p.Unit), 64)
	o.add(false, func(d *draft) { d.progress, o.progress = &p, &p })
}

// takeProgress is what rides along a renewal.
func (o *outbox) takeProgress() *operation.Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.progress
	if o.progress = nil; o.draft.progress == p {
		o.draft.progress = nil
	}
	return p
}

// untold gives back progress that the plane did not take, unless there is newer.
func (o *outbox) untold(p *operation.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p != nil && o.progress == nil {
		o.progress = p
	}
}

// begin records a command in flight.
func (o *outbox) begin(c protocol.Command) *commandAt {
	at := &commandAt{Command: c, start: o.mono()}
	o.add(false, func(d *draft) { o.addCommand(d, at) })
	return at
}

// end records its response.
func (o *outbox) end(c *commandAt, category, output string) {
	output = redact(output, protocol.MaxOutputBytes)
	o.add(false, func(d *draft) {
		if c.sent { // it left while in flight: this one completes it
			c = &commandAt{Command: c.Command, start: c.start}
			o.addCommand(d, c)
		}
		c.Category, c.Output, c.end = category, output, o.mono()
	})
}

func (o *outbox) addCommand(d *draft, c *commandAt) {
	if len(d.commands) >= draftCommands {
		o.dropped++
		return
	}
	d.commands = append(d.commands, c)
}

// freeze returns the report to send now, or nil when there is nothing. It marks
// the outbox busy, so that no two calls carry the same operation.
func (o *outbox) freeze() *protocol.Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frozen == nil {
		if o.draft.empty() || o.err != nil {
			o.state = idle
			return nil
		}
		o.lastN++
		o.frozen = o.take(o.lastN)
	}
	o.state = busy
	r := o.render(o.frozen, o.mono())
	return &r
}

// take cuts one report off the draft: all of it, or its beginning when
// there is too much.
func (o *outbox) take(n int64) *frozen {
	d := &o.draft
	if len(d.commands) > reportCommands || len(d.steps) > reportSteps {
		c, s := min(len(d.commands), reportCommands), min(len(d.steps), reportSteps)
		f := &frozen{n: n, covers: o.acked, draft: draft{commands: markSent(d.commands[:c]), steps: d.steps[:s:s]}}
		d.commands, d.steps = d.commands[c:], d.steps[s:]
		return f
	}
	if o.dropped > 0 {
		d.notes = append(d.notes, protocol.Note{Code: "commands_dropped",
			Detail: fmt.Sprintf("%d commands were not kept while the plane was away", o.dropped)})
		o.dropped = 0
	}
	f := &frozen{n: n, covers: o.seq, draft: *d}
	f.draft.commands = markSent(d.commands)
	o.draft = draft{}
	return f
}

// markSent returns copies as they are now, and marks the originals in flight.
func markSent(cs []*commandAt) []*commandAt {
	out := make([]*commandAt, len(cs))
	for i, c := range cs {
		c.sent = true
		copied := *c
		out[i] = &copied
	}
	return out
}

func (o *outbox) render(f *frozen, now time.Duration) protocol.Report {
	r := protocol.Report{
		Operation: o.operation, Generation: o.generation, N: f.n, Notes: f.draft.notes,
		Progress: f.draft.progress, Settled: f.draft.settled, Final: f.draft.final,
	}
	for _, s := range f.draft.steps {
		s.AgoMS = ago(now, s.at)
		r.Steps = append(r.Steps, s.StepReport)
	}
	for _, c := range f.draft.commands {
		c := *c
		c.StartAgoMS = ago(now, c.start)
		if c.Category != "" {
			c.EndAgoMS = ago(now, c.end)
		}
		r.Commands = append(r.Commands, c.Command)
	}
	return r
}

func ago(now, at time.Duration) int64 { return max(now-at, 0).Milliseconds() }

// answered takes the plane's acknowledgement over.
func (o *outbox) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frozen == nil {
		return
	}
	o.acked = max(o.acked, o.frozen.covers)
	o.frozen, o.tries, o.state = nil, 0, idle
	o.notify()
	if o.err == nil && o.urgent > o.acked && !o.draft.empty() {
		o.state = queued
		o.push(o)
	}
}

// again sends the report once more after a while.
func (o *outbox) again() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		o.rest()
		return
	}
	o.tries++
	o.state = backing
	o.notify()
	time.AfterFunc(backoff(o.tries, 50*time.Millisecond, 2*time.Second), o.requeue)
}

// requeue puts it back on the reporter's lane.
func (o *outbox) requeue() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		o.rest()
		return
	}
	o.state = queued
	o.push(o)
}

// close ends the outbox: nothing more is taken or sent. A call under way goes on
// and its answer still counts.
func (o *outbox) close(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		o.notify()
	}
}

// rest is the state in which nothing is sent and nothing will be.
func (o *outbox) rest() {
	o.state = idle
	o.notify()
}

func (o *outbox) notify() {
	close(o.changed)
	o.changed = make(chan struct{})
}
