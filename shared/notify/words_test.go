package notify

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/record"
)

// newGate is a site that answers when it is opened, and not before.
func newGate(t *testing.T, p *plane, status int) (s *site, open func()) {
	t.Helper()
	gate := make(chan struct{})
	s = newSite(t, p, func(w http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-gate:
			w.WriteHeader(status)
		case <-r.Context().Done():
		}
	})
	return s, func() { close(gate) }
}

// newSlowFake answers one request for each that is sent to the gate, and all when it is
// closed.
func newSlowFake(t *testing.T, p *plane) (f *fake, gate chan struct{}) {
	t.Helper()
	f, gate = newFake(t, p), make(chan struct{})
	take := f.answer
	f.answer = func(w http.ResponseWriter, r *http.Request, n int) {
		select {
		case <-gate:
			take(w, r, n)
		case <-r.Context().Done():
		}
	}
	return f, gate
}

// eventually waits for something that others do.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// delivering sends what is due to a receiver, beside the test.
func (p *plane) delivering(r Receiver) <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.Deliver(p.t.Context(), record.LaneKey(r.ID)) }()
	return done
}

// Alertmanagers that do not answer for long, refuse what they get or fail late hold up no
// other of their cluster, however much there is to tell; what they answer in the end
// counts, and a word that is out does not overtake a later one.
func TestSlowOnesHoldUpNobody(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience, p.pushMost = 10*time.Millisecond, 20
	slow, opens := newGate(t, p, 200)
	refuses, ends := newGate(t, p, 400)
	fails, breaks := newGate(t, p, 500)
	up := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, refuses.URL, fails.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	var alerts []*alert.Alert
	var all []string
	for i := range 45 {
		alerts = append(alerts, p.alert(fmt.Sprintf("hot%03d", i)))
		all = append(all, alerts[i].Rule)
	}
	p.tell(alert.TypeFiring, alerts...)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "the one that is up knows what fires", func() bool { return slices.Equal(all, up.firing(p.clock())) })
	p.tell(alert.TypeResolved, alerts[0])
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that is up knows that one is over", func() bool { return slices.Equal(all[1:], up.firing(p.clock())) })
	select {
	case err := <-done:
		t.Fatalf("the lane was left while answers are waited for: %v", err)
	default:
	}
	for _, s := range []*site{slow, refuses, fails} {
		if n := len(s.all()); n != 1 {
			t.Errorf("one that does not answer was asked %d times", n)
		}
	}
	opens()
	breaks()
	ends()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, m := len(p.deliveries(r, Pending)), len(slow.all()); n != len(alerts) || m < 3 {
		t.Errorf("%d wait, of %d; the slow one was asked %d times", n, len(alerts), m)
	}
	for _, d := range p.deliveries(r, Pending) {
		if d.LastError != "/urls/1: answered 400" {
			t.Errorf("%s: %q", d.Type, d.LastError)
		}
	}
	held, err := p.Holds(t.Context(), r)
	if err != nil || len(held[r.ID]) != 1 || held[r.ID][0].URL != fails.URL || held[r.ID][0].Fails != 1 || held[r.ID][0].Error != "answered 500" {
		t.Errorf("held: %+v, %v", held, err)
	}
	p.change(&r, func(sp *Spec) { sp.URLs = []string{slow.URL, up.URL} })
	if held, err = p.Holds(t.Context(), r); err != nil || len(held) != 0 {
		t.Errorf("held when it is changed: %+v, %v", held, err)
	}
	p.patience = time.Minute
	p.advance(time.Minute)
	p.run()
	if n := len(p.deliveries(r, Active)); n != len(alerts)-1 {
		t.Errorf("%d are known, %+v", n, p.deliveries(r, Pending))
	}
}

