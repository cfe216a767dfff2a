package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	queuesqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/relay"
)

// planBell is a message for a plan of that name.
func planBell(t *testing.T, plan string) queue.Outgoing {
	t.Helper()
	body, err := json.Marshal(relay.PlaneMessage{Version: protocol.Version, Operation: id.Derive(id.Operation, plan)})
	if err != nil {
		t.Fatal(err)
	}
	return queue.Outgoing{Body: body}
}

// TestPlansAreTakenOnByOne: of a plan's messages one is taken at a time, however
// many there are, and no message is deleted before a take that began after it
// was received has gone well. A plan that is slow holds up no other.
func TestPlansAreTakenOnByOne(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	q, err := queuesqlite.Open(ctx, queuesqlite.Options{Path: filepath.Join(t.TempDir(), "queue.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	if err := q.Ensure(ctx, relay.PlaneQueue); err != nil {
		t.Fatal(err)
	}
	slow, fails := id.Derive(id.Operation, "slow"), id.Derive(id.Operation, "fails")
	var (
		mu      sync.Mutex
		at      = map[string]int{}
		takes   = map[string]int{}
		faults  []string
		begun   = make(chan struct{}, 100)
		release = make(chan struct{})
		quick   = make(chan struct{}, 100)
	)
	p := planners{queue: q, rung: map[string][]queue.Message{}, warn: func(context.Context, string, error) {}}
	p.take = func(_ context.Context, m queue.Message) error {
		pm, err := relay.ParsePlane(m.Body)
		if err != nil {
			return err
		}
		mu.Lock()
		at[pm.Operation]++
		takes[pm.Operation]++
		if at[pm.Operation] > 1 {
			faults = append(faults, fmt.Sprintf("%d at once at %s", at[pm.Operation], pm.Operation))
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			at[pm.Operation]--
			mu.Unlock()
		}()
		switch pm.Operation {
		case slow:
			begun <- struct{}{}
			<-release
		case fails:
			quick <- struct{}{}
			return errors.New("not now")
		default:
			quick <- struct{}{}
		}
		return nil
	}
	done := make(chan struct{})
	go func() { defer close(done); p.run(ctx) }()

	send := func(names ...string) {
		for _, n := range names {
			if err := q.Send(ctx, relay.PlaneQueue, planBell(t, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	await := func(c chan struct{}, what string) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("not within a minute: %s", what)
		}
	}
	send("slow")
	await(begun, "the slow plan taken on")
	for range 25 { // all while it is at it
		send("slow")
	}
	send("quick", "fails")
	await(quick, "another plan beside the slow one")
	await(quick, "a third one")
	left := func() int {
		n, err := q.Depth(ctx, relay.PlaneQueue)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := left(); n < 27 { // those of the slow plan, and of the one that failed
		t.Errorf("%d messages are left: some were deleted before they were dealt with", n)
	}
	close(release)
	for end := time.Now().Add(time.Minute); left() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d messages are left, want the one that failed", left())
		}
	}
	stop()
	await(done, "the end")
	mu.Lock()
	defer mu.Unlock()
	if len(faults) > 0 {
		t.Errorf("%d faults, the first: %s", len(faults), faults[0])
	}
	if n := takes[slow]; n < 2 || n > 10 {
		t.Errorf("26 messages of one plan, of which one came first, were taken %d times", n)
	}
	if n := takes[fails]; n != 1 {
		t.Errorf("what failed was taken %d times within its visibility", n)
	}
}
