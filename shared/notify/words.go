package notify

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// add takes over what came of a word at one of several Alertmanagers. It is taken when all
// of them took it: to those that did, the next time is only one more. Of what failed it
// keeps that of the first by its place among them, and rather that of one that was asked.
func (w *word) add(r *target, to endpoint, more answer) {
	more.at = to.at
	if !more.taken() && len(r.URLs) > 1 {
		more.err = clip(to.name+": "+more.err, maxError)
	}
	pause, until := min(w.said.pause, more.pause), sooner(w.said.until, more.until) // the first that may be asked again is
	if d := more.weight() - w.said.weight(); d > 0 || d == 0 && more.at < w.said.at {
		w.said = more
	}
	w.said.pause, w.said.until = pause, until
}

func newWord(d *Delivery) *word { return &word{d: d, said: answer{pause: maxHold, at: MaxURLs}} }

// ends tells whether a message says of an alert what the word does: that it is over, since
// the same time.
func (w *word) ends(d *Delivery) bool {
	x, y := w.d.Push.EndsAt, d.Push.EndsAt
	return x != nil && y != nil && x.Equal(*y)
}

// weight orders what came of a message at several Alertmanagers: the heaviest is told.
func (a *answer) weight() int {
	switch {
	case a.taken():
		return 0
	case a.cut:
		return 1
	case a.notAsked:
		return 2
	}
	return 3
}