// One that is slow, but answers, is told all that fell due while it had not answered, as
// soon as it has: nothing of it lapses there.
func TestSlowOneIsToldWhatItMissed(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience, p.pushMost = time.Millisecond, 20
	slow, gate := newSlowFake(t, p)
	up := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	var alerts []*alert.Alert
	for i := range 30 {
		alerts = append(alerts, p.alert(fmt.Sprintf("hot%03d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "the other one knows all", func() bool { return len(up.firing(p.clock())) == len(alerts) && len(slow.all()) > 0 })
	gate <- struct{}{}
	eventually(t, "it is told more", func() bool { return len(slow.all()) > 1 })
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, m := len(slow.firing(p.clock())), len(p.deliveries(r, Active)); n != len(alerts) || m != len(alerts) {
		t.Errorf("it knows %d, and %d are active, of %d; %+v", n, m, len(alerts), p.deliveries(r, Pending))
	}
}

// Two that are slow, out of step, keep nothing from a third, nor from each other.
func TestTwoSlowOnes(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	var sites []*fake
	var gates []chan struct{}
	for range 2 {
		s, gate := newSlowFake(t, p)
		sites, gates = append(sites, s), append(gates, gate)
	}
	up := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{sites[0].URL, sites[1].URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	tell := func(n int) {
		t.Helper()
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("hot%d", n)))
		if err := p.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	tell(0)
	done := p.delivering(r)
	const alerts = 6
	for i := range alerts {
		if i > 0 {
			tell(i)
		}
		eventually(t, "the one that is quick knows it", func() bool { return len(up.firing(p.clock())) == i+1 })
		s, gate := sites[i%2], gates[i%2]
		eventually(t, "a slow one is asked once more", func() bool { return len(s.all()) == i/2+1 })
		gate <- struct{}{}
	}
	close(gates[0])
	close(gates[1])
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, s := range append(sites, up) {
		if n := len(s.firing(p.clock())); n != alerts {
			t.Errorf("number %d knows %d of %d", i, n, alerts)
		}
	}
	if d := p.deliveries(r, Active); len(d) != alerts {
		t.Errorf("%d are known, %+v", len(d), p.deliveries(r, Pending))
	}
}

// A late answer counts, unless there is something else to tell by then.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	slow, opens := newGate(t, p, 200)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{slow.URL}, Timeout: alert.Duration(MaxTimeout)})
	hot, over := p.alert("hot"), p.alert("over")
	p.tell(alert.TypeFiring, hot, over)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is told, and does not answer", func() bool {
		return len(slow.all()) > 0 && !slices.ContainsFunc(p.deliveries(r, ""), func(d Delivery) bool { return !d.Next.After(p.clock()) })
	})
	p.tell(alert.TypeResolved, over)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	opens()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := p.deliveries(r, Active); len(d) != 1 || d[0].Rule != "hot" || d[0].Tries != 1 || d[0].LastStatus != 200 {
		t.Errorf("active: %+v", d)
	}
	if d := p.deliveries(r, Delivered); len(d) != 1 || d[0].Rule != "over" || d[0].Type != alert.TypeResolved {
		t.Errorf("over: %+v", p.deliveries(r, ""))
	}
}

// Of a batch that is refused the good ones are found in parts, and one that refuses all is
// not asked for each.
func TestRefusedBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bad, most, taken int
	}{"one": {1, 1 + 2*doubtParts, pushRound - 1}, "all": {pushRound, refusedTries, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			am.refuse = "bad"
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			for range 2 { // it is told of what fires
				p.run()
				p.advance(time.Minute)
			}
			var alerts []*alert.Alert
			for i := range pushRound {
				a := p.alert(fmt.Sprintf("a%d", i))
				if i < c.bad {
					a.Rule = "bad"
					a.Group = map[string]string{"n": fmt.Sprint(i)}
				}
				alerts = append(alerts, a)
			}
			p.tell(alert.TypeFiring, alerts...)
			p.run()
			if n := len(am.all()); n > c.most {
				t.Errorf("it was asked %d times", n)
			}
			if n := len(p.deliveries(r, Active)); n != c.taken {
				t.Errorf("%d were taken, want %d", n, c.taken)
			}
		})
	}
}

// What waits for an hour behind more than a round of what fires is told when the receiver
// is changed.
func TestChangeHastens(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.pushMost = 20
	am, asks := newFake(t, p), false
	take := am.answer
	am.answer = func(w http.ResponseWriter, r *http.Request, n int) {
		if asks {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
			return
		}
		take(w, r, n)
	}
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	var alerts []*alert.Alert
	for i := range hastenPage + 60 {
		alerts = append(alerts, p.alert(fmt.Sprintf("hot%03d", i)))
	}
	over := alerts[:p.pushMost]
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	asks = true
	p.tell(alert.TypeResolved, over...)
	p.run()
	p.advance(10 * time.Second)
	p.run()
	if d := p.deliveries(r, Pending); len(d) != len(over) || d[0].Next.Before(p.clock().Add(maxPushAsked/2)) {
		t.Fatalf("%d wait", len(d))
	}
	asks = false
	p.change(&r, func(sp *Spec) { sp.Timeout = alert.Duration(MaxTimeout) })
	p.run()
	if n := len(am.firing(p.clock())); n != len(alerts)-len(over) {
		t.Errorf("%d fire there, want %d", n, len(alerts)-len(over))
	}
	if d := p.deliveries(r, Pending); len(d) != 0 {
		t.Errorf("%d wait still: %+v", len(d), d[0])
	}
}

