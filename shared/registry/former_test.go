package registry

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/verify"
)

// What a deleted cluster leaves stays whole: its operations prove right against
// its stream, whoever reads all streams goes on from where they were, and
// retention takes its stream like any other. After that nothing looks for it.
func TestWhatADeletedClusterLeaves(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	ctx := t.Context()
	cluster, request := inUse(t, s, "east")
	r := &relay.Relay{Store: s.Store, Logger: slog.New(slog.DiscardHandler)}
	reader := &event.Reader{Ledger: s.Store.Ledger, Streams: func(ctx context.Context) ([]string, error) { return event.Streams(ctx, s.Store) }}
	read := func(cursor string) (types []string, next string) {
		t.Helper()
		p, err := reader.Read(ctx, event.Query{Cursor: cursor})
		must(t, err)
		for _, e := range p.Events {
			types = append(types, e.Type)
		}
		return types, p.NextCursor
	}
	holds := func(when string) verify.Report {
		t.Helper()
		rep, err := verify.Run(ctx, s.Store, time.Now(), time.Hour)
		must(t, err)
		if rep.Count > 0 {
			t.Errorf("%s: %d problems, the first: %s", when, rep.Count, rep.Problems[0])
		}
		return rep
	}
	streams := func() []string {
		t.Helper()
		names, err := event.Streams(ctx, s.Store)
		must(t, err)
		return names
	}

	op, err := request()
	must(t, err)
	must(t, r.Publish(ctx, []string{op.Spec.ID}))
	_, cursor := read("")
	_, err = s.Store.Update(ctx, op.Spec.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: admin.Caller.Actor}, nil, nil
	})
	must(t, err)
	must(t, r.Publish(ctx, []string{op.Spec.ID}))
	before := holds("before")
	must(t, s.Delete(ctx, admin, "east"))

	after := holds("after the deletion")
	if after.Operations != 1 || after.Events != before.Events+1 { // that it was deleted
		t.Errorf("%d operations and %d events are left of 1 and %d", after.Operations, after.Events, before.Events)
	}
	types, _ := read(cursor)
	for _, want := range []string{"operation.cancelled", event.TypeClusterDeleted} {
		if !slices.Contains(types, want) {
			t.Errorf("a reader of all streams missed %s: %v", want, types)
		}
	}

	policy := retention.Policy{Operations: time.Hour, Events: time.Hour}
	_, err = retention.Pass(ctx, s.Store, policy)
	must(t, err)
	if !slices.Contains(streams(), cluster) {
		t.Error("forgotten while there are events")
	}
	now := time.Now().Add(2 * time.Hour)
	s.Store.Now = func() time.Time { return now }
	policy.Operations = 24 * time.Hour // they stay longer than events
	_, err = retention.Pass(ctx, s.Store, policy)
	must(t, err)
	if slices.Contains(streams(), cluster) {
		t.Error("still looked for when no event is left")
	}
	p, err := s.Store.Ledger.Query(ctx, ledger.Query{PK: record.StreamPK(cluster), From: "ev#", To: "ev#~"})
	must(t, err)
	if len(p.Items) > 0 {
		t.Errorf("%d runs of events are left for ever", len(p.Items))
	}
	if rep := holds("after retention"); rep.Operations != 1 {
		t.Errorf("%d operations", rep.Operations)
	}
}
