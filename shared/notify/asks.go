package notify

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// patience is for how long a round waits for answers to what it told. An Alertmanager
	// that takes longer has its whole timeout, and is told what else there is when it has
	// answered: what is told of an alert does not overtake what was told before.
	patience = time.Second
	// lookAgain is how often it is looked for something new to send while nothing but
	// answers is waited for.
	lookAgain = time.Second
)

// waits is patience.
func (s *Service) waits() time.Duration { return cmp.Or(s.patience, patience) }

// word is a message to the Alertmanagers of a receiver, as long as one of them has not
// answered it.
type word struct {
	d    *Delivery
	said answer     // what came of it so far
	open []endpoint // the Alertmanagers that have not answered, those among them that were not told yet
	// missed has what came of it where it failed, or was not asked, by URL. There it is told
	// again when that may be asked, as long as another has not answered.
	missed map[string]answer
}

// asks are the requests to Alertmanagers that are not answered yet, and what is to be told
// when they are. They are one goroutine's; only replies is written to by others.
type asks struct {
	out     []*request
	replies inbox[reply]
	// words has the messages that are not answered by all, by id: the last of each.
	words map[string]*word
	// queues has what is to be told, by URL.
	queues map[string]*queue
	doubts *doubts
	// dropped: there were messages that not all had answered, or whose answer was not kept.
	dropped bool
}

// request is one to an Alertmanager that is not answered yet.
type request struct {
	to     endpoint
	words  []*word
	cancel context.CancelFunc
	// suspects: it is a part of what was not taken before (doubt).
	suspects bool
	// failing: the Alertmanager had taken nothing since it failed when this began.
	failing bool
}

// reply is what one Alertmanager answers.
type reply struct {
	*request
	answer answer
	// cut: the request was cut off, and what came of it is not known.
	cut bool
}

func newAsks() *asks {
	a := &asks{replies: newInbox[reply](MaxURLs * (1 + suspectsAtOnce)), doubts: &doubts{}}
	a.forget()
	return a
}

// to are the requests that an endpoint has not answered yet: how many are of suspects, and
// whether there is another, and the ids of their messages.
func (a *asks) to(to endpoint) (suspects int, clean bool, ids map[string]bool) {
	ids = map[string]bool{}
	for _, rq := range a.out {
		if rq.to.url != to.url {
			continue
		}
		if rq.suspects {
			suspects++
		} else {
			clean = true
		}
		for _, w := range rq.words {
			ids[w.d.ID] = true
		}
	}
	return suspects, clean, ids
}

// put has a word be told to an endpoint, in the place of an earlier one of the message.
func (a *asks) put(to endpoint, w *word) {
	w.open = append(w.open, to)
	a.queue(to).put(w.d.ID)
}

// miss has a word be told to an endpoint later that did not take it, or was not asked.
func (a *asks) miss(to endpoint, w *word, said answer) {
	if w.missed == nil {
		w.missed = map[string]answer{}
	}
	if _, failed := w.missed[to.url]; !failed || !said.notAsked {
		w.missed[to.url] = said
	}
	a.queue(to).put(w.d.ID)
}

// reopen has what an endpoint missed that may be asked now count as not answered, but for
// what is given up.
func (a *asks) reopen(to endpoint, may, ended func(*word) bool) {
	a.queue(to).only(func(id string) bool {
		w := a.words[id]
		if w == nil {
			return false
		}
		if _, is := w.missed[to.url]; is && may(w) {
			if ended(w) {
				return false
			}
			delete(w.missed, to.url)
			w.open = append(w.open, to)
		}
		return true
	})
}

// are finds words that were taken out of a queue.
func (a *asks) are(ids []string) (ws []*word) {
	for _, id := range ids {
		if w := a.words[id]; w != nil {
			ws = append(ws, w)
		}
	}
	return ws
}

// queue is what is to be told to an endpoint: ids of words, each once.
type queue struct {
	ids []string
	has map[string]bool
}

func (a *asks) queue(to endpoint) *queue {
	if a.queues[to.url] == nil {
		a.queues[to.url] = &queue{has: map[string]bool{}}
	}
	return a.queues[to.url]
}

func (q *queue) put(id string) {
	if !q.has[id] {
		q.ids, q.has[id] = append(q.ids, id), true
	}
}

// take takes out the first that are so.
func (q *queue) take(most int, is func(id string) bool) (out []string) {
	q.only(func(id string) bool {
		if len(out) == most || !is(id) {
			return true
		}
		out = append(out, id)
		return false
	})
	return out
}

// all takes all out.
func (q *queue) all() []string { return q.take(len(q.ids), func(string) bool { return true }) }

// only keeps those that are so.
func (q *queue) only(is func(id string) bool) {
	q.ids = slices.DeleteFunc(q.ids, func(id string) bool {
		if is(id) {
			return false
		}
		delete(q.has, id)
		return true
	})
}

// ask begins a request to one Alertmanager, whose reply comes by replies.
func (s *Service) ask(ctx context.Context, a *asks, r *target, rq *request, now time.Time) {
	within := 2 * r.timeout() // it is over before, but for a deadline
	if at, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(at)-keepWithin)
	}
	one, cancel := context.WithTimeout(ctx, within)
	rq.cancel = cancel
	a.out = append(a.out, rq)
	due := make([]*Delivery, len(rq.words))
	for i, w := range rq.words {
		due[i] = w.d
	}
	go func() {
		said := s.pushTo(one, r, rq.to, due, now)
		a.replies.c <- reply{rq, said, one.Err() != nil}
	}()
}

// done notes that a reply is there.
func (a *asks) done(rq *request) {
	rq.cancel()
	a.out = slices.DeleteFunc(a.out, func(x *request) bool { return x == rq })
}

// forget forgets what is told, and is to be: what comes of it is nobody's any more.
func (a *asks) forget() { a.words, a.queues = map[string]*word{}, map[string]*queue{} }

// only cuts off what goes anywhere else. What is cut off is replied to.
func (a *asks) only(to []endpoint) {
	for _, rq := range a.out {
		if !slices.ContainsFunc(to, func(e endpoint) bool { return e.url == rq.to.url }) {
			rq.cancel()
		}
	}
}

// lost tells whether there are messages, or were, that nobody takes the answers to.
func (a *asks) lost() bool { return a.dropped || len(a.words) > 0 }

// drop cuts off and forgets everything; those messages are due again when the lane is left,
// at the latest when they were postponed to.
func (a *asks) drop() {
	a.dropped = a.lost()
	a.only(nil)
	a.replies.drain(len(a.out))
	for _, rq := range a.out {
		rq.cancel()
	}
	a.out = nil
	a.forget()
}
