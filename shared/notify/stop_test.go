package notify

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/record"
)

// TestStop: where a process is told to stop, what a webhook is sent may be answered yet, and is
// told once; nothing more is sent, and what it asks for then is known to who comes next. What
// it does not answer soon is told again.
func TestStop(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		status    int // 0: no answer
		delivered int
		next      int // how many more it is sent at the next start
	}{
		"it takes them":        {200, perHost, 30 - perHost},
		"it asks for a pause":  {503, 0, 0},
		"it does not answer":   {0, 0, 30},
		"it refuses what came": {400, 0, 30 - perHost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			if x.status == 0 {
				p.stops = 50 * time.Millisecond
			}
			answers := make(chan struct{})
			s := newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
				if n > perHost {
					return
				}
				select {
				case <-answers:
				case <-r.Context().Done():
					return
				}
				if x.status == 503 {
					w.Header().Set("Retry-After", "300")
				}
				w.WriteHeader(x.status)
			})
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
			p.tell(alert.TypeFiring, p.ofOneRule("a", 30)...)
			if err := p.Follow(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- p.Deliver(ctx, record.LaneKey(r.ID)) }()
			eventually(t, "as many as go at once are out", func() bool { return len(s.all()) == perHost })
			cancel()
			if x.status > 0 {
				close(answers)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n := len(s.all()); n != perHost || len(p.deliveries(r, Delivered)) != x.delivered {
				t.Errorf("%d of %d are delivered, want %d of %d", len(p.deliveries(r, Delivered)), n, x.delivered, perHost)
			}
			if err := p.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p.serve(); len(s.all()) != perHost+x.next {
				t.Errorf("it was sent %d more, want %d", len(s.all())-perHost, x.next)
			}
			for id, n := range s.ids() {
				if n > 1 && x.status > 0 {
					t.Errorf("%s was told %d times", id, n)
				}
			}
		})
	}
}

// TestOutlives: what outlives a context that is cancelled ends so long after it, and at its
// deadline.
func TestOutlives(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ deadline, cancelled, want time.Duration }{
		"cancelled":                           {0, time.Second, 6 * time.Second},
		"cancelled, and a deadline behind it": {10 * time.Second, time.Second, 6 * time.Second},
		"cancelled shortly before a deadline": {3 * time.Second, time.Second, 3 * time.Second},
		"a deadline":                          {3 * time.Second, time.Hour, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				if x.deadline > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), x.deadline)
				}
				began := time.Now()
				defer time.AfterFunc(x.cancelled, cancel).Stop()
				defer cancel()
				out, end := outlives(ctx, 5*time.Second)
				defer end()
				if <-out.Done(); time.Since(began) != x.want {
					t.Errorf("it ended after %s, want %s", time.Since(began), x.want)
				}
			})
		})
	}
}
