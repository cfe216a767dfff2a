package event

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// receipts are when events were received, after t0.
func receipts(evs []Event) (out []time.Duration) {
	for _, e := range evs {
		out = append(out, e.ReceivedAt.Sub(t0))
	}
	return out
}

// TestReceivedAtTheClock: an append puts receipts later where they would go back,
// in the events that it returns too, and leaves those alone that it was given.
func TestReceivedAtTheClock(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	from := func(ats ...time.Duration) (evs []Event) {
		for i, a := range ats {
			e := fact("node.ready", "a", i)
			e.ReceivedAt = t0.Add(a)
			evs = append(evs, e)
		}
		return evs
	}
	for _, tt := range []struct {
		name     string
		clock    int64 // of the head; 0: an older version's
		in, want []time.Duration
		then     time.Duration
	}{
		{"they come in order", 0, []time.Duration{5 * ms, 5 * ms, 7 * ms}, []time.Duration{5 * ms, 5 * ms, 7 * ms}, 7 * ms},
		{"an older head knows no clock", 0, []time.Duration{-time.Hour}, []time.Duration{-time.Hour}, -time.Hour},
		{"behind the clock", t0.Add(6 * ms).UnixMilli(), []time.Duration{5 * ms, 7 * ms}, []time.Duration{6 * ms, 7 * ms}, 7 * ms},
		{"among themselves", 0, []time.Duration{9 * ms, 2 * ms, 10 * ms}, []time.Duration{9 * ms, 9 * ms, 10 * ms}, 10 * ms},
		{"within a millisecond", t0.UnixMilli(), []time.Duration{100, 300, 200}, []time.Duration{100, 300, 300}, ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			given := from(tt.in...)
			head := Head{Next: 4, Low: 1, Received: tt.clock}
			writes, next, err := AppendWrites(head, 3, "clu_a", given)
			if err != nil {
				t.Fatal(err)
			}
			r, err := decodeRun("clu_a", writes[1].Item)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, receipts(r.Events)); d != "" {
				t.Errorf("kept (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.want, receipts(Number(head, "clu_a", given))); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.in, receipts(given)); d != "" {
				t.Errorf("given (-before +after):\n%s", d)
			}
			if want := t0.Add(tt.then).UnixMilli(); next.Received != want || next.At < want {
				t.Errorf("the head is %+v, want received %d", next, want)
			}
		})
	}
}

// TestClockWrite: the clock moves on, never back, and loses to an append.
func TestClockWrite(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := t.Context()
	put(t, db, "clu_a", 1, facts(2)...) // the last at one second
	for _, tt := range []struct{ to, want time.Duration }{{500 * time.Millisecond, time.Second}, {time.Minute, time.Minute}, {2 * time.Second, time.Minute}} {
		head, version, err := LoadHead(ctx, db, "clu_a")
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Commit(ctx, ClockWrite(head, version, "clu_a", t0.Add(tt.to).UnixMilli())); err != nil {
			t.Fatal(err)
		}
		got, _, err := LoadHead(ctx, db, "clu_a")
		head.Received = t0.Add(tt.want).UnixMilli()
		if d := cmp.Diff(head, got); err != nil || d != "" {
			t.Errorf("to %s (-want +got):\n%s%v", tt.to, d, err)
		}
	}
	head, version, err := LoadHead(ctx, db, "clu_a")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := Append(ctx, db, "clu_a", facts(3)[2:], nil)
	if err != nil || len(evs) != 1 || !evs[0].ReceivedAt.Equal(t0.Add(time.Minute)) {
		t.Errorf("appended %+v, %v", evs, err)
	}
	for _, to := range []time.Duration{time.Second, time.Hour} {
		if err := db.Commit(ctx, ClockWrite(head, version, "clu_a", t0.Add(to).UnixMilli())); !errors.Is(err, ledger.ErrConflict) {
			t.Errorf("to %s over an append: %v", to, err)
		}
	}
	none := ClockWrite(Head{Next: 1, Low: 1}, 0, "clu_none", t0.UnixMilli())
	if err := db.Commit(ctx, none); err != nil || none.Kind != ledger.Check {
		t.Errorf("of no stream: %+v, %v", none, err)
	}
}

// TestClockNeverGoesBack: many append at once, by clocks of their own, while another
// moves the stream's; what is kept was received in order, and not before a time that
// the clock was moved to before.
func TestClockNeverGoesBack(t *testing.T) {
	t.Parallel()
	clockNeverGoesBack(t, openDB(t))
}

