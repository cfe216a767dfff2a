package notify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// lineMost is how many of the messages that fell due first, and how many of those that did
// last, are looked through where more are due than go at once.
const lineMost = ledger.MaxPage

// pacedEach is for how many messages that were never tried one goes that was answered with the
// pace, while there are such.
const pacedEach = perHost

// line is what is due to a webhook. What was never tried has its turn apart from what
// failed. By turns it is the newest of all, and the next of the next rule: of each rule, in
// turn over the moments at which its messages were made, the first or the last of one. So a
// storm buries neither what came before it nor what comes after.
type line struct {
	read  time.Time
	fresh []pointer // that were never sent and overtake none of their alert that is due
	paced []pointer // that were answered with the pace alone, by when they were due
	apart []pointer // likewise, and it is their own
	rest  []pointer
	later []ledger.Item // what is due next, or was put there by a clock that was ahead
	// left are those that wait for another of their alert, by that.
	left map[string][]pointer
	// before has what fresh ones wait for, as far as it was read.
	before map[string]ledger.Item
	turns
}

// turns say whose turn it is. While nobody here has the lane, the service keeps them.
type turns struct {
	picks int
	since int // fresh ones, since one that was paced
	turn  int
	rule  string            // that had the last turn
	rules map[string]atRule // by name
}

// pointer is one by which a message is found.
type pointer struct {
	ledger.Item
	pointed
}

// byAge orders messages by when they were made.
func byAge(x, y pointer) int {
	return cmp.Or(cmp.Compare(x.Made, y.Made), cmp.Compare(x.Key.SK, y.Key.SK))
}

// atRule is how far the messages of a rule are.
type atRule struct {
	made  int64 // the moment
	until int64 // the last moment there was when it began with the first
	last  bool  // of the moment, the last
}

// readLine reads what is due.
func (s *Service) readLine(ctx context.Context, f *flights, r *target, now time.Time) error {
	items, err := s.pointers(ctx, r, now)
	if err != nil {
		return err
	}
	l := &f.line
	l.read, l.fresh, l.paced, l.apart, l.rest, l.later, l.left, l.before = time.Now(), nil, nil, nil, nil, nil, map[string][]pointer{}, map[string]ledger.Item{}
	later, due := record.PendingKey(r.ID, now.Add(time.Millisecond), 0, "").SK, map[string]bool{}
	all, rules := make([]pointer, len(items)), map[string]atRule{}
	for i, it := range items {
		all[i].Item = it
		if is, err := record.Decode[pointed](it); err == nil { // else it goes by its time
			all[i].pointed = is
		}
		due[record.PendingOf(it.Key)] = it.Key.SK < later && !all[i].Apart
	}
	for _, p := range all {
		switch it := p.Item; {
		case f.out[record.PendingOf(it.Key)] != nil:
		case it.Key.SK >= later:
			l.later = append(l.later, it)
		case due[p.After] || f.out[p.After] != nil:
			l.left[p.After] = append(l.left[p.After], p)
		case p.Apart:
			l.apart = append(l.apart, p)
		case p.Paced:
			l.paced = append(l.paced, p)
		case p.New || p.After != "":
			l.fresh, rules[p.Rule] = append(l.fresh, p), l.rules[p.Rule]
		default:
			l.rest = append(l.rest, p)
		}
	}
	l.rules = rules
	slices.SortStableFunc(l.fresh, byAge)
	return nil
}

// pointers are those of what is due to a receiver, and of what is next.
func (s *Service) pointers(ctx context.Context, r *target, now time.Time) ([]ledger.Item, error) {
	from, to := record.PendingSpan()
	q := ledger.Query{PK: record.OutboxPK(r.ID), From: from, To: to, Limit: webhookRound}
	p, err := s.Store.Ledger.Query(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read what is due: %w", err)
	}
	later := record.PendingKey(r.ID, now.Add(time.Millisecond), 0, "").SK
	if n := len(p.Items); n < webhookRound || p.Items[n-1].Key.SK >= later {
		return r.worthReading(p.Items, now), nil
	}
	q.To, q.Limit = later, lineMost
	if p, err = s.Store.Ledger.Query(ctx, q); err != nil || p.Next == "" || len(p.Items) == 0 {
		return p.Items, err
	}
	q.From, q.Reverse = p.Items[len(p.Items)-1].Key.SK+" ", true
	last, err := s.Store.Ledger.Query(ctx, q)
	slices.Reverse(last.Items)
	return append(p.Items, last.Items...), err
}

