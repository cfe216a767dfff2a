package notify

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// refuser refuses the whole of what has an alert in it whose name begins so, each when it is
// let, and takes anything else at once.
type refuser struct {
	*fake
	let     chan struct{}
	fails   func(http.ResponseWriter, *http.Request)
	refused atomic.Int32
}

func newRefuser(t *testing.T, p *plane, bad string) *refuser {
	t.Helper()
	x := &refuser{fake: newFake(t, p), let: make(chan struct{}),
		fails: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) }}
	take := x.answer
	x.answer = func(w http.ResponseWriter, r *http.Request, n int) {
		if !bytes.Contains(x.all()[n-1].body, []byte(`"alertname":"`+bad)) {
			take(w, r, n)
			return
		}
		select {
		case <-x.let:
			x.refused.Add(1)
			x.fails(w, r)
		case <-r.Context().Done():
		}
	}
	return x
}

// until lets it refuse till something is so, and returns how often it did.
func (x *refuser) until(t *testing.T, what string, is func() bool) int32 {
	t.Helper()
	n := x.refused.Load()
	eventually(t, what, func() bool {
		if is() {
			return true
		}
		select {
		case x.let <- struct{}{}:
		default:
		}
		return false
	})
	return x.refused.Load() - n
}

// delivers sends what is due to a receiver till the test ends.
func (p *plane) delivers(r Receiver) {
	over := make(chan struct{})
	p.t.Cleanup(func() { <-over })
	go func() {
		defer close(over)
		for p.t.Context().Err() == nil {
			if err := p.Deliver(p.t.Context(), record.LaneKey(r.ID)); err != nil && p.t.Context().Err() == nil {
				p.t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

// knows are the alerts but the bad ones, and whether they all fire there.
func (x *refuser) knows(p *plane, names ...string) func() bool {
	slices.Sort(names)
	return func() bool { return slices.Equal(x.firing(p.clock()), names) }
}

// Of what an Alertmanager refuses, slowly, those to blame are found in a few refusals, which
// are not begun anew; what else there is to tell waits for the first at most, and those that
// are known are told apart from then on.
func TestSlowRefusals(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	x, up := newRefuser(t, p, "bad"), newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{x.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	const bad = 5
	var alerts []*alert.Alert
	var good []string
	for i := range 100 {
		name := fmt.Sprintf("ok%03d", i)
		if i%20 == 0 {
			name = fmt.Sprintf("bad%03d", i)
		} else {
			good = append(good, name)
		}
		alerts = append(alerts, p.alert(name))
	}
	follow := func(typ string, alerts ...*alert.Alert) {
		t.Helper()
		p.tell(typ, alerts...)
		if err := p.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	follow(alert.TypeFiring, alerts...)
	p.delivers(r)
	eventually(t, "it is asked, and the other one knows all", func() bool { return len(x.all()) == 1 && len(up.firing(p.clock())) == len(alerts) })

	late := p.alert("late")
	follow(alert.TypeFiring, late)
	x.let <- struct{}{}
	eventually(t, "it knows what came meanwhile", func() bool { return slices.Contains(x.firing(p.clock()), "late") })
	good = append(good, "late")
	x.until(t, "it knows all good ones", x.knows(p, good...))
	if n := x.refused.Load(); n > 1+2*bad {
		t.Errorf("the good ones were told after %d refusals", n)
	}
	follow(alert.TypeResolved, alerts[1])
	good = slices.DeleteFunc(good, func(n string) bool { return n == alerts[1].Rule })
	eventually(t, "it knows an end", x.knows(p, good...))
	lets := func() { // all that is due is told
		t.Helper()
		x.until(t, "the lane is left until later", func() bool {
			l, due := p.laneOf(r)
			return l.Holder == "" && l.Revision == r.Revision && due.After(p.clock())
		})
	}
	lets()
	for _, d := range p.deliveries(r, Pending) {
		if !strings.HasPrefix(d.Rule, "bad") || d.LastError != "/urls/0: answered 413" {
			t.Errorf("%s is %s: %q", d.Rule, d.State, d.LastError)
		}
	}
	if n := len(p.deliveries(r, Pending)); n != bad {
		t.Errorf("%d wait", n)
	}

	p.advance(time.Minute + 10*time.Second)
	n := x.refused.Load()
	lets()
	if n = x.refused.Load() - n; n != bad {
		t.Errorf("%d refusals a minute later, of %d bad ones", n, bad)
	}
	p.change(&r, func(sp *Spec) { sp.Timeout = alert.Duration(MaxTimeout - time.Second) })
	n = x.refused.Load()
	lets()
	if n = x.refused.Load() - n; n <= bad {
		t.Errorf("%d refusals when it is changed: what was refused before is still held against it", n)
	}
	if !x.knows(p, good...)() {
		t.Errorf("fires there (-want +got):\n%s", cmp.Diff(good, x.firing(p.clock())))
	}
}

// wordsOf are words with the ids.
func wordsOf(ids ...string) (ws []*word) {
	for _, id := range ids {
		ws = append(ws, newWord(&Delivery{ID: id, Push: &push{}}))
	}
	return ws
}

// What is remembered of refusals is bounded, and forgotten when it is old; what there is no
// room for is told on no further.
func TestDoubtsAreBounded(t *testing.T) {
	t.Parallel()
	d := &doubt{parts: map[string]suspect{}}
	var ids []string
	for i := range maxDoubts + 100 {
		ids = append(ids, fmt.Sprint(i))
	}
	if on := d.refused(inParts(wordsOf(ids...), doubtParts), answer{status: 400}, t0); len(on) != maxDoubts || len(d.parts) != maxDoubts {
		t.Errorf("%d are told on, %d remembered", len(on), len(d.parts))
	}
	q := &queue{has: map[string]bool{}}
	for _, id := range append([]string{"new"}, ids...) {
		q.put(id)
	}
	if got := d.clean(q, maxDoubts, nil); len(got) != 1+100 || got[0] != "new" {
		t.Errorf("first %d are told", len(got))
	}
	if got, want := d.part(q, maxDoubts, nil, t0), ids[:(len(ids)+doubtParts-1)/doubtParts]; !slices.Equal(got, want) {
		t.Errorf("then %q", got)
	}
	if on := d.refused(inParts(wordsOf("0"), 1), answer{status: 400}, t0.Add(doubtKept)); len(on) != 0 || !d.parts["0"].alone || len(d.parts) != maxDoubts {
		t.Errorf("%d are remembered after a while, %+v", len(d.parts), d.parts["0"])
	}
	d.refused(inParts(wordsOf("0"), 1), answer{status: 400}, t0.Add(doubtKept+resend))
	if len(d.parts) != 1 {
		t.Errorf("%d are remembered when they are old", len(d.parts))
	}
	d.taken(wordsOf("0"), t0)
	if len(d.parts) != 0 {
		t.Errorf("%d are remembered when they are taken", len(d.parts))
	}
}

// What is told apart is not forgotten while it only waits, since too much was refused.
func TestDoubtsThatWaitAreKept(t *testing.T) {
	t.Parallel()
	d, said := &doubt{parts: map[string]suspect{}}, answer{status: 400}
	d.refused(inParts(wordsOf("waits"), 1), said, t0)
	d.refused(inParts(wordsOf("gone"), 1), said, t0)
	later := t0.Add(doubtKept - resend/2)
	for range refusedTries {
		d.refused(inParts(wordsOf("other"), 1), said, later)
	}
	q := &queue{has: map[string]bool{}}
	q.put("waits")
	q.put("good")
	if got, as := d.spent(q, later); !slices.Equal(got, []string{"waits"}) || !as.notAsked {
		t.Errorf("not asked for now: %q, %+v", got, as)
	}
	d.refused(inParts(wordsOf("other"), 1), said, later.Add(resend))
	if _, is := d.parts["waits"]; !is || len(d.parts) != 2 {
		t.Errorf("known are %+v", d.parts)
	}
}

// What is known of refusals is left to whoever takes the lane, before it is free, and stays
// where another was faster.
func TestDoubtsGoWithTheLane(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	known := &doubts{by: map[string]*doubt{am.URL: {parts: map[string]suspect{"1": {}}}}}
	wakes := func() {
		ws, err := p.wake(t.Context(), r.ID)
		if err == nil {
			err = p.db.Commit(t.Context(), ws...)
		}
		if err != nil {
			t.Error(err)
		}
	}
	db := &woken{Ledger: p.db, wake: wakes}
	x := p.another(db)
	is := func(when string, want any) {
		t.Helper()
		if got, _ := x.doubts.Load(r.ID); got != want {
			t.Errorf("%s: %v is left", when, got)
		}
	}
	x.doubts.Store(r.ID, known)
	db.times.Store(1)
	wakes()
	if h, err := x.take(t.Context(), r.ID, "one", time.Minute); h != nil || err != nil {
		t.Fatalf("it was taken, %v", err)
	}
	is("another was faster", known)
	h, err := x.take(t.Context(), r.ID, "one", time.Minute)
	if err != nil || h == nil || h.asks.doubts != known {
		t.Fatalf("%+v, %v", h, err)
	}
	is("it is taken", nil)
	db.wake = func() {
		is("it is about to be left", known)
		wakes()
	}
	db.times.Store(1)
	if err := x.leave(t.Context(), h, p.clock()); !errors.Is(err, ledger.ErrConflict) || h.asks.doubts != known {
		t.Errorf("%+v, %v", h.asks.doubts, err)
	}
	is("it goes on", nil)
	if err := x.giveBack(t.Context(), h, p.clock()); err != nil {
		t.Error(err)
	}
	is("it is left", known)
}

// However many an Alertmanager refuses, slowly, that has no other beside it: what falls due
// meanwhile waits for none of them, and what fires there does not lapse.
func TestSlowRefusalsOfTheOnlyOne(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	x := newRefuser(t, p, "bad")
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{x.URL}, Timeout: alert.Duration(MaxTimeout)})
	knows := func(prefix string, n int, at time.Time) func() bool {
		return func() bool {
			is := 0
			for _, name := range x.firing(at) {
				if strings.HasPrefix(name, prefix) {
					is++
				}
			}
			return is == n
		}
	}
	p.begins("known", 30)
	p.run()
	p.advance(resend / 2)
	p.begins("bad", 40)
	p.begins("ok", 20)
	p.advance(resend) // what is known is told again, with what is refused, and after it
	p.delivers(r)
	eventually(t, "it is asked", func() bool { return len(x.all()) == 2 })
	x.let <- struct{}{}
	eventually(t, "it is told again what it knew", knows("known", 30, p.clock().Add(endsAhead-time.Second)))
	for i := range 10 {
		p.begins(fmt.Sprintf("late%d", i), 2)
		eventually(t, "it knows what came meanwhile", knows("late", 2*(i+1), p.clock()))
	}
	x.until(t, "it knows all good ones", knows("ok", 20, p.clock()))
}

// begins tells of alerts that begin, and makes the messages.
func (p *plane) begins(prefix string, n int) {
	p.t.Helper()
	var alerts []*alert.Alert
	for i := range n {
		alerts = append(alerts, p.alert(fmt.Sprintf("%s-%03d", prefix, i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	if err := p.Follow(p.t.Context(), stream); err != nil {
		p.t.Fatal(err)
	}
}

// What was refused before the plane was started is told apart from the rest, after it.
func TestRefusedBeforeAStart(t *testing.T) {
	t.Parallel()
	p := setup(t)
	x := newRefuser(t, p, "bad")
	close(x.let)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{x.URL}})
	p.begins("bad", 20)
	p.begins("ok", 20)
	p.run()
	roots := p.roots
	p.Service = p.another(p.db)
	p.roots = roots
	p.advance(resend + 10*time.Second)
	n := len(x.all())
	p.run()
	for _, g := range x.all()[n:] {
		names := func(prefix string) int { return bytes.Count(g.body, []byte(`"alertname":"`+prefix)) }
		if bad, ok := names("bad"), names("ok"); ok > 0 && (bad != 0 || ok != 20) {
			t.Errorf("it was told %d together with %d bad ones", ok, bad)
		}
	}
	if m := len(x.all()) - n; m < 20 || m > 1+1+doubtParts+20 {
		t.Errorf("it was asked %d times", m)
	}
}

// Alerts on which an Alertmanager fails, or what is before it, and for which it refuses
// nothing, keep no other from being told, nor have those lapse that fire there.
func TestFailsOnAlerts(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(http.ResponseWriter, *http.Request){
		"500":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"403":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"reset": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		for _, bad := range []int{1, 10} {
			t.Run(fmt.Sprint(name, bad), func(t *testing.T) {
				t.Parallel()
				p := setup(t)
				x := newRefuser(t, p, "bad")
				x.fails = fails
				close(x.let)
				r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{x.URL}, Timeout: alert.Duration(MinTimeout)})
				p.begins("known", 30)
				p.run()
				p.advance(resend)
				p.begins("bad", bad)
				p.begins("ok", 30)
				n := len(x.all())
				const steps, step = 12, 7 * time.Second
				for i := range steps {
					p.begins(fmt.Sprintf("late%d", i), 1)
					p.run()
					if p.advance(step); i > 4 { // it is asked for all, parts and single ones, after pauses of 2, 4 and 8 s
						if got, want := len(x.firing(p.clock())), 30+30+i; got < want {
							t.Errorf("after %s it knows %d, want %d at least", time.Duration(i)*step, got, want)
						}
					}
				}
				if m := len(x.all()) - n; m > 2*steps+2*doubtParts+bad*steps {
					t.Errorf("it was asked %d times", m)
				}
				if held, err := p.Holds(t.Context(), r); err != nil || len(held) != 0 {
					t.Errorf("held: %+v, %v", held, err)
				}
				for _, d := range p.deliveries(r, Pending) {
					if !strings.HasPrefix(d.Rule, "bad") || d.LastError == "" {
						t.Errorf("%s waits: %q", d.Rule, d.LastError)
					}
				}
			})
		}
	}
}

// An alert on which one fails is asked for at its pauses, and not each time that another,
// which hangs, is looked after.
func TestFailsBesideOneThatHangs(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	x := newRefuser(t, p, "bad")
	x.fails = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	close(x.let)
	slow, opens := newGate(t, p, 200)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, x.URL}, Timeout: alert.Duration(MaxTimeout)})
	p.begins("bad", 1)
	done := p.delivering(r)
	asked := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("it is asked %d times", n), func() bool { return len(x.all()) == n })
	}
	asked(1)
	eventually(t, "it is held", func() bool {
		l, _ := p.laneOf(r)
		return l.Holds[x.URL].Fails == 1
	})
	p.begins("ok", 1) // held still
	p.advance(3 * time.Second)
	asked(3) // apart: what it failed on, and what is new
	for i := range 5 {
		name := fmt.Sprintf("late%d", i)
		p.begins(name, 1)
		eventually(t, "it knows what is new", func() bool { return slices.Contains(x.firing(p.clock()), name+"-000") })
	}
	if n := len(x.all()); n != 3+5 {
		t.Errorf("it was asked %d times", n)
	}
	opens()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A pause that one asks for outlasts what it answers to what it was sent before.
