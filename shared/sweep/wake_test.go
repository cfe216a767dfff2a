package sweep_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/sweep"
)

var update = flag.Bool("update", false, "write the golden files anew")

// alarm is a queue of wake-ups on a clock of the test's.
type alarm struct {
	mu   sync.Mutex
	now  time.Time
	err  error
	n    int // calls
	sent []sent
}

type sent struct {
	at   time.Time // when it rings
	body []byte
	rang bool
}

func (a *alarm) clock() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

func (a *alarm) pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

func (a *alarm) Send(_ context.Context, name string, ms ...queue.Outgoing) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if a.err != nil {
		return a.err
	}
	if err := queue.CheckSend(ms); err != nil {
		return err
	}
	if name != sweep.WakeQueue {
		return fmt.Errorf("%w: %s", queue.ErrNoQueue, name)
	}
	for _, m := range ms {
		if m.Delay%time.Second != 0 {
			return fmt.Errorf("delay of %s is not in whole seconds", m.Delay)
		}
		a.sent = append(a.sent, sent{at: a.now.Add(m.Delay), body: m.Body})
	}
	return nil
}

// ring takes a wake-up whose time has come off the queue.
func (a *alarm) ring() bool {
	for i := range a.sent {
		if s := &a.sent[i]; !s.rang && !s.at.After(a.now) {
			s.rang = true
			return true
		}
	}
	return false
}

// rings are how long after t0 the wake-ups ring.
func (a *alarm) rings() []time.Duration {
	out := []time.Duration{}
	for _, s := range a.sent {
		out = append(out, s.at.Sub(t0))
	}
	return out
}