// choose returns what is sent next, so many at most, or when something is due. What failed
// has up to half of the room.
func (s *Service) choose(ctx context.Context, h *held, r *target, most int, now time.Time) (due []*Delivery, next time.Time, err error) {
	if most == 0 {
		return nil, next, nil
	}
	f := h.flights
	l, apart := &f.line, f.apart(&h.lane, now)
	var items []ledger.Item
	if time.Since(l.read) < lookAgain {
		items, err = s.pick(ctx, f, r, most, apart)
	}
	if len(items) == 0 && err == nil {
		if err = s.readLine(ctx, f, r, now); err == nil {
			items, err = s.pick(ctx, f, r, most, apart)
		}
	}
	if err != nil {
		return nil, next, fmt.Errorf("read what is due: %w", err)
	}
	if len(l.left) > 0 {
		next = now.Add(lookAgain)
	}
	if len(l.apart) > 0 && apart == 0 {
		next = sooner(next, h.lane.Apart)
	}
	if len(items) == 0 {
		items = l.later
	}
	due, at, err := s.open(ctx, r, items, now)
	due = slices.DeleteFunc(due, func(d *Delivery) bool { return f.of(d.Alert) })
	return due[:min(len(due), most)], sooner(next, at), err
}

// pick takes out of the line what is sent next, so many at most, and so many of those whose pace
// is their own.
func (s *Service) pick(ctx context.Context, f *flights, r *target, most, apart int) (out []ledger.Item, err error) {
	l := &f.line
	l.picks++
	few := max(0, perHost/2-f.suspects())
	room, reserved := most-min(few, len(l.rest), (most+l.picks%2)/2), 0
	paced := slices.Concat(l.paced, l.apart[:min(apart, len(l.apart))])
	if l.since >= pacedEach && len(paced) > 0 {
		reserved = min(1, room)
	}
	news, err := s.pickFresh(ctx, l, r, room-reserved)
	if err != nil {
		return nil, err
	}
	l.since += len(news)
	if n := min(len(paced), room-len(news)); n > 0 {
		of := min(n, len(l.paced))
		news, l.paced, l.apart, l.since = append(news, paced[:n]...), l.paced[of:], l.apart[n-of:], 0
	}
	n := min(few, len(l.rest), most-len(news))
	for _, p := range slices.Concat(l.rest[:n], news) {
		out = append(out, p.Item)
	}
	l.rest = l.rest[n:]
	return out, nil
}

// pickFresh takes those out of the line that were never tried.
func (s *Service) pickFresh(ctx context.Context, l *line, r *target, most int) (out []pointer, err error) {
	for len(out) < most && len(l.fresh) > 0 {
		i := len(l.fresh) - 1
		if l.turn++; l.turn%2 == 0 {
			i = l.next()
		}
		p := l.fresh[i]
		if err := s.readBefore(ctx, l, r, i); err != nil {
			return nil, err
		}
		l.fresh = slices.Delete(l.fresh, i, i+1)
		before, err := decodeDelivery(l.before[p.After])
		switch {
		case p.After == "" || err != nil || !before.open():
			out = append(out, p)
		case before.untried() && !before.apart():
			l.left[p.After] = append(l.left[p.After], p)
		default:
			l.rest = append(l.rest, p)
		}
	}
	return out, nil
}

// readBefore reads what a fresh one waits for, unless it was read, and what some of those
// behind it do.
func (s *Service) readBefore(ctx context.Context, l *line, r *target, i int) error {
	if _, read := l.before[l.fresh[i].After]; read || l.fresh[i].After == "" {
		return nil
	}
	var keys []ledger.Key
	for _, p := range slices.Concat(l.fresh[i:], l.fresh[:i]) {
		if _, read := l.before[p.After]; !read && p.After != "" && len(keys) < ledger.MaxWrites {
			keys, l.before[p.After] = append(keys, record.DeliveryKey(r.ID, p.After)), ledger.Item{}
		}
	}
	items, err := s.getMany(ctx, keys)
	for _, p := range l.fresh {
		if it, ok := items[record.DeliveryKey(r.ID, p.After)]; ok {
			l.before[p.After] = it
		}
	}
	return err
}

// taken has those have their turn that waited for one that was taken.
func (l *line) taken(id string) {
	for _, p := range l.left[id] {
		p.After = ""
		i, _ := slices.BinarySearchFunc(l.fresh, p, byAge)
		l.fresh = slices.Insert(l.fresh, i, p)
	}
	delete(l.left, id)
}

// next is which of the fresh ones is next: of the next rule by name, of its next moment.
func (l *line) next() int {
	of := map[string][]int{} // by rule, in order
	for i, p := range l.fresh {
		of[p.Rule] = append(of[p.Rule], i)
	}
	names := slices.Sorted(maps.Keys(of))
	i, found := slices.BinarySearch(names, l.rule)
	if found {
		i++
	}
	l.rule = names[i%len(names)]
	all, is := of[l.rule], l.rules[l.rule]
	moment := func(i int) int64 { return l.fresh[i].Made }
	first := slices.IndexFunc(all, func(i int) bool { return moment(i) > is.made && moment(i) <= is.until })
	if first < 0 {
		first, is.until, is.last = 0, moment(all[len(all)-1]), !is.last
	}
	last := first
	for is.made = moment(all[first]); last+1 < len(all) && moment(all[last+1]) == is.made; {
		last++
	}
	if l.rules[l.rule] = is; is.last {
		return all[last]
	}
	return all[first]
}
