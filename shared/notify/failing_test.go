package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// breakable answers 500 while it is broken.
func breakable(broken *atomic.Bool) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
}

// pass lets time pass by half minutes, with an alert in each of them.
func (p *plane) pass(d time.Duration) {
	p.t.Helper()
	for range d / (30 * time.Second) {
		p.advance(30 * time.Second)
		p.tell(alert.TypeFiring, p.alert(fmt.Sprint("at ", p.clock().Sub(t0))))
		p.run()
	}
}

// outages are what is told of receivers that take nothing, and that do again: when, of
// which, and since when.
func (p *plane) outages() []string {
	p.t.Helper()
	evs, _, err := event.ReadStream(p.t.Context(), p.db, event.PlaneStream, 1, 1000)
	if err != nil {
		p.t.Fatal(err)
	}
	out, ids := []string{}, map[string]bool{}
	for _, e := range evs {
		if ids[e.ID] {
			p.t.Errorf("event %s of type %s is in the stream twice", e.ID, e.Type)
		}
		ids[e.ID] = true
		var d struct {
			Since  time.Time `json:"since"`
			Failed int64     `json:"failed_ms"`
			Error  string    `json:"error"`
		}
		if e.Type != event.TypeNotifyFailing && e.Type != event.TypeNotifyRecovered {
			continue
		}
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			p.t.Fatal(err)
		}
		line := fmt.Sprintf("%s %s %s", e.Timestamp.Sub(t0).Round(time.Minute), e.Type, e.Subject.Name)
		if e.Type == event.TypeNotifyFailing && !strings.Contains(d.Error, "500") || e.Type == event.TypeNotifyRecovered && d.Failed != e.Timestamp.Sub(d.Since).Milliseconds() {
			p.t.Errorf("%s: %s", line, e.Detail)
		}
		out = append(out, line+" "+d.Since.Sub(t0).Round(time.Minute).String())
	}
	return out
}

// TestFailingIsTold: that a receiver has taken nothing for ten minutes is told once,
// and that it does again.
func TestFailingIsTold(t *testing.T) {
	t.Parallel()
	setup(t).failingIsTold()
}

func (p *plane) failingIsTold() {
	t := p.t
	var broken atomic.Bool
	s := newSite(t, p, breakable(&broken))
	p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	p.pass(time.Minute)
	broken.Store(true)
	p.pass(9 * time.Minute) // not for long enough
	broken.Store(false)
	p.pass(2 * time.Minute)
	broken.Store(true)
	p.pass(40 * time.Minute)
	broken.Store(false)
	p.pass(2 * time.Minute)
	broken.Store(true)
	p.pass(11 * time.Minute)
	want := []string{
		"23m0s notify.failing pager 13m0s", "53m0s notify.recovered pager 13m0s", "1h5m0s notify.failing pager 55m0s",
	}
	got := p.outages()
	for i := range min(len(got), len(want)) { // jitter has it tried somewhat later
		got[i] = nearly(want[i], got[i])
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// nearly is want where got is no more than a minute from it.
func nearly(want, got string) string {
	w, g := strings.Fields(want), strings.Fields(got)
	if len(w) != len(g) {
		return got
	}
	for i := range w {
		x, err1 := time.ParseDuration(w[i])
		y, err2 := time.ParseDuration(g[i])
		if err1 == nil && err2 == nil && (x-y).Abs() <= 2*time.Minute {
			continue
		}
		if w[i] != g[i] {
			return got
		}
	}
	return want
}

// TestFailingOfSome: one of several Alertmanagers that is up is told, and so nothing fails;
// a change to where there is somebody ends it.
func TestFailingOfSome(t *testing.T) {
	t.Parallel()
	p := setup(t)
	x, y, z := newFake(t, p), newFake(t, p), newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{x.URL, y.URL}})
	p.pass(time.Minute)
	x.breaks(true)
	p.pass(20 * time.Minute)
	if d := cmp.Diff([]string{}, p.outages()); d != "" {
		t.Errorf("with one up, told: %s", d)
	}
	y.breaks(true)
	p.pass(20 * time.Minute)
	failing := p.outages()
	if len(failing) != 1 || !strings.Contains(failing[0], event.TypeNotifyFailing) {
		t.Fatalf("with none up, told: %v", failing)
	}
	p.change(&r, func(sp *Spec) { sp.URLs = []string{x.URL, z.URL} })
	p.pass(time.Minute)
	if all := p.outages(); len(all) != 2 || !strings.Contains(all[1], event.TypeNotifyRecovered) {
		t.Errorf("with one that is up, told: %v", all)
	}
}

// unsure is a ledger that does not know whether it kept what the plane's stream is told
// of a lane, which it did.
type unsure struct{ ledger.Ledger }

func (l unsure) Commit(ctx context.Context, ws ...ledger.Write) error {
	err := l.Ledger.Commit(ctx, ws...)
	of := func(key ledger.Key) bool { return record.LaneOf(key) != "" }
	if err == nil && slices.ContainsFunc(ws, func(w ledger.Write) bool { return of(w.Item.Key) }) &&
		slices.ContainsFunc(ws, func(w ledger.Write) bool { return w.Item.Key == record.StreamHeadKey(event.PlaneStream) }) {
		return fmt.Errorf("commit: %w", ledger.ErrUnknown)
	}
	return err
}

// TestFailingIsNotKnownToBeTold: where nobody knows whether it was told, it is not told
// again.
func TestFailingIsNotKnownToBeTold(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var broken atomic.Bool
	s := newSite(t, p, breakable(&broken))
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	x := p.another(unsure{p.db})
	x.roots = p.roots
	failed := 0
	for i := range 80 {
		broken.Store(i < 50)
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("rule%d", i)))
		if x.Follow(t.Context(), stream) != nil || x.Deliver(t.Context(), record.LaneKey(r.ID)) != nil {
			failed++
		}
		p.advance(30 * time.Second)
	}
	if got := p.outages(); len(got) != 2 || failed != 2 {
		t.Errorf("told %v; %d calls failed", got, failed)
	}
}

// TestFailingThroughOutages: a ledger that fails, or does not know, has it told once.
func TestFailingThroughOutages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		p := setup(t)
		var broken atomic.Bool
		s := newSite(t, p, breakable(&broken))
		r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
		x := p.another(&flaky{Ledger: p.db, rand: rand.New(rand.NewPCG(seed, 2))})
		x.roots = p.roots
		for i := range 160 {
			broken.Store(i%80 < 50)
			p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("rule%d", i)))
			_, _ = x.Follow(t.Context(), stream), x.Deliver(t.Context(), record.LaneKey(r.ID)) // it fails at times
			p.advance(30 * time.Second)
		}
		var types []string
		for _, l := range p.outages() {
			types = append(types, strings.Fields(l)[1])
		}
		want := []string{event.TypeNotifyFailing, event.TypeNotifyRecovered, event.TypeNotifyFailing, event.TypeNotifyRecovered}
		if d := cmp.Diff(want, types); d != "" {
			t.Errorf("seed %d: %s", seed, d)
		}
	}
}
