package react

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// trap is a ledger in which one stream's judging panics, at the commit of its
// position.
type trap struct {
	ledger.Ledger
	stream string
	set    atomic.Bool
	sprung atomic.Int64
}

func (l *trap) Commit(ctx context.Context, ws ...ledger.Write) error {
	if l.set.Load() && ws[0].Item.Key == record.JudgedKey(l.stream) {
		l.sprung.Add(1)
		panic("the trap is sprung")
	}
	return l.Ledger.Commit(ctx, ws...)
}

// A panic while a stream is judged is told with its stack, counted, and ends
// nothing: others are judged, and the stream is tried again, less and less often.
// When it can be judged again nothing is lost and nothing told twice.
func TestPanicEndsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\n")
	ctx := t.Context()
	l := &trap{Ledger: b.db, stream: stream}
	var log bytes.Buffer
	r := b.another()
	r.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r.Store = &record.Store{Ledger: l, Now: b.clock, Timing: b.store.Timing}
	l.set.Store(true)
	b.tell("x.bad", "a")
	if _, err := event.Append(ctx, b.db, event.PlaneStream, []event.Event{b.fact("x.bad", "plane", nil)}, nil); err != nil {
		t.Fatal(err)
	}
	err := r.Follow(ctx, stream)
	var p *PanicError
	if !errors.As(err, &p) || p.Stream != stream {
		t.Fatal(err)
	}
	if err := r.Follow(ctx, event.PlaneStream); err != nil {
		t.Fatal(err)
	}
	if evs, _, err := event.ReadStream(ctx, b.db, event.PlaneStream, 2, 10); err != nil || len(evs) != 1 || evs[0].Type != "alert.firing" {
		t.Errorf("the other stream: %+v, %v", evs, err)
	}
	for _, want := range []string{"judging a stream panicked", "stream=" + stream, "the trap is sprung", "panic_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q: %s", want, log.String())
		}
	}
	// It is left alone for a while, each time longer, and no longer than 5 minutes.
	var tried []time.Duration
	for n := l.sprung.Load(); b.clock().Before(t0.Add(20 * time.Minute)); b.advance(time.Second) {
		if err := r.Follow(ctx, stream); !errors.As(err, &p) {
			t.Fatal(err)
		}
		if now := l.sprung.Load(); now != n {
			n, tried = now, append(tried, b.clock().Sub(t0))
		}
	}
	want := []time.Duration{2, 6, 14, 30, 62, 126, 254, 510, 810, 1110}
	for i := range want {
		want[i] *= time.Second
	}
	if d := cmp.Diff(want, tried); d != "" {
		t.Errorf("tried after (-want +got):\n%s", d)
	}
	if m := r.Metrics.Read(); m.Panics != int64(len(want)+1) {
		t.Errorf("counted %d panics", m.Panics)
	}
	l.set.Store(false)
	b.advance(longestPause)
	for range 2 {
		if err := r.Follow(ctx, stream); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"0s firing eachmap[g:a] condition_holds", "5m0s resolved eachmap[g:a] quiet"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	// The pause begins anew.
	l.set.Store(true)
	b.tell("x.bad", "b")
	if err := r.Follow(ctx, stream); !errors.As(err, &p) || p.After.Sub(b.clock()) != panicPause {
		t.Errorf("another panic: %v", err)
	}
}

// What cannot be read is passed over, counted and told; what is behind it is judged,
// and a rule may look at it.
func TestUnreadableEventsAreTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.unreadable()
}

func (b *bench) unreadable() {
	t := b.t
	t.Helper()
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 1h\n")
	b.rule("name: damage\non: [stream.unreadable]\ngroup_by: {g: string(event.detail.through)}\nresolve_after: 1h\n")
	b.put(b.fact("x.bad", "a", nil), b.fact("x.bad", "b", nil))
	b.advance(time.Minute)
	b.put(b.fact("x.bad", "c", nil), b.fact("x.bad", "d", nil), b.fact("x.bad", "e", nil))
	b.advance(time.Minute)
	b.put(b.fact("x.bad", "f", nil))
	ctx := context.Background()
	it, err := b.db.Get(ctx, record.StreamRunKey(stream, 3))
	if err == nil {
		err = b.db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: it.Key, Data: []byte("{]")}, Expect: it.Version})
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.follow()
	}
	want := []string{
		"0s firing eachmap[g:a] condition_holds", "0s firing eachmap[g:b] condition_holds",
		"0s firing damagemap[g:5] condition_holds", "2m0s firing eachmap[g:f] condition_holds",
	}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if m := b.reactor.Metrics.Read(); m.Skipped != 3 || m.Judged != 4 {
		t.Errorf("counted %+v", m)
	}
	// At the end of a stream it ends nothing either.
	b.advance(time.Minute)
	b.put(b.fact("x.bad", "g", nil))
	head, _, err := event.LoadHead(ctx, b.db, stream)
	if err == nil {
		it, err = b.db.Get(ctx, record.StreamRunKey(stream, head.Next-1))
	}
	if err == nil {
		err = b.db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: it.Key, Data: []byte("null")}, Expect: it.Version})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.follow()
	b.tell("x.bad", "h")
	b.follow()
	if told := b.told(); len(told) != len(want)+2 || !strings.Contains(told[len(told)-1], "firing eachmap[g:h]") {
		t.Errorf("told %v", told)
	}
}
