package auth

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestLimiterRate(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := &Limiter{Rate: 10, Burst: 5, Now: c.now}
	for i := range 5 {
		if ok, _ := l.Allow("a"); !ok {
			t.Fatalf("request %d refused", i)
		}
	}
	ok, after := l.Allow("a")
	if ok || after != 100*time.Millisecond {
		t.Errorf("beyond the burst: %t, %s", ok, after)
	}
	if ok, _ := l.Allow("b"); !ok {
		t.Error("another principal is refused")
	}
	c.move(after)
	if ok, _ := l.Allow("a"); !ok {
		t.Error("refused after the time that was told") // refusals cost nothing
	}
}

func TestLimiterDefaults(t *testing.T) {
	t.Parallel()
	c := newClock()
	for rate, want := range map[float64]int{0: 5 * DefaultRate, 1: 10, 100: 500} {
		l := &Limiter{Rate: rate, Now: c.now}
		n := 0
		for ; n < 2*want; n++ {
			if ok, _ := l.Allow("a"); !ok {
				break
			}
		}
		if n != want {
			t.Errorf("at %v a second: %d at once, want %d", rate, n, want)
		}
	}
}

func TestLimiterWaits(t *testing.T) {
	t.Parallel()
	l := &Limiter{Waits: 2}
	first, ok1 := l.AcquireWait("a")
	_, ok2 := l.AcquireWait("a")
	release, ok3 := l.AcquireWait("a")
	if !ok1 || !ok2 || ok3 {
		t.Fatal(ok1, ok2, ok3)
	}
	release() // of one that was refused: nothing
	if _, ok := l.AcquireWait("a"); ok {
		t.Error("a third wait")
	}
	if _, ok := l.AcquireWait("b"); !ok {
		t.Error("another principal is refused")
	}
	first()
	first()
	if _, ok := l.AcquireWait("a"); !ok {
		t.Error("refused after a release")
	}
	if _, ok := l.AcquireWait("a"); ok {
		t.Error("one release gave two waits back")
	}
}

func TestLimiterForgets(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := &Limiter{Rate: 10, Burst: 10, Now: c.now}
	release, _ := l.AcquireWait("waits")
	for i := range 3 * limiterMax {
		l.Allow(fmt.Sprint(i))
		c.move(time.Millisecond)
	}
	if n := len(l.by); n > limiterMax {
		t.Errorf("%d principals in memory", n)
	}
	if l.by["waits"] == nil {
		t.Error("an open wait was forgotten")
	}
	release()
	c.move(time.Minute)
	l.Allow("new")
	if n := len(l.by); n != 1 {
		t.Errorf("%d principals in memory after a minute, want the new one", n)
	}
}

func TestLimiterConcurrent(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := &Limiter{Rate: 1, Burst: 100, Waits: 3, Now: c.now}
	var allowed, open, most atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if ok, _ := l.Allow("a"); ok {
					allowed.Add(1)
				}
				if release, ok := l.AcquireWait("a"); ok {
					if n := open.Add(1); n > most.Load() {
						most.Store(n)
					}
					open.Add(-1)
					release()
				}
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 100 || most.Load() > 3 {
		t.Errorf("%d allowed, %d waits at once", allowed.Load(), most.Load())
	}
}
