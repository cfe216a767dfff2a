package event

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// TestSetBackBounds: what a clock that was ahead wrote is as old as the set-back behind
// it says, for who looks for later events, for details and for retention.
func TestSetBackBounds(t *testing.T) {
	t.Parallel()
	checkSetBackBounds(t, openDB(t), math.MaxInt)
}

// checkSetBackBounds is the property on an engine, for a number of rounds.
func checkSetBackBounds(t *testing.T, db ledger.Ledger, rounds int) {
	n, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > rounds && !failed {
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		setBackBounds(rt, db, fmt.Sprintf("clu_%d", n))
	})
}

// setBackBounds writes a history of appends and set-backs, each append a run, and judges
// by what truly was what is found in it.
func setBackBounds(rt *rapid.T, db ledger.Ledger, stream string) {
	ctx := context.Background()
	var (
		truly []int64 // when an event truly was, in milliseconds behind t0, by sequence from 1 on
		first []int64 // of an event's run
	)
	clock := int64(0)
	ms := func(n int64) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	for i := range rapid.IntRange(1, 12).Draw(rt, "appends") {
		clock += rapid.Int64Range(1, 1000).Draw(rt, "later")
		ahead := rapid.SampledFrom([]int64{0, 0, 0, 1500, 400 * 24 * 3600_000}).Draw(rt, "ahead")
		evs := make([]Event, rapid.IntRange(1, 3).Draw(rt, "events"))
		for k := range evs {
			evs[k] = fact("node.ready", stream, 10*i+k)
			evs[k].ReceivedAt = ms(clock + ahead)
			evs[k].Timestamp = evs[k].ReceivedAt.Add(-time.Duration(rapid.Int64Range(-50, 2000).Draw(rt, "before")) * time.Millisecond)
		}
		kept, err := Append(ctx, db, stream, evs, nil)
		if err != nil {
			rt.Fatal(err)
		}
		for k := range kept {
			truly, first = append(truly, max(kept[k].ReceivedAt.UnixMilli(), kept[k].Timestamp.UnixMilli())-t0.UnixMilli()), append(first, kept[0].Sequence)
		}
		head, version, err := LoadHead(ctx, db, stream)
		if err != nil {
			rt.Fatal(err)
		}
		if head.Received <= ms(clock).UnixMilli() || len(head.SetBacks) == maxSetBacks || rapid.Bool().Draw(rt, "goes on") {
			continue
		}
		writes, _, err := SetBackWrites(head, version, stream, head.Received, ms(clock).UnixMilli())
		if err == nil {
			err = db.Commit(ctx, writes...)
		}
		if err != nil {
			rt.Fatal(err)
		}
		for k := range truly {
			truly[k] = min(truly[k], clock)
		}
		truly, first = append(truly, clock), append(first, head.Next)
	}
	at := rapid.Int64Range(0, clock+1000).Draw(rt, "at")
	want := int64(len(truly) + 1) // the first run with what was at the time or later
	if i := slices.IndexFunc(truly, func(ms int64) bool { return ms >= at }); i >= 0 {
		want = first[i]
	}
	if got, err := FirstAt(ctx, db, stream, ms(at)); got != want || err != nil {
		rt.Errorf("first at %d: %d, %v, want %d", at, got, err, want)
	}
	r := &Reader{Ledger: db}
	all := pages(rt, r, Query{Cluster: stream})
	head, _, err := LoadHead(ctx, db, stream)
	if err != nil || len(all) != len(truly) {
		rt.Fatalf("%d events of %d, %v", len(all), len(truly), err)
	}
	var since, until []string
	for i := range all {
		if head.happened(&all[i]).After(ms(truly[i])) {
			rt.Errorf("event %d happened at %s, later than %d", i+1, head.happened(&all[i]), truly[i])
		}
		if head.happened(&all[i]).Before(ms(at)) {
			until = append(until, sequences(all[i:i+1])...)
		} else {
			since = append(since, sequences(all[i:i+1])...)
		}
	}
	if got := sequences(pages(rt, r, Query{Cluster: stream, Since: ms(at), Limit: 2})); !slices.Equal(got, since) {
		rt.Errorf("since %d: %v, want %v", at, got, since)
	}
	if got := sequences(pages(rt, r, Query{Cluster: stream, Until: ms(at), Limit: 2})); !slices.Equal(got, until) {
		rt.Errorf("until %d: %v, want %v", at, got, until)
	}
	if _, err := ExpireDetails(ctx, db, stream, "node.ready", ms(at), 100); err != nil {
		rt.Fatal(err)
	}
	for _, e := range pages(rt, r, Query{Cluster: stream, Types: []string{"node.ready"}}) {
		if e.DetailExpired != (e.Sequence < want) {
			rt.Errorf("of event %d the detail expired: %v; the first that stays is %d", e.Sequence, e.DetailExpired, want)
		}
	}
	if head, _, err := Trim(ctx, db, stream, ms(at)); head.Low != want || err != nil {
		rt.Errorf("retention left %d, %v, want %d", head.Low, err, want)
	}
}

// pages reads to the end.
func pages(rt *rapid.T, r *Reader, q Query) (all []Event) {
	for {
		p, err := r.Read(context.Background(), q)
		var expired *ExpiredError
		switch {
		case errors.As(err, &expired):
			q.Cursor = expired.Cursor
			continue
		case err != nil:
			rt.Fatal(err)
		}
		all = append(all, p.Events...)
		if q.Cursor = p.NextCursor; !p.More {
			return all
		}
	}
}

// TestSetBackUnreadable: a set-back that cannot be read any more keeps retention from
// nothing.
func TestSetBackUnreadable(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := t.Context()
	put(t, db, "clu_a", 1, fact("node.ready", "a", 0), fact("node.ready", "a", 1e6))
	head, version, err := LoadHead(ctx, db, "clu_a")
	if err != nil {
		t.Fatal(err)
	}
	writes, _, err := SetBackWrites(head, version, "clu_a", head.Received, at(2).UnixMilli())
	if err == nil {
		err = db.Commit(ctx, writes...)
	}
	if err != nil {
		t.Fatal(err)
	}
	put(t, db, "clu_a", 1, fact("node.ready", "a", 3), fact("node.ready", "a", 9))
	if err := db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: record.StreamRunKey("clu_a", 3), Data: []byte("{}")}, Expect: ledger.AnyVersion}); err != nil {
		t.Fatal(err)
	}
	if head, _, err := Trim(ctx, db, "clu_a", at(5)); head.Low != 5 || err != nil {
		t.Errorf("retention left %d, %v", head.Low, err)
	}
}
