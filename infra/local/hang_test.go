package local

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
)

// hanging is the reactor's ledger, which hangs for some streams: it gives no answer,
// and with deaf does not even notice that its time is over.
type hanging struct {
	ledger.Ledger
	deaf bool
	over chan struct{} // closed when it answers again

	mu    sync.Mutex
	calls map[string]int // by stream, of those that hang
}

const hangs = "clu_hangs"

func (l *hanging) GetMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	stream := record.JudgedOf(keys[0])
	if !strings.HasPrefix(stream, hangs) {
		return l.Ledger.GetMany(ctx, keys)
	}
	l.mu.Lock()
	l.calls[stream]++
	l.mu.Unlock()
	done := ctx.Done()
	if l.deaf {
		done = nil
	}
	select {
	case <-l.over:
		return l.Ledger.GetMany(ctx, keys)
	case <-done:
		return nil, ctx.Err()
	}
}

// called counts the streams that hang, and how often that with the fewest calls was
// tried.
func (l *hanging) called() (streams, least int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.calls {
		if least == 0 || n < least {
			least = n
		}
	}
	return len(l.calls), least
}

// TestHangingStreamsHoldUpNobody: streams that hang while they are judged, more than
// are judged at once and each with a timer that is due, hold up neither the sweep nor
// the feed nor the streams that do not. They are told of as behind, and judged when
// they hang no more.
func TestHangingStreamsHoldUpNobody(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]bool{"until their time is over": false, "for good": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = judgeAtOnce + 3
			var l *hanging
			s := newSite(t, t.TempDir(), func(e *Engine) {
				e.judges.within = 300 * time.Millisecond
				l = &hanging{Ledger: e.ledger, deaf: deaf, over: make(chan struct{}), calls: map[string]int{}}
				e.Reactor.Store = &record.Store{Ledger: l, Now: e.Store.Now, Timing: e.Store.Timing}
				for i := range n {
					due := ledger.Item{Key: record.JudgedKey(fmt.Sprint(hangs, i)), Data: []byte(`{"next":1}`), Due: time.Now().Add(-time.Minute)}
					if err := e.ledger.Commit(t.Context(), ledger.Write{Item: due}); err != nil {
						t.Fatal(err)
					}
				}
			})
			stopped := sync.OnceFunc(func() { close(l.over) })
			t.Cleanup(stopped) // before the engine's end, which waits for them
			ctx := t.Context()
			s.wait("all of them hang", time.Minute, func() bool { streams, _ := l.called(); return streams == n })
			rule := alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}, For: alert.Duration(time.Second)}
			if _, err := s.Alerts.CreateRule(ctx, PlaneCall(), rule); err != nil {
				t.Fatal(err)
			}
			s.finish(s.ask(1)...)
			s.wait("an alert fires, by its timer", time.Minute, func() bool {
				got, _, err := s.Alerts.Alerts(ctx, react.Filter{Rule: "cordoned", States: []alert.State{alert.Firing}}, "", 10)
				return err == nil && len(got) == 1
			})
			began := s.swept.Load()
			s.wait("the sweep goes round", time.Minute, func() bool { return s.swept.Load() > began })
			s.wait("they are behind", time.Minute, func() bool { k, _ := s.behind.longer(time.Now(), 0); return k == n })
			lived := s.reactorSince()
			s.wait("the reactor lives all the same", time.Minute, func() bool { return s.reactorSince().After(lived) })
			if !deaf {
				s.wait("they are tried again", time.Minute, func() bool { _, least := l.called(); return least > 1 })
			}
			stopped()
			s.wait("they are judged", time.Minute, func() bool { k, _ := s.behind.longer(time.Now(), 0); return k == 0 })
		})
	}
}