func TestAskedPauseOutlasts(t *testing.T) {
	t.Parallel()
	p := setup(t)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{"https://127.0.0.1:9093"}})
	tr, err := p.target(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	h, to := &held{receiver: r.ID, asks: newAsks()}, tr.endpoints()[0]
	p.noteAnswers(t.Context(), h, tr, to, []answer{{status: 429, err: "answered 429", pause: time.Minute}})
	for _, a := range []answer{{status: 200}, {status: 400, err: "answered 400"}, {status: 500, err: "answered 500"}, {status: 503, err: "answered 503", pause: time.Second}} {
		if p.noteAnswers(t.Context(), h, tr, to, []answer{a}); !h.lane.heldUntil(to, p.clock()).Equal(p.clock().Add(time.Minute)) {
			t.Errorf("held after %d: %+v", a.status, h.lane.Holds)
		}
	}
	p.advance(time.Minute)
	if p.noteAnswers(t.Context(), h, tr, to, []answer{{status: 200}}); len(h.lane.Holds) != 0 {
		t.Errorf("held after the pause: %+v", h.lane.Holds)
	}
}

// At an Alertmanager that fails at random, half of all requests, nothing lapses, and what is new
// and what ends is told in a while: its failures are held against no alert, nor against it.
func TestFailsAtRandom(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(http.ResponseWriter){
		"502":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"reset": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			var stand []*alert.Alert
			for i := range 120 {
				stand = append(stand, p.alert(fmt.Sprintf("stands%03d", i)))
				if i%20 == 19 {
					p.tell(alert.TypeFiring, stand[i-19:]...)
					p.run()
					p.advance(7 * time.Second)
				}
			}
			take, rnd := am.answer, rand.New(rand.NewPCG(1, 2))
			var mu sync.Mutex
			am.answer = func(w http.ResponseWriter, r *http.Request, n int) {
				mu.Lock()
				bad := rnd.IntN(2) == 0
				mu.Unlock()
				if bad {
					fails(w)
					return
				}
				take(w, r, n)
			}
			const seconds, known, within = 200, 60, 20 // after a minute it is known for what it is
			var over []string
			late := 0
			for i := range seconds {
				p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("new%03d", i)))
				if i%5 == 0 {
					over = append(over, stand[len(over)].Rule)
					p.tell(alert.TypeResolved, stand[len(over)-1])
				}
				p.run()
				fires := map[string]bool{}
				for _, n := range am.firing(p.clock()) {
					fires[n] = true
				}
				for _, a := range stand[len(over):] {
					if !fires[a.Rule] {
						t.Fatalf("%s has lapsed after %d s", a.Rule, i)
					}
				}
				if i >= known+within {
					if !fires[fmt.Sprintf("new%03d", i-within)] {
						late++
					}
					if j := (i - within) / 5; i%5 == 0 && fires[over[j]] {
						late++
					}
				}
				p.advance(time.Second)
			}
			if late > (seconds-known-within)/10 {
				t.Errorf("%d were told later than after %d s", late, within)
			}
		})
	}
}

