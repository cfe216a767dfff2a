package inproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/bus/bustest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	bustest.Run(t, func(t *testing.T) bustest.Rig {
		b := New(Options{Backoff: time.Millisecond})
		t.Cleanup(func() { closeBus(t, b) })
		return bustest.Rig{
			Publisher: b,
			Retries:   true,
			Subscribe: func(t *testing.T, p bus.Pattern, h func(context.Context, bus.Message) error) {
				if _, err := b.Subscribe(p, h); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func closeBus(t *testing.T, b *Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

func message(id string) bus.Message {
	return bus.Message{ID: id, Type: "test.one", Time: time.Now(), Detail: json.RawMessage(`{}`)}
}

func subscribe(t *testing.T, b *Bus, h Handler) *Subscription {
	t.Helper()
	s, err := b.Subscribe(bus.Pattern{}, h)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, b *Bus, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := b.Publish(t.Context(), message(id)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDropsAfterAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		b := New(Options{Attempts: 3, OnDrop: func(m bus.Message, err error) { told = append(told, m.ID+": "+err.Error()) }})
		var calls []string
		var at []time.Time
		s := subscribe(t, b, func(_ context.Context, m bus.Message) error {
			calls, at = append(calls, m.ID), append(at, time.Now())
			switch m.ID {
			case "bad":
				return errors.New("no")
			case "worse":
				panic("boom")
			}
			return nil
		})
		publish(t, b, "bad", "worse", "good")
		closeBus(t, b)
		if want := []string{"bad", "bad", "bad", "worse", "worse", "worse", "good"}; !slices.Equal(calls, want) {
			t.Errorf("calls %v, want %v", calls, want)
		}
		if want := []string{"bad: no", "worse: handler panicked: boom"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if want := (Stats{Delivered: 1, Retried: 4, Dropped: 2}); s.Stats() != want || b.Stats() != want {
			t.Errorf("stats %+v and %+v, want %+v", s.Stats(), b.Stats(), want)
		}
		if d := at[1].Sub(at[0]); d < 50*time.Millisecond || d > 100*time.Millisecond {
			t.Errorf("first back-off %s", d)
		}
		if d := at[2].Sub(at[1]); d < 100*time.Millisecond || d > 200*time.Millisecond {
			t.Errorf("second back-off %s", d)
		}
	})
}

// A subscriber that works but is slow holds the publisher back, and loses
// nothing.
func TestSlowSubscriberHoldsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Buffer: 2})
		var got, other []string
		subscribe(t, b, func(_ context.Context, m bus.Message) error {
			time.Sleep(100 * time.Millisecond)
			got = append(got, m.ID)
			return nil
		})
		subscribe(t, b, func(_ context.Context, m bus.Message) error { other = append(other, m.ID); return nil })
		var ids []string
		for i := range 20 {
			ids = append(ids, fmt.Sprint(i))
		}
		publish(t, b, ids...)
		closeBus(t, b)
		if !slices.Equal(got, ids) || !slices.Equal(other, ids) {
			t.Errorf("got %v and %v", got, other)
		}
	})
}

// One that hangs makes publishing fail in a bounded time, for none or all.
func TestFullBufferIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Buffer: 1})
		hang := make(chan struct{})
		subscribe(t, b, func(context.Context, bus.Message) error { <-hang; return nil })
		var other []string
		subscribe(t, b, func(_ context.Context, m bus.Message) error { other = append(other, m.ID); return nil })
		publish(t, b, "1")
		synctest.Wait()
		start := time.Now()
		err := b.Publish(t.Context(), message("2"), message("3"), message("4"))
		partial, ok := errors.AsType[*bus.PartialError](err)
		if !ok || !slices.Equal(partial.Failed, []int{1, 2}) || !errors.Is(err, bus.ErrUnavailable) || !errors.Is(err, ErrFull) {
			t.Errorf("%v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("publishing took %s", took)
		}
		close(hang)
		closeBus(t, b)
		if want := []string{"1", "2"}; !slices.Equal(other, want) {
			t.Errorf("the other subscriber got %v, want %v", other, want)
		}
	})
}

// One that fails holds nobody back: its oldest messages go, and are counted.
func TestFailingSubscriberIsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Buffer: 3, Attempts: 1000})
		var down atomic.Bool
		down.Store(true)
		var got []string
		s := subscribe(t, b, func(_ context.Context, m bus.Message) error {
			if down.Load() {
				return errors.New("down")
			}
			got = append(got, m.ID)
			return nil
		})
		publish(t, b, "0")
		synctest.Wait() // has failed once
		start := time.Now()
		publish(t, b, "1", "2", "3", "4", "5")
		if took := time.Since(start); took > 0 {
			t.Errorf("publishing took %s", took)
		}
		if st := s.Stats(); st.Dropped != 2 || st.Waiting != 3 {
			t.Errorf("stats %+v", st)
		}
		down.Store(false)
		closeBus(t, b)
		if want := []string{"0", "3", "4", "5"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{})
		subscribe(t, b, func(ctx context.Context, _ bus.Message) error { <-ctx.Done(); return ctx.Err() })
		publish(t, b, "1", "2", "3")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close with messages left: %v", err)
		}
		if st := b.Stats(); st.Dropped != 3 {
			t.Errorf("stats %+v", st)
		}
		if err := b.Publish(t.Context(), message("4")); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("publish after close: %v", err)
		}
		if _, err := b.Subscribe(bus.Pattern{}, nil); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("subscribe after close: %v", err)
		}
	})
}

// Subscribers come and go while others publish.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	b := New(Options{Buffer: 16})
	var stays sync.Map
	subscribe(t, b, func(_ context.Context, m bus.Message) error { stays.Store(m.ID, true); return nil })
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				if err := b.Publish(t.Context(), message(fmt.Sprintf("%d-%d", g, i))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				s, err := b.Subscribe(bus.Pattern{}, func(context.Context, bus.Message) error { return nil })
				if err != nil {
					t.Error(err)
					return
				}
				s.Close()
			}
		})
	}
	wg.Wait()
	closeBus(t, b)
	n := 0
	stays.Range(func(any, any) bool { n++; return true })
	if n != 800 {
		t.Errorf("handled %d of 800", n)
	}
}

func TestAttended(t *testing.T) {
	t.Parallel()
	b := New(Options{})
	if b.Attended() {
		t.Error("a bus without subscribers is attended")
	}
	s, err := b.Subscribe(bus.Pattern{}, func(context.Context, bus.Message) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if !b.Attended() {
		t.Error("a bus with a subscriber is not attended")
	}
	s.Close()
	if b.Attended() {
		t.Error("a bus that its subscriber left is attended")
	}
}
