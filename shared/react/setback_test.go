package react

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/record"
)

// due is when the stream is to be looked at next.
func (b *bench) due() time.Duration {
	b.t.Helper()
	it, err := b.db.Get(context.Background(), record.JudgedKey(stream))
	if err != nil {
		b.t.Fatal(err)
	}
	if it.Due.IsZero() {
		return -1
	}
	return it.Due.Sub(t0)
}

// TestAClockThatWasAheadForAMoment: one append by a clock that is two hours ahead holds
// up nothing: the due index has the stream looked at, one reactor of two sets its clock
// back, and all waits no longer than it should. A test of the rules tells the same.
func TestAClockThatWasAheadForAMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: f5\non: [x.bad]\ngroup_by: {g: event.subject.name}\nfor: 5s\nresolve_after: 1h\n")
	b.rule("name: q4\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 4s\n")
	b.rule("name: ab\non: [x.bad]\nabsence: {expect: {on: [x.good]}, within: 5s}\ngroup_by: {g: event.subject.name}\n")
	b.rule("name: three\non: [x.bad]\ncount: 3\nwindow: 1m\nresolve_after: 1h\n")
	b.tell("x.other", "a")
	b.follow()
	b.advance(2 * time.Hour)
	b.tell("x.other", "a")
	b.advance(-2*time.Hour + time.Second)
	b.tell("x.bad", "a") // 1 s, received at 2 h
	b.follow()
	if due := b.due(); due != time.Second+SetBackAfter {
		t.Errorf("it is looked at again at %s", due)
	}
	b.advance(10 * time.Second)
	b.tell("x.bad", "a")
	b.follow()
	b.advance(SetBackAfter - 10*time.Second)
	reactors := []*Reactor{b.reactor, b.another(), b.another()}
	var wg sync.WaitGroup
	for _, r := range reactors {
		wg.Go(func() {
			if err := r.Follow(context.Background(), stream); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var backs int64
	for _, r := range reactors {
		s := r.Metrics.Read()
		backs += s.SetBack
	}
	if backs != 1 {
		t.Errorf("the clock was set back %d times", backs)
	}
	if due := b.due(); due != 25*time.Second {
		t.Errorf("the next timer comes at %s", due)
	}
	b.advance(9 * time.Second)
	b.tell("x.bad", "a")
	b.follow()
	want := []string{
		"2h0m0s pending f5map[g:a] condition_holds", "2h0m0s firing q4map[g:a] condition_holds",
		"25s resolved q4map[g:a] quiet", "26s firing f5map[g:a] condition_holds", "26s firing abmap[g:a] condition_holds",
		"30s firing q4map[g:a] condition_holds", "30s firing threemap[] condition_holds",
	}
	told := b.told()
	slices.Sort(told) // at one time rules come by their ids
	slices.Sort(want)
	if d := cmp.Diff(want, told); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	b.advance(time.Millisecond)
	for _, name := range []string{"f5", "q4", "ab", "three"} {
		r, err := b.service.Rule(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.service.Backtest(t.Context(), Backtest{Rule: r.Rule, Streams: []string{stream}, Since: t0})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b.standing(name), got.Alerts); d != "" {
			t.Errorf("alerts of %s (-reactor +test):\n%s", name, d)
		}
		// Of the time behind the set-back alone: what was received in front of it is not of it.
		got, err = b.service.Backtest(t.Context(), Backtest{Rule: r.Rule, Streams: []string{stream}, Since: t0.Add(22 * time.Second)})
		if err != nil || got.Judged != 1 {
			t.Errorf("%d events of %s are judged, %v", got.Judged, name, err)
		}
	}
}

// TestAClockThatIsAhead: while a process goes on appending by a clock that is ahead the
// stream stays with it; one that is ahead by less than clocks differ is left alone; and
// one that real time has come to is not set back.
func TestAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{event.ClocksDiffer, 2 * time.Hour} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.quiet()
			b.tell("x.other", "a")
			b.follow()
			for range 10 {
				b.advance(ahead)
				b.tell("x.other", "a")
				b.advance(-ahead)
				b.follow()
				b.advance(SetBackAfter - time.Second)
				b.follow()
			}
			b.advance(ahead)
			b.follow()
			if s := b.reactor.Metrics.Read(); s.SetBack != 0 || b.due() != -1 {
				t.Errorf("it was set back %d times, and is looked at again at %s", s.SetBack, b.due())
			}
		})
	}
}

// TestAStreamThatBeganAhead: a stream that is judged first while the clock is ahead is set
// back once, and judged from then on.
func TestAStreamThatBeganAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 1h\n")
	b.advance(8 * time.Hour)
	b.tell("x.other", "a")
	b.follow()
	b.advance(-8 * time.Hour)
	for range 5 {
		b.follow()
		b.advance(SetBackAfter)
	}
	b.tell("x.bad", "a")
	b.follow()
	if d := cmp.Diff([]string{"1m40s firing eachmap[g:a] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if n := b.reactor.Metrics.Read().SetBack; n != 1 {
		t.Errorf("the clock was set back %d times", n)
	}
}

// TestAnAlertsEventAhead: an event of an alert is not judged. Where that alone was told by a
// clock that was ahead, no timer comes early for it.
func TestAnAlertsEventAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: hour\non: [x.bad]\ngroup_by: {g: event.subject.name}\nfor: 1h\nresolve_after: 9h\n")
	b.tell("x.bad", "a")
	b.follow()
	b.advance(2 * time.Hour)
	e := b.fact("alert.acknowledged", "a", nil)
	b.advance(-2 * time.Hour)
	b.put(e)
	for range 5 {
		b.follow()
		b.advance(SetBackAfter)
	}
	if n := b.reactor.Metrics.Read().SetBack; n != 1 {
		t.Errorf("the clock was set back %d times", n)
	}
	b.advance(time.Hour - 5*SetBackAfter - time.Second)
	b.follow()
	if n := b.reactor.Metrics.Read().Told[alert.TypeFiring]; n != 0 {
		t.Errorf("%d fired early", n)
	}
	b.advance(time.Second)
	b.follow()
	if n := b.reactor.Metrics.Read().Told[alert.TypeFiring]; n != 1 {
		t.Errorf("%d fired in time", n)
	}
}

// TestJudgedBehindASetBack: a reactor that comes to what a clock that was ahead received
// after that was set back tells of it, and takes the stream's clock there no more.
func TestJudgedBehindASetBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 1m\n")
	b.tell("x.other", "a")
	b.follow()
	b.advance(time.Hour)
	b.tell("x.bad", "a")
	b.advance(2 * time.Minute)
	b.tell("x.bad", "b")
	b.advance(-time.Hour)
	head, version, err := event.LoadHead(t.Context(), b.db, stream)
	if err != nil {
		t.Fatal(err)
	}
	writes, _, err := event.SetBackWrites(head, version, stream, t0.Add(time.Hour+3*time.Minute).UnixMilli(), b.clock().UnixMilli())
	if err == nil {
		err = b.db.Commit(t.Context(), writes...)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.follow()
	want := []string{
		"1h0m0s firing eachmap[g:a] condition_holds", "1h1m0s resolved eachmap[g:a] quiet",
		"1h2m0s firing eachmap[g:b] condition_holds", "1h3m0s resolved eachmap[g:b] quiet",
	}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if head, _, err = event.LoadHead(t.Context(), b.db, stream); err != nil || head.Received != b.clock().UnixMilli() {
		t.Errorf("the stream is at %s, the plane at %s, %v", time.UnixMilli(head.Received).UTC(), b.clock(), err)
	}
}