func waker() (*alarm, *sweep.Waker) {
	a := &alarm{now: t0}
	return a, &sweep.Waker{Queue: a, Now: a.clock, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func after(ds ...time.Duration) []time.Time {
	out := make([]time.Time, len(ds))
	for i, d := range ds {
		out[i] = t0.Add(d)
	}
	return out
}

// TestRing: what is sent, for due times given at once.
func TestRing(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		dues  []time.Time
		rings []time.Duration
	}{
		"nothing":               {nil, []time.Duration{}},
		"no due time":           {[]time.Time{{}}, []time.Duration{}},
		"ten seconds":           {after(10 * time.Second), []time.Duration{10 * time.Second}},
		"rounded up":            {after(9001 * ms), []time.Duration{10 * time.Second}},
		"now":                   {after(0), []time.Duration{time.Second}},
		"a moment ago":          {after(-2 * time.Second), []time.Duration{time.Second}},
		"long ago":              {after(-time.Minute), []time.Duration{}},
		"at the horizon":        {after(2 * time.Minute), []time.Duration{2 * time.Minute}},
		"behind the horizon":    {after(2*time.Minute + ms), []time.Duration{}},
		"twice":                 {after(10*time.Second, 10*time.Second), []time.Duration{10 * time.Second}},
		"within a second":       {after(9200*ms, 9900*ms), []time.Duration{10 * time.Second}},
		"the first rings on":    {after(90*time.Second, 40*time.Second, 10*time.Second), []time.Duration{10 * time.Second}},
		"too soon to ring on":   {after(500*ms, 40*time.Second), []time.Duration{time.Second, 40 * time.Second}},
		"settled enough":        {after(3*time.Second, 40*time.Second), []time.Duration{3 * time.Second}},
		"all of them with junk": {append(after(-time.Hour, 5*time.Second, time.Hour), time.Time{}), []time.Duration{5 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, w := waker()
			if err := w.Ring(t.Context(), tt.dues...); err != nil {
				t.Fatal(err)
			}
			if got := a.rings(); !slices.Equal(got, tt.rings) {
				t.Errorf("rings after %v, want %v", got, tt.rings)
			}
			if a.n > 1 {
				t.Errorf("%d calls", a.n)
			}
			if n, lost := w.Counts(); int(n) != len(tt.rings) || lost != 0 {
				t.Errorf("counted %d sent, %d lost", n, lost)
			}
		})
	}
}

// TestRingAgain: what a process remembers of what it sent.
func TestRingAgain(t *testing.T) {
	t.Parallel()
	a, w := waker()
	ring := func(in time.Duration) {
		t.Helper()
		if err := w.Ring(t.Context(), a.clock().Add(in)); err != nil {
			t.Fatal(err)
		}
	}
	ring(10 * time.Second)
	for range 6 { // seven seconds of commits lean on the first
		a.pass(time.Second)
		ring(10 * time.Second)
	}
	if len(a.sent) != 1 {
		t.Fatalf("rings %v", a.rings())
	}
	a.pass(2 * time.Second) // 8 s: it rings too soon to be sure to see this commit
	ring(10 * time.Second)
	if want := []time.Duration{10 * time.Second, 18 * time.Second}; !slices.Equal(a.rings(), want) {
		t.Fatalf("rings %v, want %v", a.rings(), want)
	}
	ring(4 * time.Second) // 12 s: earlier than the one at 18 s, and the one at 10 s is too soon
	if got := a.rings(); got[len(got)-1] != 12*time.Second {
		t.Fatalf("rings %v", got)
	}
	a.pass(time.Hour)
	ring(10 * time.Second)
	if len(a.sent) != 4 {
		t.Errorf("rings %v", a.rings())
	}
}

// TestRingLost: one that could not be sent is not leaned on.
func TestRingLost(t *testing.T) {
	t.Parallel()
	a, w := waker()
	a.err = queue.ErrUnavailable
	due := t0.Add(10 * time.Second)
	if err := w.Ring(t.Context(), due); !errors.Is(err, queue.ErrUnavailable) {
		t.Fatalf("err %v", err)
	}
	a.err = nil
	if err := w.Ring(t.Context(), due); err != nil || len(a.sent) != 1 {
		t.Fatalf("err %v, rings %v", err, a.rings())
	}
	if n, lost := w.Counts(); n != 1 || lost != 1 {
		t.Errorf("counted %d sent, %d lost", n, lost)
	}
}

// TestWakeGolden: the message that is on its way while functions are deployed
// anew.
func TestWakeGolden(t *testing.T) {
	t.Parallel()
	a, w := waker()
	if err := w.Ring(t.Context(), t0.Add(10500*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "wake.json")
	if *update {
		if err := os.WriteFile(golden, append(a.sent[0].body, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.sent[0].body; !bytes.Equal(got, bytes.TrimSpace(want)) {
		t.Errorf("the message is %s, want %s", got, want)
	}
	m, err := sweep.ParseWake(want)
	if err != nil || !m.Due.Equal(t0.Add(10500*time.Millisecond)) {
		t.Errorf("read as %+v, %v", m, err)
	}
	for _, bad := range []string{"", "{", "null", "[]", "{}", `{"version":2,"kind":"wake","due":"2026-07-01T12:00:00Z"}`,
		`{"version":1,"kind":"sleep","due":"2026-07-01T12:00:00Z"}`, `{"version":1,"kind":"wake"}`, `{"version":1,"kind":"wake","due":"soon"}`} {
		if _, err := sweep.ParseWake([]byte(bad)); !errors.Is(err, sweep.ErrUnreadable) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// slow is an in-memory due index: what matters of a ledger here.
type slow struct {
	ledger.Ledger
	err error
}

func (l *slow) Commit(context.Context, ...ledger.Write) error { return l.err }

func due(key string, at, was time.Time) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: key, SK: "state"}, Due: at}, WasDue: was}
}

func TestWaking(t *testing.T) {
	t.Parallel()
	const second = time.Second
	none := time.Time{}
	for name, tt := range map[string]struct {
		writes []ledger.Write
		err    error
		rings  []time.Duration
	}{
		"created":                     {[]ledger.Write{due("a", t0.Add(10*second), none)}, nil, []time.Duration{10 * second}},
		"later than it was":           {[]ledger.Write{due("a", t0.Add(40*second), t0.Add(10*second))}, nil, []time.Duration{}},
		"as it was":                   {[]ledger.Write{due("a", t0.Add(10*second), t0.Add(10*second))}, nil, []time.Duration{}},
		"earlier than it was":         {[]ledger.Write{due("a", t0.Add(5*second), t0.Add(10*second))}, nil, []time.Duration{5 * second}},
		"it was due soon":             {[]ledger.Write{due("a", t0.Add(40*second), t0.Add(2*second))}, nil, []time.Duration{40 * second}},
		"it was overdue":              {[]ledger.Write{due("a", t0.Add(40*second), t0.Add(-second))}, nil, []time.Duration{40 * second}},
		"ended":                       {[]ledger.Write{due("a", none, t0.Add(10*second))}, nil, []time.Duration{}},
		"a check and a delete":        {[]ledger.Write{{Kind: ledger.Check, Item: ledger.Item{Due: t0}}, {Kind: ledger.Delete, Item: ledger.Item{Due: t0}}}, nil, []time.Duration{}},
		"many, one of them new":       {[]ledger.Write{due("a", t0.Add(40*second), t0.Add(10*second)), due("b", t0.Add(20*second), none)}, nil, []time.Duration{20 * second}},
		"a commit of unknown outcome": {[]ledger.Write{due("a", t0.Add(10*second), none)}, ledger.ErrUnknown, []time.Duration{10 * second}},
		"a commit that failed":        {[]ledger.Write{due("a", t0.Add(10*second), none)}, ledger.ErrConflict, []time.Duration{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, w := waker()
			l := sweep.Waking(&slow{err: tt.err}, w)
			if err := l.Commit(t.Context(), tt.writes...); !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			if got := a.rings(); !slices.Equal(got, tt.rings) {
				t.Errorf("rings after %v, want %v", got, tt.rings)
			}
		})
	}
	t.Run("a wake-up that fails", func(t *testing.T) {
		t.Parallel()
		a, w := waker()
		a.err = queue.ErrUnavailable
		if err := sweep.Waking(&slow{}, w).Commit(t.Context(), due("a", t0.Add(10*second), none)); err != nil {
			t.Errorf("it failed the commit: %v", err)
		}
		if _, lost := w.Counts(); lost != 1 {
			t.Errorf("%d counted as lost", lost)
		}
	})
	t.Run("a caller that has gone", func(t *testing.T) {
		t.Parallel()
		a, w := waker()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := sweep.Waking(&slow{}, w).Commit(ctx, due("a", t0.Add(10*second), none)); err != nil || len(a.sent) != 1 {
			t.Errorf("err %v, rings %v", err, a.rings())
		}
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		a, w := waker()
		l := sweep.Waking(&slow{}, w)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if err := l.Commit(t.Context(), due(fmt.Sprint(i), t0.Add(10*second), none)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(a.sent) != 1 {
			t.Errorf("%d commits for one time ring %v", 50, a.rings())
		}
	})
}

// TestEveryDueTimeIsKept: whatever several processes commit, with the chain that
// a woken sweep hands on and no message lost, each item is looked at within a
// second and a half after it is due; the messages are far fewer than commits.
func TestEveryDueTimeIsKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a := &alarm{now: t0}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1)) // thousands of draws are no use to a reader
		quiet := rapid.SampledFrom([]int{3, 10, 100}).Draw(rt, "quiet")
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		var processes []*sweep.Waker // the last is the sweep's
		for range 4 {
			processes = append(processes, &sweep.Waker{Queue: a, Now: a.clock, Logger: log})
		}
		model := &index{lag: time.Duration(rapid.IntRange(0, 400).Draw(rt, "lag ms")) * time.Millisecond, items: map[string][]mark{}}
		commits, worst := 0, time.Duration(0)
		woken := func() {
			for key, due := range model.due(a.now) {
				worst = max(worst, a.now.Sub(due))
				model.put(key, time.Time{}, a.now)
			}
			if err := processes[3].Ring(t.Context(), model.next(a.now)); err != nil {
				rt.Fatal(err)
			}
		}
		end := t0.Add(10 * time.Minute)
		for ; a.now.Before(end); a.now = a.now.Add(100 * time.Millisecond) {
			for a.ring() {
				woken()
			}
			if a.now.Sub(t0)%time.Minute == 0 { // the tick
				woken()
			}
			if rnd.IntN(quiet) > 0 || a.now.After(end.Add(-3*time.Minute)) {
				continue
			}
			key := fmt.Sprint(rnd.IntN(6))
			was := model.at(key)
			in := time.Duration([]int{1, 2, 5, 10, 40, 40, 90, 150}[rnd.IntN(8)]) * time.Second
			if rnd.IntN(5) == 0 {
				in = 0
			}
			to := time.Time{}
			if in > 0 {
				to = a.now.Add(in)
			}
			if !was.IsZero() && was.Before(a.now) {
				continue // it is the sweep's turn
			}
			model.put(key, to, a.now)
			commits++
			w := processes[rnd.IntN(3)]
			l := sweep.Waking(&slow{}, w)
			if err := l.Commit(t.Context(), due(key, to, was)); err != nil {
				rt.Fatal(err)
			}
		}
		woken()
		if worst > 1500*time.Millisecond {
			rt.Fatalf("an item was looked at %s late, of %d commits with %d wake-ups", worst, commits, len(a.sent))
		}
		// One for each second in which something is due, and of each process that
		// commits one in three seconds.
		if seconds := int(end.Sub(t0) / time.Second); len(a.sent) > 2*seconds {
			rt.Fatalf("%d wake-ups in %d seconds for %d commits", len(a.sent), seconds, commits)
		}
	})
}

