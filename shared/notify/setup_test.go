package notify

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// t0 is when tests begin by their own clock. It lies ahead: a table that has a time
// to live deletes by the clock of the world, and would take what is new to a test.
var t0 = time.Date(2076, 7, 1, 12, 0, 0, 0, time.UTC)

const stream = "clu_00000000000000000000000000"

var (
	call     = admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "ada", Kind: "token"}}, Method: "POST", Path: "/v1/receivers"}
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
)

// plane is a plane without its API: a ledger, a clock and a notifier.
type plane struct {
	*Service
	t   testing.TB
	mu  sync.Mutex
	at  time.Time
	db  ledger.Ledger
	seq map[string]int // transitions, by alert
}

func setup(t testing.TB) *plane {
	t.Helper()
	p := &plane{t: t, at: t0, seq: map[string]int{}}
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: p.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return p.on(db)
}

// on puts the plane on a ledger.
func (p *plane) on(db ledger.Ledger) *plane {
	p.db = db
	p.Service = p.another(db)
	return p
}

// another is a notifier that knows nothing yet, over a ledger.
func (p *plane) another(db ledger.Ledger) *Service {
	return &Service{Store: &record.Store{Ledger: db, Now: p.clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler),
		Allow: loopback, Base: "https://plane.example", jitter: func() float64 { return 0.5 }, patience: time.Minute}
}

func (p *plane) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *plane) advance(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = p.at.Add(d)
}

// alert is one that begins now.
func (p *plane) alert(name string) *alert.Alert {
	now := p.clock()
	return &alert.Alert{ID: id.Derive(id.Alert, name), Rule: name, RuleID: "rul_1", Stream: stream, Cluster: stream, Group: map[string]string{"node": "n1"},
		Severity: event.Error, Labels: map[string]string{"team": "infra"}, Summary: name + " of n1", Runbook: "https://books.example/" + name, Since: now, FiredAt: &now,
		State: alert.Firing, Count: 3, Subject: event.Subject{Kind: "node", ID: "nod_1", Name: "n1"}, GroupKey: "rul_1#" + name, History: []alert.Step{{At: now}}}
}

// fact is the event of an alert's transition, which is kept as the reactor does.
func (p *plane) fact(a *alert.Alert, typ string) event.Event {
	p.t.Helper()
	now := p.clock()
	switch typ {
	case alert.TypeResolved:
		a.State, a.ResolvedAt = alert.Resolved, &now
	case alert.TypeFiring:
		a.State = alert.Firing
	}
	p.seq[a.ID]++
	e, err := event.New(typ, a.Cluster, a.Subject, now, Actor, a, a.ID, fmt.Sprint(p.seq[a.ID]))
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// tell appends transitions of alerts.
func (p *plane) tell(typ string, alerts ...*alert.Alert) {
	p.t.Helper()
	for part := range slices.Chunk(alerts, 20) {
		var evs []event.Event
		var writes []ledger.Write
		for _, a := range part {
			evs = append(evs, p.fact(a, typ))
			writes = append(writes, alertWrite(a))
		}
		if _, err := event.Append(context.Background(), p.db, stream, evs, func() ([]ledger.Write, error) { return writes, nil }); err != nil {
			p.t.Fatal(err)
		}
	}
}

// alertWrite keeps an alert as the reactor does: what is open is listed.
func alertWrite(a *alert.Alert) ledger.Write {
	it := ledger.Item{Key: record.AlertKey(a.ID), Data: record.Encode(a)}
	if a.State != alert.Resolved {
		it.Index = map[ledger.Index]ledger.Key{ledger.Live: {PK: record.ListAlerts, SK: record.TimeSort(a.Since, a.ID)}}
	}
	return ledger.Write{Expect: ledger.AnyVersion, Item: it}
}

// keep keeps an alert as it is, of which no event tells.
func (p *plane) keep(a *alert.Alert) {
	p.t.Helper()
	if err := p.db.Commit(context.Background(), alertWrite(a)); err != nil {
		p.t.Fatal(err)
	}
}

// run makes what is to be sent, and sends what is due, as the engine does.
func (p *plane) run() {
	p.t.Helper()
	if err := p.Follow(context.Background(), stream); err != nil {
		p.t.Fatal(err)
	}
	p.serve()
}

// serve sends what is due, of all receivers, until nothing is.
func (p *plane) serve() {
	p.t.Helper()
	for range 1000 {
		items, err := p.db.Due(context.Background(), p.clock(), 100)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(items) == 0 {
			return
		}
		for _, it := range items {
			if err := p.Deliver(context.Background(), it.Key); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	p.t.Fatal("something is due for ever")
}

// receiver makes one.
func (p *plane) receiver(sp Spec) (Receiver, string) {
	p.t.Helper()
	r, secret, err := p.Create(context.Background(), call, sp)
	if err != nil {
		p.t.Fatal(err)
	}
	return r, secret
}

// deliveries are those of a receiver in a state, as lines.
func (p *plane) deliveries(r Receiver, state State) []Delivery {
	p.t.Helper()
	out, _, err := p.Deliveries(context.Background(), r.ID, state, record.Span{Limit: 1000})
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// told are the types of the events in the plane's own stream.
func (p *plane) told() []string {
	p.t.Helper()
	evs, _, err := event.ReadStream(context.Background(), p.db, event.PlaneStream, 1, 1000)
	if err != nil {
		p.t.Fatal(err)
	}
	var out []string
	for _, e := range evs {
		out = append(out, e.Type)
	}
	return out
}

// got is a request that a site took.
type got struct {
	id, at, signature, path string
	body                    []byte
	message                 struct {
		Type string
		Data struct {
			ID, Rule, State string
			Sequence        int64
		}
	}
}

// site is somebody's server, over TLS; answer says what it answers.
type site struct {
	*httptest.Server
	mu     sync.Mutex
	got    []got
	answer func(w http.ResponseWriter, r *http.Request, n int)
}

func newSite(t testing.TB, p *plane, answer func(w http.ResponseWriter, r *http.Request, n int)) *site {
	t.Helper()
	s := &site{answer: answer}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	if p != nil {
		if p.roots == nil {
			p.roots = x509.NewCertPool()
		}
		p.roots.AddCert(s.Certificate())
	}
	return s
}

func (s *site) serve(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	g := got{id: r.Header.Get("webhook-id"), at: r.Header.Get("webhook-timestamp"), signature: r.Header.Get("webhook-signature"), path: r.Method + " " + r.URL.Path, body: b}
	_ = json.Unmarshal(b, &g.message) // an Alertmanager's is a list
	s.mu.Lock()
	s.got = append(s.got, g)
	n := len(s.got)
	s.mu.Unlock()
	if s.answer != nil {
		s.answer(w, r, n)
	}
}

// all are the requests so far.
func (s *site) all() []got {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// ids are the webhook-ids of the requests, each once, with how often they came.
func (s *site) ids() map[string]int {
	out := map[string]int{}
	for _, g := range s.all() {
		out[g.id]++
	}
	return out
}
