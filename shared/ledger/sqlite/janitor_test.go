package sqlite

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func TestJanitor(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { mu.Lock(); defer mu.Unlock(); return at }
	advance := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); at = at.Add(d) }
	db := start(t, Options{Now: now, FeedAge: time.Hour, JanitorEvery: time.Hour})
	const n = 2*chunk + 50
	for i := range n / 50 {
		var writes []ledger.Write
		for j := range 50 {
			w := simple("p", fmt.Sprintf("%04d", i*50+j), "", 0)
			if j%2 == 0 {
				w.Item.Expires = at.Add(time.Minute)
			}
			writes = append(writes, w)
		}
		if err := db.Commit(t.Context(), writes...); err != nil {
			t.Fatal(err)
		}
	}
	_, middle, err := db.Changes(t.Context(), "", 30, 0)
	if err != nil {
		t.Fatal(err)
	}
	advance(30 * time.Minute)
	if err := db.Commit(t.Context(), simple("p", "young", "", 0)); err != nil {
		t.Fatal(err)
	}
	if err := db.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Expired != n/2 || s.Trimmed != 0 {
		t.Errorf("after half an hour: %+v", s)
	}
	advance(31 * time.Minute)
	if err := db.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Trimmed != n {
		t.Errorf("after an hour: %+v", s)
	}
	if _, _, err := db.Changes(t.Context(), middle, 10, 0); !errors.Is(err, ledger.ErrPositionExpired) {
		t.Errorf("old position: got %v, want ErrPositionExpired", err)
	}
	changes, last, err := db.Changes(t.Context(), "", 10, 0)
	if err != nil || len(changes) != 1 || changes[0].SK != "young" {
		t.Errorf("what is left: got %v, %v", changes, err)
	}
	// Positions go on after everything was trimmed and the file reopened.
	advance(2 * time.Hour)
	if err := db.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Close()
	db = start(t, Options{Path: db.opts.Path, Now: now})
	if changes, _, err = db.Changes(t.Context(), last, 10, 0); err != nil || len(changes) != 0 {
		t.Errorf("position of the end: got %v, %v", changes, err)
	}
	if err := db.Commit(t.Context(), simple("p", "more", "", 0)); err != nil {
		t.Fatal(err)
	}
	if changes, _, err = db.Changes(t.Context(), last, 10, 0); err != nil || len(changes) != 1 || changes[0].SK != "more" {
		t.Errorf("after reopening: got %v, %v", changes, err)
	}
	if _, _, err := db.Changes(t.Context(), "999999", 10, 0); !errors.Is(err, ledger.ErrPositionExpired) {
		t.Errorf("position of another file: got %v, want ErrPositionExpired", err)
	}
}
