package retention_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/export"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/verify"
)

// TestDetails: a type that is kept for less loses its details, while the
// operation's journal, the proof of the ledger, an export and a backup hold.
func TestDetails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := context.Background()
	op := b.make(1)
	b.apply(op, failed)
	o, err := b.store.Load(ctx, op)
	b.no(err)
	entries, err := b.store.Journal(ctx, op, 1, 0)
	b.no(err)
	var evs []event.Event
	for _, e := range entries {
		if ev, ok := event.FromEntry(&o.Spec, e); ok {
			evs = append(evs, ev)
		}
	}
	_, err = event.Append(ctx, b.store.Ledger, event.PlaneStream, evs, func() ([]ledger.Write, error) {
		return []ledger.Write{record.PublishedWrite(op, record.Published{Seq: entries[len(entries)-1].Seq})}, nil
	})
	b.no(err)
	b.clock = b.clock.Add(2 * day)
	other, err := event.New("node.ready", "", event.Subject{Kind: "node", ID: "nod_1"}, b.clock, operation.Plane, map[string]int{"a": 1}, "x")
	b.no(err)
	_, err = event.Append(ctx, b.store.Ledger, event.PlaneStream, []event.Event{other}, nil)
	b.no(err)
	policy := retention.Policy{Operations: 30 * day, Events: 90 * day, Details: map[string]time.Duration{"operation.*": day, "node.ready": 3 * day}}
	b.no(policy.Check())
	_, err = retention.Pass(ctx, b.store, policy)
	b.no(err)
	got, _, err := event.ReadStream(ctx, b.store.Ledger, event.PlaneStream, 1, 100)
	b.no(err)
	if len(got) != len(evs)+1 || len(evs) < 2 {
		t.Fatalf("%d events of %d", len(got), len(evs)+1)
	}
	for i, e := range got {
		if e.DetailExpired != (i < len(evs)) || e.OperationID != "" && e.OperationID != op {
			t.Errorf("%s: expired %v, of %q", e.Type, e.DetailExpired, e.OperationID)
		}
	}
	after, err := b.store.Journal(ctx, op, 1, 0)
	b.no(err)
	if err := operation.VerifyChain(after, o.State.Journal); err != nil || len(after) != len(entries) {
		t.Errorf("the journal: %d entries of %d, %v", len(after), len(entries), err)
	}
	r, err := verify.Run(ctx, b.store, b.clock, time.Minute)
	b.no(err)
	if r.Count != 0 || r.Events != len(got) {
		t.Errorf("%d events, %v", r.Events, r.Problems)
	}
	db := b.tap.Ledger.(*sqlite.DB)
	var out bytes.Buffer
	if _, err := export.Write(ctx, db, export.Source{}, b.clock, &out); err != nil {
		t.Error(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	b.no(db.Backup(ctx, copied))
	back, err := sqlite.Open(ctx, sqlite.Options{Path: copied, ReadOnly: true})
	b.no(err)
	defer back.Close()
	again, _, err := event.ReadStream(ctx, back, event.PlaneStream, 1, 100)
	if err != nil || len(again) != len(got) || !again[0].DetailExpired {
		t.Errorf("the backup: %d events, %v", len(again), err)
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for says, p := range map[string]retention.Policy{
		"":                  {Events: 30 * day, Details: map[string]time.Duration{"node.*": time.Hour, "operation.failed": 29 * day}},
		"it is a type such": {Events: 30 * day, Details: map[string]time.Duration{"node": day}},
		"between 1h":        {Events: 30 * day, Details: map[string]time.Duration{"node.*": time.Minute}},
		"and the 720h":      {Events: 30 * day, Details: map[string]time.Duration{"node.*": 30 * day}},
	} {
		if err := p.Check(); (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	if !(retention.Policy{}).Zero() || retention.Default.Zero() || (retention.Policy{Details: map[string]time.Duration{"a.b": day}}).Zero() {
		t.Error("Zero")
	}
}