// One fails at random since it took, twice, what it had failed on, as that was. That it took a
// part says nothing, nor that it takes again what it failed on while it was away; and after a
// while neither does that.
func TestRandomFailuresAreKnown(t *testing.T) {
	t.Parallel()
	pause := func(fails int) time.Duration { return time.Second << fails }
	bad, now := wordsOf("1", "2", "3", "4", "5", "6", "7", "8"), t0
	d := &doubt{parts: map[string]suspect{}, row: map[string]bool{}}
	parts := func() int {
		n := map[int]bool{}
		for _, w := range bad {
			n[d.parts[w.d.ID].part] = true
		}
		return len(n)
	}
	fails := func(ws []*word, suspects bool) {
		now = now.Add(time.Second)
		d.failed(&request{words: ws, suspects: suspects}, answer{status: 502, err: "answered 502"}, pause, now)
	}
	takes := func(what string, ws []*word, grace int) {
		t.Helper()
		now = now.Add(time.Second)
		if d.taken(ws, now); d.grace(now) != grace {
			t.Errorf("it took %s: %d", what, d.grace(now))
		}
	}
	fails(bad, false)
	if fails(bad, true); parts() != len(bad) {
		t.Errorf("told again, it failed: they are in %d parts", parts())
	}
	takes("one of them", bad[:1], 0)
	fails(bad[1:2], true)
	fails(bad[2:3], true)
	takes("one that it had failed on", bad[1:2], 0)
	takes("another that it had failed on before that", bad[2:3], 0)
	fails(bad[3:4], true)
	takes("one that it had failed on since", bad[3:4], randomFails)
	if d.grace(now.Add(randomFor)) != 0 || d.grace(now.Add(-time.Second)) != 0 {
		t.Errorf("after a while: %d", d.grace(now.Add(randomFor)))
	}
	clear(d.parts)
	for i := range randomFails + 1 {
		if fails(bad, i > 0); i < randomFails && (parts() != 1 || !d.parts["1"].until.Equal(now.Add(time.Second))) {
			t.Errorf("after %d failures they are in %d parts, and wait until %s", i+1, parts(), d.parts["1"].until)
		}
	}
	if parts() != randomParts {
		t.Errorf("in the end they are in %d parts", parts())
	}
}

// Of a storm of which a third is refused, quickly, the good ones are told at once; those that
// are refused are asked for no more often than before from then on.
func TestRefusedStorm(t *testing.T) {
	t.Parallel()
	p := setup(t)
	x := newRefuser(t, p, "bad")
	close(x.let)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{x.URL}})
	var alerts []*alert.Alert
	var good []string
	for i := range 450 {
		name := fmt.Sprintf("ok%03d", i)
		if i%3 == 0 {
			name = fmt.Sprintf("bad%03d", i)
		} else {
			good = append(good, name)
		}
		alerts = append(alerts, p.alert(name))
	}
	p.tell(alert.TypeFiring, alerts...)
	if p.run(); !x.knows(p, good...)() {
		t.Errorf("it knows %d of %d", len(x.firing(p.clock())), len(good))
	}
	for range 3 {
		n := x.refused.Load()
		p.advance(resend + 10*time.Second)
		if p.run(); x.refused.Load()-n > aloneTries+suspectsAtOnce {
			t.Errorf("a minute later it refused %d times", x.refused.Load()-n)
		}
	}
}
