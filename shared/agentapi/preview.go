package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// previewWait is how long a dry run waits for an agent's answer.
const previewWait = 10 * time.Second

// preview is the data of a preview's item.
type preview struct {
	Cluster string                  `json:"cluster"`
	Request protocol.PreviewRequest `json:"request"`
	Answer  *protocol.PreviewAnswer `json:"answer,omitempty"`
}

// Preview asks an agent of the cluster what an operation would meet. It fails
// when none answers in time.
func (s *Service) Preview(ctx context.Context, spec *operation.Spec) (admission.Blockers, error) {
	ctx, cancel := context.WithTimeout(ctx, previewWait)
	defer cancel()
	now := s.Store.Now().UTC()
	p := preview{Cluster: spec.Cluster, Request: protocol.PreviewRequest{ID: id.New(id.Preview, now), Type: spec.Request.Type,
		TargetUID: spec.TargetUID, TargetName: spec.TargetName, NodeName: spec.NodeName, Payload: spec.Request.Payload,
		Reason: spec.Request.Reason, By: spec.Actor.ID}}
	deadline := now.Add(operation.DeadlinesOf(spec.Request.Type).Default)
	if spec.Request.Deadline != nil {
		deadline = *spec.Request.Deadline
	}
	p.Request.DeadlineMS = max(deadline.Sub(now).Milliseconds(), 0)
	key := record.PreviewKey(p.Request.ID)
	err := s.Store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: key, Data: record.Encode(p), Expires: now.Add(5 * time.Minute)}})
	if err != nil {
		return admission.Blockers{}, fmt.Errorf("keep preview: %w", err)
	}
	body, err := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: protocol.KindPreview, Preview: p.Request.ID, Cluster: spec.Cluster, SentAt: now})
	if err != nil {
		return admission.Blockers{}, fmt.Errorf("encode doorbell: %w", err)
	}
	if err := s.Queue.Send(ctx, fleet.QueueName(spec.Cluster), queue.Outgoing{Body: body}); err != nil {
		return admission.Blockers{}, fmt.Errorf("ring for a preview: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return admission.Blockers{}, fmt.Errorf("no agent answered the preview: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
		it, err := s.Store.Ledger.Get(ctx, key)
		if err != nil {
			return admission.Blockers{}, fmt.Errorf("read preview: %w", err)
		}
		if p, err = record.Decode[preview](it); err != nil {
			return admission.Blockers{}, err
		}
		if p.Answer != nil {
			at := p.Answer.ObservedAt
			return admission.Blockers{Status: admission.BlockersLive, ObservedAt: &at, Items: p.Answer.Blockers}, nil
		}
	}
}

// PreviewRequest gives an agent what a preview asks.
func (s *Service) PreviewRequest(ctx context.Context, cluster, previewID string) (protocol.PreviewRequest, error) {
	p, _, err := s.preview(ctx, cluster, previewID)
	return p.Request, err
}

// PreviewAnswer keeps an agent's answer; a second one changes nothing.
func (s *Service) PreviewAnswer(ctx context.Context, cluster, previewID string, a protocol.PreviewAnswer) error {
	p, version, err := s.preview(ctx, cluster, previewID)
	if err != nil || p.Answer != nil {
		return err
	}
	if len(a.Blockers) > 500 {
		a.Blockers = a.Blockers[:500]
	}
	for i, b := range a.Blockers {
		a.Blockers[i] = protocol.Blocker{Code: short(b.Code), Resource: clean(b.Resource, 512), Rule: clean(b.Rule, 512), Detail: detail(b.Detail), Since: b.Since}
	}
	a.ObservedAt = s.Store.Now().UTC()
	p.Answer = &a
	err = s.Store.Ledger.Commit(ctx, ledger.Write{Expect: version, Item: ledger.Item{Key: record.PreviewKey(previewID), Data: record.Encode(p),
		Expires: s.Store.Now().Add(5 * time.Minute)}})
	if errors.Is(err, ledger.ErrConflict) {
		return nil
	}
	return err
}

func (s *Service) preview(ctx context.Context, cluster, previewID string) (preview, int64, error) {
	it, err := s.Store.Ledger.Get(ctx, record.PreviewKey(previewID))
	if errors.Is(err, ledger.ErrNotFound) {
		return preview{}, 0, operation.Refuse("not_found", "there is no preview %q", short(previewID))
	}
	if err != nil {
		return preview{}, 0, fmt.Errorf("read preview: %w", err)
	}
	p, err := record.Decode[preview](it)
	if err == nil && p.Cluster != cluster {
		err = operation.Refuse("not_found", "there is no preview %q", short(previewID))
	}
	return p, it.Version, err
}