// index is a due index that shows a write only after a while.
type index struct {
	lag   time.Duration
	items map[string][]mark
}

type mark struct{ due, at time.Time }

func (x *index) put(key string, due, now time.Time) {
	ms := append(x.items[key], mark{due, now})
	x.items[key] = ms[max(0, len(ms)-8):] // what is older is seen
}

// at is an item's true due time.
func (x *index) at(key string) time.Time {
	if ms := x.items[key]; len(ms) > 0 {
		return ms[len(ms)-1].due
	}
	return time.Time{}
}

// seen is the due time that the index shows.
func (x *index) seen(key string, now time.Time) (due time.Time) {
	for _, m := range x.items[key] {
		if m.at.Equal(now) && x.lag == 0 || !m.at.Add(x.lag).After(now) {
			due = m.due
		}
	}
	return due
}

// due are the items that the index shows and that are in fact due.
func (x *index) due(now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for key := range x.items {
		if seen := x.seen(key, now); !seen.IsZero() && !seen.After(now) && seen.Equal(x.at(key)) {
			out[key] = seen
		}
	}
	return out
}

// next is the next due time that the index shows.
func (x *index) next(now time.Time) (next time.Time) {
	for key := range x.items {
		seen := x.seen(key, now)
		if seen.After(now) && !seen.After(now.Add(sweep.Horizon)) && (next.IsZero() || seen.Before(next)) {
			next = seen
		}
	}
	return next
}