// push has alerts be told to all of a receiver's Alertmanagers: at once to those that have
// answered what they were told before, to others when they have, and not to those that are
// held. It keeps what came of them; what not all have answered within patience is settled
// when they have.
func (s *Service) push(ctx context.Context, h *held, r *target, due []*Delivery) error {
	if err := s.refresh(ctx, r, due); err != nil {
		return err
	}
	var ws []*word
	all := r.endpoints()
	for _, d := range due {
		d.Waits = false                                     // it is asked now
		if w := h.asks.words[d.ID]; w != nil && w.ends(d) { // those that know it need not be told again
			w.d, ws = d, append(ws, w)
			continue
		}
		w := newWord(d)
		h.asks.words[d.ID] = w
		for _, to := range all {
			h.asks.put(to, w)
		}
		ws = append(ws, w)
	}
	if err := s.goOn(ctx, h, r); err != nil {
		return err
	}
	late := time.NewTimer(s.waits())
	defer late.Stop()
	for slices.ContainsFunc(ws, func(w *word) bool { return len(w.open) > 0 }) {
		select {
		case a := <-h.asks.replies.c:
			h.asks.replies.keep(a)
			if err := s.goOn(ctx, h, r); err != nil {
				return err
			}
		case <-late.C:
			ws = slices.DeleteFunc(ws, func(w *word) bool { return len(w.open) == 0 })
			return each(ws, func(w *word) error { return s.postpone(ctx, r, w) })
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// goOn takes over the replies that are there, and tells each Alertmanager what there is for
// it that may be told. What one missed that failed, or was held, it is told when its hold is
// over, however long another takes; a word that waits for none else is settled, and is due
// again then.
func (s *Service) goOn(ctx context.Context, h *held, r *target) error {
	var answered []*word
	note := func(w *word, to endpoint, a answer) {
		if h.asks.words[w.d.ID] != w {
			return // there is a later word of it
		}
		w.open = slices.DeleteFunc(w.open, func(e endpoint) bool { return e.url == to.url })
		if a.taken() || a.refused() || a.cut {
			w.add(r, to, a)
		} else {
			h.asks.miss(to, w, a)
		}
		answered = append(answered, w)
	}
	for {
		a, ok := h.asks.replies.next()
		if !ok {
			break
		}
		h.asks.done(a.request)
		if ctx.Err() != nil {
			return nil // it was cut off
		}
		if a.cut {
			a.answer = answer{err: "it had no time to answer", cut: true}
		} else {
			s.answered(ctx, h, r, &a)
		}
		for _, w := range a.words {
			note(w, a.to, a.answer)
		}
	}
	now, enough := s.now(), s.room(ctx, r) > 0
	for _, to := range r.endpoints() {
		if until := h.lane.heldUntil(to, now); !until.IsZero() {
			for _, w := range h.asks.are(h.asks.queue(to).all()) {
				note(w, to, notAsked(h.lane.Holds[to.url].Error, until))
			}
		} else if enough {
			s.tellOne(ctx, h, r, to, now, note)
		}
	}
	over := h.answeredByAll(r, answered, now)
	cut := slices.ContainsFunc(over, func(w *word) bool { return w.said.cut })
	err := each(over, func(w *word) error {
		if w.said.cut {
			return nil // it is due again, since it was postponed
		}
		return unlessOther(s.settle(ctx, r, w.d, w.said), w.d)
	})
	// Whoever has the lane next need not wait for what they were postponed to.
	h.asks.dropped = h.asks.dropped || cut || err != nil
	return err
}

func notAsked(since string, until time.Time) answer {
	return answer{err: "not asked: " + since, notAsked: true, until: until}
}

// answered takes over what one Alertmanager answered. That it fails on a part of what it did
// not take before says nothing of the rest, where it took something since it failed; where it
// did not, that counts, but holds back nothing else. Of one that fails at random, some failures
// in a row say nothing either.
func (s *Service) answered(ctx context.Context, h *held, r *target, a *reply) {
	there, was, d := a.answer.there(r.Kind), h.lane.Holds[a.to.url], h.asks.doubts.of(r, a.to)
	if !there && !a.suspects {
		d.misses++
	}
	fails := !a.suspects && d.misses > d.grace(s.now()) || a.failing && was.Fails > 0
	if there || fails || a.answer.pause > 0 {
		s.noteAnswers(ctx, h, r, a.to, []answer{a.answer})
		if is := h.lane.Holds[a.to.url]; a.suspects && is.Fails > 0 && !is.Asked {
			is.Until = was.Until
			h.lane.Holds[a.to.url] = is
		}
		h.news = h.news || h.lane.Holds[a.to.url] != was
	}
	s.doubt(ctx, h, r, a)
}

// tellOne tells an Alertmanager that may be asked what there is for it: one request of what
// nothing is known of, and parts of what it did not take before.
func (s *Service) tellOne(ctx context.Context, h *held, r *target, to endpoint, now time.Time, note func(*word, endpoint, answer)) {
	q, doubt := h.asks.queue(to), h.asks.doubts.of(r, to)
	waits := func(w *word) bool { return !doubt.waits(w.d.ID, now).IsZero() }
	h.asks.reopen(to, func(w *word) bool { return !waits(w) }, func(w *word) bool { return s.nextTry(r, w.d, now, 0, time.Time{}).IsZero() })
	ids, as := doubt.spent(q, now)
	for _, w := range h.asks.are(ids) {
		note(w, to, as)
	}
	doubt.recall(h.asks.are(q.ids), now)
	for _, w := range h.asks.are(q.take(len(q.ids), func(id string) bool { return !doubt.waits(id, now).IsZero() })) {
		note(w, to, notAsked(cmp.Or(doubt.parts[w.d.ID].err, doubt.err), doubt.waits(w.d.ID, now)))
	}
	suspects, busy, flies := h.asks.to(to)
	failing, most := h.lane.Holds[to.url].Fails > 0, doubt.most(now)
	if failing {
		most = 1
	}
	if !busy {
		if ws := h.asks.are(doubt.clean(q, s.pushAtMost(), flies)); len(ws) > 0 {
			s.ask(ctx, h.asks, r, &request{to: to, words: ws, failing: failing}, now)
		}
	}
	for ; suspects < most; suspects++ {
		ws := h.asks.are(doubt.part(q, s.pushAtMost(), flies, now))
		if len(ws) == 0 {
			return
		}
		s.ask(ctx, h.asks, r, &request{to: to, words: ws, suspects: true, failing: failing}, now)
	}
}

// answeredByAll takes those of the words out that no Alertmanager has still to answer.
func (h *held) answeredByAll(r *target, ws []*word, now time.Time) (out []*word) {
	for _, w := range ws {
		if len(w.open) > 0 || h.asks.words[w.d.ID] != w {
			continue
		}
		delete(h.asks.words, w.d.ID)
		for _, to := range r.endpoints() {
			if a, is := w.missed[to.url]; is {
				a.until = h.lane.heldUntil(to, now)
				if at := h.asks.doubts.of(r, to).waits(w.d.ID, now); at.After(a.until) {
					a.until = at
				}
				if a.until.IsZero() {
					a.until = now.Add(lookAgain) // it could be asked, but for the time that is left
				}
				w.add(r, to, a)
			}
		}
		out = append(out, w)
	}
	return out
}

// unlessOther is the error of keeping what came of a message, unless there is another in
// its place by now.
func unlessOther(err error, d *Delivery) error {
	if c, ok := errors.AsType[*ledger.ConflictError](err); ok && slices.Contains(c.Keys, record.DeliveryKey(d.Receiver, d.ID)) {
		return nil
	}
	return err
}

// postpone has a word's message be due in a while, should nobody be there to take over what
// comes of it: the process may end before.
func (s *Service) postpone(ctx context.Context, r *target, w *word) error {
	n, late := *w.d, newWord(w.d)
	late.add(r, w.open[0], answer{err: "it has not answered yet", cut: true})
	for _, to := range r.endpoints() {
		if a, is := w.missed[to.url]; is {
			late.add(r, to, a)
		}
	}
	n.Next, n.LastError, n.Waits = s.now().Add(r.postponed()), late.said.err, true
	err := s.keepDelivery(ctx, r, w.d, &n)
	n.version++
	n.LastError, n.Waits = w.d.LastError, false // what came of it is settled as if nothing had been said
	if err == nil {
		w.d = &n
	}
	return unlessOther(err, w.d)
}

// each calls f for each, several at once, and joins the errors.
func each[T any](all []T, f func(T) error) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, perHost)
		errs  = make([]error, len(all))
	)
	for i, x := range all {
		slots <- struct{}{}
		wg.Go(func() { defer func() { <-slots }(); errs[i] = f(x) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// tryPush tells all of a receiver's Alertmanagers of an alert, once, and waits for them.
func (s *Service) tryPush(ctx context.Context, r *target, p *push) answer {
	all, w := r.endpoints(), newWord(&Delivery{Push: p})
	if len(all) == 0 {
		return answer{err: "it has no URL"}
	}
	answers := make([]answer, len(all))
	var wg sync.WaitGroup
	for i, to := range all {
		wg.Go(func() { answers[i] = s.pushTo(ctx, r, to, []*Delivery{w.d}, s.now()) })
	}
	wg.Wait()
	for i, to := range all {
		w.add(r, to, answers[i])
	}
	return w.said
}
