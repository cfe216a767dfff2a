package react

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
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

// bench is a plane without a network: a ledger, a clock, a reactor and a service.
type bench struct {
	t       testing.TB
	mu      sync.Mutex
	now     time.Time
	db      ledger.Ledger
	store   *record.Store
	reactor *Reactor
	service *Service
	n       int
	close   func()
}

func setup(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, now: t0}
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: b.clock})
	if err != nil {
		t.Fatal(err)
	}
	b.close = sync.OnceFunc(func() { _ = db.Close() })
	t.Cleanup(b.close)
	b.on(db)
	return b
}

// on puts the plane on a ledger.
func (b *bench) on(db ledger.Ledger) {
	b.db = db
	b.store = &record.Store{Ledger: db, Now: b.clock, Timing: operation.OneMachine}
	b.reactor = b.another()
	b.service = &Service{Store: b.store}
}

// another is a reactor that knows nothing yet.
func (b *bench) another() *Reactor {
	return &Reactor{Store: b.store, Logger: slog.New(slog.DiscardHandler)}
}

func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

var call = admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "ada", Kind: "token"}}, Method: "POST", Path: "/v1/rules"}

// quiet disables the shipped rules, so that a test's own are alone.
func (b *bench) quiet() {
	b.t.Helper()
	off := false
	var writes []ledger.Write
	for _, s := range alert.ShippedRules() {
		st := stored{ID: s.ID, Override: &alert.Override{Enabled: &off}, Version: 1}
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: record.RuleKey(s.ID), Data: record.Encode(st)}})
	}
	if err := b.service.change(context.Background(), func() ([]ledger.Write, error) { return writes, nil }); err != nil {
		b.t.Fatal(err)
	}
}

// rule keeps a rule.
func (b *bench) rule(text string) Rule {
	b.t.Helper()
	r, err := alert.ParseRule([]byte(text))
	if err != nil {
		b.t.Fatal(err)
	}
	v, err := b.service.CreateRule(context.Background(), call, *r)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// fact is an event that happens now.
func (b *bench) fact(typ, name string, detail map[string]any) event.Event {
	d, err := json.Marshal(detail)
	if err != nil || detail == nil {
		d = []byte("{}")
	}
	b.n++
	now := b.clock()
	return event.Event{ID: id.Derive(id.Event, fmt.Sprint(b.n)), Type: typ, Subject: event.Subject{Kind: "node", ID: "nod_" + name, Name: name},
		Timestamp: now, ReceivedAt: now, Detail: d, Severity: event.Info}
}

// put appends events to the stream.
func (b *bench) put(evs ...event.Event) {
	b.t.Helper()
	if _, err := event.Append(context.Background(), b.db, stream, evs, nil); err != nil {
		b.t.Fatal(err)
	}
}

// tell appends an event that happens now.
func (b *bench) tell(typ, name string) {
	b.t.Helper()
	b.put(b.fact(typ, name, nil))
}

// follow judges the stream.
func (b *bench) follow() {
	b.t.Helper()
	if err := b.reactor.Follow(context.Background(), stream); err != nil {
		b.t.Fatal(err)
	}
}

// told reads the events of alerts in the stream, as lines.
func (b *bench) told() []string {
	b.t.Helper()
	out := []string{}
	seen := map[string]bool{}
	for from := int64(1); ; {
		evs, _, err := event.ReadStream(context.Background(), b.db, stream, from, 500)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(evs) == 0 {
			return out
		}
		for _, e := range evs {
			from = e.Sequence + 1
			if seen[e.ID] {
				b.t.Errorf("event %s of type %s is in the stream twice", e.ID, e.Type)
			}
			seen[e.ID] = true
			if len(e.Type) > 6 && e.Type[:6] == "alert." {
				out = append(out, tellLine(b.t, &e))
			}
		}
	}
}

func tellLine(t testing.TB, e *event.Event) string {
	t.Helper()
	var a alert.Alert
	if err := json.Unmarshal(e.Detail, &a); err != nil {
		t.Fatal(err)
	}
	mark := ""
	if a.InhibitedBy != "" {
		mark = "*"
	}
	return fmt.Sprintf("%s %s %s%v %s%s", e.Timestamp.Sub(t0), e.Type[6:], a.Rule, a.Group, a.Reason, mark)
}