// TestWakeUpsOfAnOperation: what an operation costs from its creation to its
// end, each part in a process of its own.
func TestWakeUpsOfAnOperation(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := &alarm{now: p.now()}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	process := func() *sweep.Waker { return &sweep.Waker{Queue: a, Now: p.now, Logger: log} }
	api, relays, agents, sweeps := process(), process(), process(), process()
	as := func(w *sweep.Waker) { // the plane's services share a store: it becomes that process's
		a.now = p.now()
		p.store.Ledger = sweep.Waking(p.tap, w)
	}
	as(agents)
	ag := p.agent("a")
	if len(a.sent) != 1 {
		t.Fatalf("an agent's arrival rings after %v", a.rings())
	}
	for range 5 { // its silence is due later each time, whoever hears it
		p.pass(3 * time.Second)
		as(process())
		p.no(ag.beat())
	}
	before := len(a.sent)
	if before != 1 {
		t.Fatalf("heartbeats ring after %v", a.rings())
	}
	p.sweep.Waker = sweeps

	as(api)
	op := p.create(drain("n0"))
	if got := len(a.sent) - before; got != 1 {
		t.Fatalf("its creation sent %d wake-ups", got)
	}
	p.pass(200 * time.Millisecond)
	as(relays)
	p.settle()
	p.pass(200 * time.Millisecond)
	as(agents)
	assigned := ag.granted(op)
	for n := range 4 { // renewals, each longer than the last
		p.pass(3 * time.Second)
		as(agents)
		if r := ag.renew(op, 1); !r.OK {
			t.Fatalf("renewal %d: %+v", n, r)
		}
		if n == 3 {
			as(sweeps) // the wake-up of its creation rings, and the chain goes on
			res, err := p.sweep.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := p.sweep.RingNext(t.Context(), res.Through, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	// That of its creation, that of the sweep which came to its doorbell's time,
	// found it claimed and put it to its lease's, and the chain's for the agent.
	if got := len(a.sent) - before; got != 3 {
		t.Errorf("it sent %d wake-ups, want 3: %v", got, a.rings())
	}
	as(agents)
	ag.told(success(assigned, 2, 2))
	if got := len(a.sent) - before; got != 3 {
		t.Errorf("its end rang: %v", a.rings())
	}
	p.want(op, operation.Succeeded)
	var last sweep.Wake
	if err := json.Unmarshal(a.sent[len(a.sent)-1].body, &last); err != nil {
		t.Fatal(err)
	}
	if in := last.Due.Sub(p.now()); in < time.Second || in > sweep.Horizon {
		t.Errorf("the chain rings for %s from now", in)
	}
	if r := ag.claim(op); r.Result != protocol.ClaimGone {
		t.Errorf("claim at the end: %+v", r)
	}
}
