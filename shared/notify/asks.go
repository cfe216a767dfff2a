package notify

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// patience is for how long a batch holds up the next one, and for how long one that is
	// refused is tried in parts, in at most refusedTries requests. An Alertmanager that
	// takes longer to answer has its whole timeout, and gets nothing else meanwhile: what
	// is told of an alert does not overtake what was told before.
	patience     = 5 * time.Second
	refusedTries = 64
	// lookAgain is how often it is looked for something new to send while nothing but
	// such answers is waited for.
	lookAgain = time.Second
	// missedAgain is when what an Alertmanager missed while it had not answered is due, if
	// it is not told sooner.
	missedAgain = 10 * time.Second
)

// waits is patience.
func (s *Service) waits() time.Duration { return cmp.Or(s.patience, patience) }

// asks are the requests to Alertmanagers that are not answered yet. They are one
// goroutine's; only replies is written to by others.
type asks struct {
	out     map[string]context.CancelFunc // by URL, with what cuts it off
	replies chan reply
	early   []reply // that await took from replies
	// missed has the messages that fell due meanwhile, by URL.
	missed map[string][]string
}

// reply is what one Alertmanager answers to a batch.
type reply struct {
	to      endpoint
	of      *batch
	answers []answer
	// cut: the request was cut off, and what came of it is not known.
	cut bool
}

func newAsks() *asks {
	return &asks{out: map[string]context.CancelFunc{}, replies: make(chan reply, MaxURLs), missed: map[string][]string{}}
}

// waitsFor tells whether an endpoint has not answered yet.
func (a *asks) waitsFor(to endpoint) bool { return a.out[to.url] != nil }

// ask begins a request to one Alertmanager, whose reply comes by replies.
func (s *Service) ask(ctx context.Context, a *asks, r *target, to endpoint, b *batch, now time.Time) {
	within := 2*r.timeout() + s.waits() // the last part of what is refused begins within patience
	if at, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(at)-keepWithin)
	}
	one, cancel := context.WithTimeout(ctx, within)
	a.out[to.url] = cancel
	a.missed[to.url] = slices.DeleteFunc(a.missed[to.url], func(id string) bool {
		return slices.ContainsFunc(b.due, func(d *Delivery) bool { return d.ID == id })
	})
	b.open++
	due := slices.Clone(b.due)
	go func() {
		answers := s.pushTo(one, r, to, due, now)
		a.replies <- reply{to, b, answers, one.Err() != nil}
	}()
}

// take returns a reply that is there.
func (a *asks) take() (reply, bool) {
	if len(a.early) > 0 {
		x := a.early[0]
		a.early = a.early[1:]
		return x, true
	}
	select {
	case x := <-a.replies:
		return x, true
	default:
		return reply{}, false
	}
}

// over notes that a reply is there.
func (a *asks) over(to endpoint) {
	a.out[to.url]()
	delete(a.out, to.url)
}

// await waits until there is a reply, or there may be something new to send.
func (a *asks) await(ctx context.Context) {
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	select {
	case x := <-a.replies:
		a.early = append(a.early, x)
	case <-again.C:
	case <-ctx.Done():
	}
}

// miss notes what falls due while an Alertmanager has not answered: it is told that when it
// has.
func (a *asks) miss(to endpoint, due []*Delivery) {
	ids := a.missed[to.url]
	for _, d := range due {
		if d != nil && !slices.Contains(ids, d.ID) {
			ids = append(ids, d.ID)
		}
	}
	a.missed[to.url] = ids
}

// only cuts off what goes anywhere else. What is cut off is replied to.
func (a *asks) only(to []endpoint) {
	for url, cancel := range a.out {
		if !slices.ContainsFunc(to, func(e endpoint) bool { return e.url == url }) {
			cancel()
		}
	}
}

// drop cuts off everything, and forgets it; those messages are due again, at the latest
// when they were postponed to.
func (a *asks) drop() {
	a.only(nil)
	for range len(a.out) - len(a.early) {
		<-a.replies
	}
	clear(a.out)
	clear(a.missed)
	a.early = nil
}
