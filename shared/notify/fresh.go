package notify

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// A webhook may take some messages and not others: it refuses what one alert says, or hangs
// on it. Those that it would take are not kept back by those, however many there are: a
// refusal is the message's own, as long as it takes others (refusedMost), and what was never
// tried is among what a webhook that fails is tried with.

// refuses tells whether an answer of a webhook is about the one message: it is there, and
// may take others. It is not where a 4xx is about the place (404, 405, 410, 421, 426), who
// sends (401, 402, 403, 407) or how often, or how fast (408, 425, 429); see RFC 9110, 15.5.
func (a *answer) refuses() bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusMisdirectedRequest, http.StatusUpgradeRequired,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return a.status >= 400 && a.status < 500
}

// there tells whether an answer of a receiver of the kind says that it takes messages, if
// not this one.
func (a *answer) there(kind string) bool {
	if kind == KindAlertmanager {
		return a.taken() || a.refused()
	}
	return a.taken() || a.refuses()
}

// fresh is how many of a webhook's round are to be the newest that are new (pointed).
func (h *held) fresh(r *target, limit int) int {
	if r.Kind == KindWebhook && (h.failing || h.lane.Holds[r.URL].Fails > 0) {
		return (limit + 1) / 2
	}
	return 0
}

// newestFirst orders what is due: what was never tried goes before what was, the newest
// before all.
func newestFirst(x, y *Delivery) int {
	switch {
	case x.Tries == 0 && y.Tries == 0:
		return y.CreatedAt.Compare(x.CreatedAt)
	case x.Tries == 0:
		return -1
	case y.Tries == 0:
		return 1
	}
	return 0
}

// newestAmong is how many of the messages that fell due last are looked through for those
// that are new.
const newestAmong = 256

// pointed is the data of the pointer by which a message is found that is to be sent.
type pointed struct {
	// New: the message was never tried, and is the first of its alert that is to be sent, so
	// that it overtakes none of that. One that was never tried is, too, when the one After is
	// not to be sent any more. What an earlier plane put there is not new.
	New   bool   `json:"new,omitempty"`
	After string `json:"after,omitempty"`
}

func pointedAt(d *Delivery) (p pointed) {
	if d.Tries == 0 {
		p.New, p.After = d.First, d.After
	}
	return p
}

// withNewest puts, in the place of the last of the pointers, those of the newest messages,
// so many, that are due and new.
func (s *Service) withNewest(ctx context.Context, r *target, oldest []ledger.Item, most int, now time.Time) ([]ledger.Item, error) {
	from, _ := record.PendingSpan()
	p, err := s.Store.Ledger.Query(ctx, ledger.Query{PK: record.OutboxPK(r.ID), From: from,
		To: record.PendingKey(r.ID, now.Add(time.Millisecond), 0, "").SK, Reverse: true, Limit: newestAmong})
	if err != nil {
		return nil, fmt.Errorf("read what is new: %w", err)
	}
	newest, err := s.leading(ctx, r, p.Items)
	if err != nil {
		return nil, fmt.Errorf("read what is new: %w", err)
	}
	newest = newest[:min(most, len(newest))]
	slices.Reverse(newest)
	out := oldest[:len(oldest)-len(newest)]
	for _, it := range newest {
		if !slices.ContainsFunc(out, func(o ledger.Item) bool { return o.Key == it.Key }) {
			out = append(out, it)
		}
	}
	return out, nil
}

// leading are those of the pointers whose messages are new. What cannot be read goes by its
// time.
func (s *Service) leading(ctx context.Context, r *target, pointers []ledger.Item) (out []ledger.Item, err error) {
	all := make([]pointed, len(pointers))
	var keys []ledger.Key
	for i, it := range pointers {
		if is, err := record.Decode[pointed](it); err == nil {
			if all[i] = is; is.After != "" {
				keys = append(keys, record.DeliveryKey(r.ID, is.After))
			}
		}
	}
	before, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, it := range pointers {
		if is := all[i]; is.New || is.After != "" && !isOpen(before[record.DeliveryKey(r.ID, is.After)]) {
			out = append(out, it)
		}
	}
	return out, nil
}

// send sends a webhook's messages, several at once, and keeps what came of each. It ends
// early when the receiver was changed, since the rest may be for another place, and when
// one was not answered in time: what is new by then may be.
func (s *Service) send(ctx context.Context, h *held, r *target, due []*Delivery) error {
	var (
		mu      sync.Mutex
		answers []answer
		refused []*Delivery // that were not before
		late    atomic.Bool
		changed = s.changed(ctx, r)
	)
	err := each(due, func(d *Delivery) error {
		if late.Load() || changed() {
			return nil
		}
		a := s.webhook(ctx, r, d.Event, d.Payload)
		if ctx.Err() != nil {
			return nil // it was cut off
		}
		if a.late {
			late.Store(true)
		}
		mu.Lock()
		answers = append(answers, a)
		if a.refuses() && d.LastError == "" {
			refused = append(refused, d)
		}
		mu.Unlock()
		return unlessOther(s.settle(ctx, r, d, a), d)
	})
	if len(refused) > 0 {
		s.Logger.WarnContext(ctx, "a receiver refuses messages", "receiver", r.Name, "id", r.ID, "messages", len(refused), "first", refused[0].ID)
	}
	if len(answers) > 0 {
		h.failing = slices.ContainsFunc(answers, func(a answer) bool { return !a.taken() })
		s.came(ctx, h, r, r.endpoints()[0], answers)
	}
	return err
}
