package agentapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// answering is a queue whose other end answers each preview.
type answering struct {
	s   *Service
	got protocol.PreviewRequest
}

func (a *answering) Send(ctx context.Context, _ string, messages ...queue.Outgoing) error {
	var d protocol.Doorbell
	if err := json.Unmarshal(messages[0].Body, &d); err != nil {
		return err
	}
	var err error
	if a.got, err = a.s.PreviewRequest(ctx, d.Cluster, d.Preview); err != nil {
		return err
	}
	return a.s.PreviewAnswer(ctx, d.Cluster, d.Preview, protocol.PreviewAnswer{Blockers: []protocol.Blocker{{Code: "pdb"}}})
}

// TestPreviewAsksAsTheOperationWould: what an agent rehearses for a dry run carries the
// operation's reason and who asks, for admission may go by them.
func TestPreviewAsksAsTheOperationWould(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	s := &Service{Store: &record.Store{Ledger: emptyLedger(t, clock), Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	q := &answering{s: s}
	s.Queue = q
	deadline := now.Add(time.Hour)
	b, err := s.Preview(t.Context(), &operation.Spec{Cluster: "clu_1", TargetUID: "uid", TargetName: "node:n", Actor: operation.Actor{ID: "tok_1"},
		Request: operation.Request{Type: "node.drain", Reason: "TICKET-1", Payload: []byte(`{}`), Deadline: &deadline}})
	if err != nil || len(b.Items) != 1 || b.Items[0].Code != "pdb" {
		t.Fatalf("%+v, %v", b, err)
	}
	want := protocol.PreviewRequest{ID: q.got.ID, Type: "node.drain", TargetUID: "uid", TargetName: "node:n", Payload: []byte(`{}`), Reason: "TICKET-1", By: "tok_1", DeadlineMS: time.Hour.Milliseconds()}
	if diff := cmp.Diff(want, q.got); diff != "" {
		t.Error(diff)
	}
}
