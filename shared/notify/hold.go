package notify

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// hold says of an endpoint that it fails, or asked for a pause. Of a
// cluster's Alertmanagers it keeps no other waiting.
type hold struct {
	Fails int       `json:"fails,omitempty"` // how often in a row it took nothing
	Until time.Time `json:"until"`           // when it is tried again
	Error string    `json:"error"`
	// Asked: it asked for the pause.
	Asked bool `json:"asked,omitempty"`
	// Refused counts what a webhook refused since it took anything.
	Refused int `json:"refused,omitempty"`
}

// probed tells whether the endpoint is sent a few messages at a time, when it is tried again:
// it fails, or had enough.
func (h hold) probed() bool { return h.Error != "" }

// Held is an endpoint of a receiver that fails, or asked for a pause.
type Held struct {
	URL   string `json:"url"`
	Fails int    `json:"fails" doc:"How often in a row it took nothing; 0: it did, and asked for a pause"`
	// Until is nil where the pause is over, and whether it takes messages again is being
	// tried.
	Until *time.Time `json:"until" doc:"Until when nothing is sent there; null: it is being tried again"`
	Error string     `json:"error" doc:"The last"`
}

// endpoint is a URL that messages go to, and its name in what is told of it: a URL may hold
// what is secret.
type endpoint struct {
	url, name string
	at        int // among several
}

// endpoints are where a receiver's messages go, each once.
func (r *Receiver) endpoints() []endpoint {
	if r.Kind == KindWebhook {
		return []endpoint{{r.URL, "/url", 0}}
	}
	var out []endpoint
	for i, u := range r.URLs {
		if !slices.ContainsFunc(out, func(p endpoint) bool { return samePlace(p.url) == samePlace(u) }) {
			out = append(out, endpoint{u, "/urls/" + strconv.Itoa(i), i})
		}
	}
	return out
}

// failHold is for how long nothing is sent where so many rounds in a row failed. An
// Alertmanager that is back is to be told within what fires there ends by itself.
func (s *Service) failHold(kind string, fails int) time.Duration {
	most := maxFailHold
	if kind == KindAlertmanager {
		most = maxPushHold
	}
	return min(s.spread(time.Second<<min(fails, 6)), most)
}

// heldUntil is when something may be sent to an endpoint again; zero: now.
func (l *lane) heldUntil(to endpoint, now time.Time) time.Time {
	if at := l.Holds[to.url].Until; isAhead(at, now) {
		return at
	}
	return time.Time{}
}

// free tells whether there is an endpoint that something can be sent to, apart from what was
// not taken before, and if not when there is, beside those that have not answered yet.
func (h *held) free(r *target, now time.Time) (bool, time.Time) {
	var next time.Time
	for _, to := range r.endpoints() {
		if _, busy, _ := h.asks.to(to); busy {
			continue
		}
		at := h.lane.heldUntil(to, now)
		if at.IsZero() {
			return true, at
		}
		next = sooner(next, at)
	}
	return false, next
}

// loggedFails is how often in a row an endpoint takes nothing when that is logged: one that
// fails at times is told by what becomes of messages.
const loggedFails = 2

// refusedMost is how much a webhook may refuse, and take nothing meanwhile, until it counts
// as one that takes nothing. A check of signatures that fails is often answered
// with 400.
const refusedMost = 2 * webhookRound

// enoughHold is for how long nothing is sent to a webhook that took some, and had enough then,
// where it does not say until when, and when what it had enough at is due again.
const enoughHold = time.Second

// noteAnswers takes over what came of messages to an endpoint: where it took none, or asked for a
// pause, nothing is sent there for a while. One that refuses what it is told is there, but
// for a webhook that refuses all.
func (s *Service) noteAnswers(ctx context.Context, h *held, r *target, to endpoint, answers []answer) {
	was, now := h.lane.Holds[to.url], s.now()
	next, pause, failed, took := hold{Refused: was.Refused}, time.Duration(0), true, false
	enough := slices.ContainsFunc(answers, func(a answer) bool { return a.status == http.StatusTooManyRequests })
	for _, a := range answers {
		pause, took = max(pause, a.pause), took || a.taken()
		if a.there(r.Kind) || a.others {
			failed = false
		}
		if r.Kind == KindWebhook && a.refuses() {
			next.Refused++
		}
	}
	if took {
		next.Refused = 0
	}
	failed = failed || next.Refused >= refusedMost
	if failed {
		next.Fails, next.Error = was.Fails+1, answers[len(answers)-1].err
	}
	switch {
	case pause > 0:
		if next.Asked, next.Until = true, now.Add(min(pause, maxHold)); !failed {
			next.Error = "it asked for a pause"
		}
		if was.Asked && isAhead(was.Until, now) && was.Until.After(next.Until) { // it was sent before, too
			next.Until = was.Until
		}
	case was.Asked && isAhead(was.Until, now): // what it was sent before that says nothing of it
		next.Asked, next.Until, next.Error = true, was.Until, cmp.Or(next.Error, was.Error)
	case failed:
		next.Until = now.Add(s.failHold(r.Kind, next.Fails))
	case enough:
		next.Until, next.Error = now.Add(enoughHold), "answered 429"
	}
	if h.lane.Holds == nil {
		h.lane.Holds = map[string]hold{}
	}
	if delete(h.lane.Holds, to.url); next != (hold{}) {
		h.lane.Holds[to.url] = next
	}
	h.told = &r.Receiver
	h.lane.noteFailing(r, failed, next.Error, now)
	switch {
	case next.Fails == loggedFails:
		s.Logger.WarnContext(ctx, "a receiver takes nothing, and is tried again", "receiver", r.Name, "id", r.ID, "endpoint", to.name, "until", next.Until, "err", next.Error)
	case !failed && was.Fails >= loggedFails:
		s.Logger.InfoContext(ctx, "a receiver takes messages again", "receiver", r.Name, "id", r.ID, "endpoint", to.name, "failed", was.Fails)
	}
}

// Holds are the endpoints of receivers that fail, or asked for a pause, by the receiver's id,
// as they are said of it now: at most ledger.MaxWrites receivers.
func (s *Service) Holds(ctx context.Context, rs ...Receiver) (map[string][]Held, error) {
	var keys []ledger.Key
	for i := range rs {
		keys = append(keys, record.LaneKey(rs[i].ID))
	}
	items, err := s.Store.Ledger.GetMany(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	out, now := map[string][]Held{}, s.now()
	for i := range rs {
		r := &rs[i]
		it, ok := items[record.LaneKey(r.ID)]
		if !ok {
			continue
		}
		l, err := record.Decode[lane](it)
		if err != nil || l.Revision != r.Revision { // what was said before is of others
			continue
		}
		for _, to := range r.endpoints() {
			is, ok := l.Holds[to.url]
			one := Held{URL: to.url, Fails: is.Fails, Error: is.Error}
			if until := l.heldUntil(to, now); !until.IsZero() {
				one.Until = &until
			}
			if ok && (is.Fails > 0 || one.Until != nil) {
				out[r.ID] = append(out[r.ID], one)
			}
		}
	}
	return out, nil
}
