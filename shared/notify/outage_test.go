package notify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// flaky is a ledger whose commits fail now and then: before they are applied, or
// after, when it does not know.
type flaky struct {
	ledger.Ledger
	mu   sync.Mutex
	rand *rand.Rand
}

func (l *flaky) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	n := l.rand.IntN(10)
	l.mu.Unlock()
	if n == 0 {
		return fmt.Errorf("commit: %w", ledger.ErrUnavailable)
	}
	err := l.Ledger.Commit(ctx, ws...)
	if err == nil && n == 1 {
		return fmt.Errorf("commit: %w", ledger.ErrUnknown)
	}
	return err
}

// TestOutages: a ledger that fails every fifth commit, or says that it does not know,
// loses no message and makes none twice.
func TestOutages(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	x := p.another(&flaky{Ledger: p.db, rand: rand.New(rand.NewPCG(1, 2))})
	x.roots = p.roots
	failed := 0
	for i := range 60 {
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("rule%d", i)))
		for _, err := range []error{x.Follow(t.Context(), stream), x.Deliver(t.Context(), record.LaneKey(r.ID))} {
			if err != nil {
				failed++
			}
		}
		p.advance(time.Second)
	}
	p.advance(2 * time.Minute)
	p.run()
	if n := len(s.ids()); n != 60 || len(p.deliveries(r, "")) != 60 || len(p.deliveries(r, Delivered)) != 60 {
		t.Errorf("%d of 60 came, %d are made, %d delivered", n, len(p.deliveries(r, "")), len(p.deliveries(r, Delivered)))
	}
	if failed < 10 {
		t.Errorf("only %d calls failed", failed)
	}
}
