package event

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// TestWaitBacksOff: where the ledger gives no signal, a wait of 25 s looks a
// dozen times or so, and never at longer pauses than said.
func TestWaitBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Reader{Ledger: struct{ ledger.Ledger }{}}
		b := r.listen([]string{"plane"}, true)
		defer b.stop()
		began, looks := time.Now(), 0
		for left := 25 * time.Second; left > 0; left = 25*time.Second - time.Since(began) {
			at := time.Now()
			if err := b.wait(context.Background(), left); err != nil {
				t.Fatal(err)
			}
			looks++
			switch took := time.Since(at); {
			case looks == 1 && took > defaultPoll*5/4:
				t.Errorf("the first look came after %s", took)
			case took > pollGrowth*defaultPoll*5/4:
				t.Errorf("look %d came after %s", looks, took)
			}
		}
		if looks > 25 || time.Since(began) != 25*time.Second {
			t.Errorf("%d looks in %s", looks, time.Since(began))
		}
	})
}