func clockNeverGoesBack(t *testing.T, db ledger.Ledger) {
	ctx := context.Background()
	const stream = "clu_a"
	moved := map[int64]int64{} // the clock, by the sequence that came next
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 15 {
				e := fact("node.ready", fmt.Sprint(w), i)
				e.ReceivedAt = t0.Add(time.Duration(i*1000-w*700) * time.Millisecond)
				if _, err := Append(ctx, db, stream, []Event{e, e}, nil); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 15 {
			clock := t0.Add(time.Duration(i)*time.Second + 300*time.Millisecond).UnixMilli()
			for {
				head, version, err := LoadHead(ctx, db, stream)
				if err == nil {
					err = db.Commit(ctx, ClockWrite(head, version, stream, clock))
				}
				if err == nil && version > 0 {
					moved[head.Next] = max(moved[head.Next], clock)
				}
				if err == nil {
					break
				}
				if !errors.Is(err, ledger.ErrConflict) {
					t.Errorf("move the clock: %v", err)
					return
				}
			}
		}
	})
	wg.Wait()
	evs, head, err := ReadStream(ctx, db, stream, 1, 1000)
	if err != nil || len(evs) != 4*15*2 {
		t.Fatalf("%d events, %v", len(evs), err)
	}
	var last int64
	for _, e := range evs {
		last = max(last, moved[e.Sequence])
		if at := e.ReceivedAt.UnixMilli(); at < last {
			t.Errorf("event %d was received at %d, after %d", e.Sequence, at, last)
		} else {
			last = at
		}
	}
	if head.Received < last {
		t.Errorf("the head's clock is %d, the last event's %d", head.Received, last)
	}
	// A head that another version wrote meanwhile, which does not keep the clock.
	it, err := db.Get(ctx, record.StreamHeadKey(stream))
	if err != nil {
		t.Fatal(err)
	}
	head.Received = 0
	it.Data = record.Encode(head)
	if err := db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: it.Key, Data: it.Data}, Expect: it.Version}); err != nil {
		t.Fatal(err)
	}
	if _, err := Append(ctx, db, stream, facts(1), nil); err != nil {
		t.Errorf("behind a head without a clock: %v", err)
	}
}

// TestSetBack: the clock goes back by an event of its own and by nothing else; what is
// behind it is received from there on, and what is in front of it was no later. An append
// that was under way comes again.
func TestSetBack(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := t.Context()
	at := func(after time.Duration, n int) Event {
		e := fact("node.ready", "a", n)
		e.Timestamp, e.ReceivedAt = t0.Add(after), t0.Add(after)
		return e
	}
	for _, stream := range []string{"clu_a", PlaneStream} {
		put(t, db, stream, 1, at(0, 0), at(2*time.Hour, 1))
		for i := range maxSetBacks + 2 {
			head, version, err := LoadHead(ctx, db, stream)
			if err != nil {
				t.Fatal(err)
			}
			to := time.Duration(i+1) * time.Minute
			writes, e, err := SetBackWrites(head, version, stream, t0.UnixMilli(), t0.Add(to).UnixMilli())
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := SetBackOf(&e); !ok || !d.From.Equal(t0.Add(2*time.Hour)) || !d.Judged.Equal(t0) || e.Stream != stream {
				t.Errorf("%+v, %v: %+v", d, ok, e)
			}
			if err := db.Commit(ctx, writes...); err != nil {
				t.Fatal(err)
			}
			if err := db.Commit(ctx, writes...); !errors.Is(err, ledger.ErrConflict) {
				t.Errorf("set back twice: %v", err)
			}
			put(t, db, stream, 1, at(to+time.Second, 10*i+2), at(2*time.Hour, 10*i+3))
		}
		evs, head, err := ReadStream(ctx, db, stream, 1, 1000)
		if err != nil || len(evs) != 2+3*(maxSetBacks+2) || len(head.SetBacks) != maxSetBacks {
			t.Fatalf("%d events, %+v, %v", len(evs), head, err)
		}
		for i := range maxSetBacks + 2 {
			to := time.Duration(i+1) * time.Minute
			back := evs[2+3*i:]
			if d := cmp.Diff([]time.Duration{to, to + time.Second, 2 * time.Hour}, receipts(back[:3])); d != "" || back[0].Type != TypeClockSetBack {
				t.Errorf("set-back %d (-want +got):\n%s", i, d)
			}
			want := max(to, 2*time.Minute) + time.Minute // of those that the head knows the first behind it
			if i == maxSetBacks+1 {
				want = 2 * time.Hour
			}
			if got := head.Truly(&back[2]).Sub(t0); got != want {
				t.Errorf("the event behind set-back %d was received at %s, want %s", i, got, want)
			}
		}
	}
	if _, ok := SetBackOf(new(at(0, 0))); ok {
		t.Error("another event set it back")
	}
}