// A webhook's round ends when its receiver is changed: the rest goes to where it leads now.
func TestChangeEndsARound(t *testing.T) {
	t.Parallel()
	p := setup(t)
	was, opens := newGate(t, p, 200)
	is := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: was.URL, Timeout: alert.Duration(MaxTimeout)})
	var alerts []*alert.Alert
	for i := range webhookRound {
		alerts = append(alerts, p.alert(fmt.Sprintf("a%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "as many as go at once are out", func() bool { return len(was.all()) == perHost })
	p.change(&r, func(sp *Spec) { sp.URL = is.URL })
	<-time.After(lookAgain) // it looks no sooner
	opens()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, m := len(was.all()), len(is.all()); n != perHost || m != webhookRound-perHost {
		t.Errorf("%d went to where it led, %d to where it leads", n, m)
	}
}

// While one does not answer, the others are told to the end of the time that there is; what
// is cut off by it is not held against anybody, and told by whoever comes next.
func TestDeadlineWithASlowOne(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	slow, opens := newGate(t, p, 200)
	up := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second+keepWithin) // less than a timeout
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Deliver(ctx, record.LaneKey(r.ID)) }()
	eventually(t, "the one that is up knows it", func() bool { return len(up.firing(p.clock())) == 1 })
	p.tell(alert.TypeResolved, a)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that is up knows that it is over", func() bool { return len(up.firing(p.clock())) == 0 })
	select {
	case err := <-done:
		t.Fatalf("it ended before: %v", err)
	default:
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if held, err := p.Holds(t.Context(), r); err != nil || len(held) != 0 {
		t.Errorf("held: %+v, %v", held, err)
	}
	opens()
	p.patience = time.Minute
	p.serve() // not when it was postponed to
	if d := p.deliveries(r, Delivered); len(d) != 1 || d[0].Tries != 1 {
		t.Errorf("%+v", p.deliveries(r, ""))
	}
}

// What one missed that fails in the end is told soon after.
func TestMissedByOneThatFails(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	fails, breaks := newGate(t, p, 500)
	up := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{fails.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("first"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is asked", func() bool { return len(fails.all()) == 1 })
	p.tell(alert.TypeFiring, p.alert("second"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other one knows both", func() bool { return len(up.firing(p.clock())) == 2 })
	breaks()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, d := range p.deliveries(r, "") {
		if d.State != Pending || d.Next.After(p.clock().Add(10*time.Second)) {
			t.Errorf("%s is %s, and due in %s", d.Rule, d.State, d.Next.Sub(p.clock()))
		}
	}
}

// That one is held is no try of what waits for it, and no reason to tell the others more
// often than they need; it is given up as what is tried is.
func TestNotAskedIsNoTry(t *testing.T) {
	t.Parallel()
	p := setup(t)
	down, up := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(503)
	}), newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{down.URL, up.URL}})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, p.alert("first"))
	p.run()
	p.advance(time.Second)
	p.tell(alert.TypeFiring, a)
	before := p.Metrics.Read()
	n := len(up.all())
	for range 28 {
		p.run()
		p.advance(time.Second)
	}
	for _, d := range p.deliveries(r, Pending) {
		if d.Rule == "hot" && (d.Tries != 0 || d.LastError != "/urls/0: not asked: answered 503") {
			t.Errorf("%d tries, %s", d.Tries, d.LastError)
		}
	}
	if got := p.Metrics.Read(); got.Failed != before.Failed || len(up.all())-n > 2 {
		t.Errorf("%d tries failed, %d pushes", got.Failed-before.Failed, len(up.all())-n)
	}
	p.tell(alert.TypeResolved, a)
	for range 20 {
		p.run()
		p.advance(time.Minute)
	}
	if d := p.deliveries(r, Failed); len(d) != 1 || d[0].Rule != "hot" {
		t.Errorf("given up: %+v", d)
	}
}

// One that fails for long keeps what another missed while it was held from being told it
// when its hold is over, and no longer.
func TestTwoThatFail(t *testing.T) {
	t.Parallel()
	p := setup(t)
	dead := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(500) })
	flaps := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{dead.URL, flaps.URL}})
	flaps.breaks(true)
	p.tell(alert.TypeFiring, p.alert("hot"))
	for range 30 { // the dead one's pauses are as long as they get
		p.run()
		p.advance(10 * time.Second)
	}
	flaps.breaks(false)
	for range int(maxPushHold/time.Second) + 1 {
		p.run()
		p.advance(time.Second)
	}
	if n := len(flaps.firing(p.clock())); n != 1 {
		t.Errorf("the one that is back knows %d alerts: %+v", n, p.deliveries(r, ""))
	}
}

// An end that one has not answered for longer than it is postponed is not told the others
// again, and is settled when it has.
func TestEndThatTakesLong(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	var hangs atomic.Bool
	gate := make(chan struct{})
	slow, up := newSite(t, p, func(_ http.ResponseWriter, r *http.Request, _ int) {
		if !hangs.Load() {
			return
		}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}), newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	p.run()
	hangs.Store(true)
	p.tell(alert.TypeResolved, a)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	waits := func(d Delivery) bool {
		return d.LastError == "/urls/0: it has not answered yet" && d.Next.After(p.clock())
	}
	eventually(t, "it is postponed, and the other one knows", func() bool {
		return slices.ContainsFunc(p.deliveries(r, Pending), waits) && len(up.firing(p.clock())) == 0
	})
	n := len(up.all())
	for range 2 {
		p.advance(2 * (MaxTimeout + patience))
		eventually(t, "it is postponed again", func() bool { return slices.ContainsFunc(p.deliveries(r, Pending), waits) })
	}
	if m := len(up.all()); m != n {
		t.Errorf("the other one is told %d times more", m-n)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := p.deliveries(r, Delivered); len(d) != 1 || d[0].LastError != "" || d[0].Tries != 1 {
		t.Errorf("%+v", p.deliveries(r, ""))
	}
}
