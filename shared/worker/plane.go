package worker

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/planrun"
	"github.com/opsplane/opsplane/shared/queue/sqs"
)

// Plane runs what never reaches a cluster.
type Plane struct {
	Plans  *planrun.Runner
	Queue  planrun.Burier
	Logger *slog.Logger
}

// Handle deals with messages of the plane's queue, and answers those that must
// come again. Several for one operation bring it on once.
func (h *Plane) Handle(ctx context.Context, e events.SQSEvent) (events.SQSEventResponse, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	if !fromQueue(e.Records) {
		err := fmt.Errorf("%w: %d records, not all of a queue", ErrUnknownEvent, len(e.Records))
		h.Logger.ErrorContext(ctx, "plane failed", "err", err)
		return answer(nil), err
	}
	var failed []string
	done := map[string]bool{}
	for _, m := range e.Records {
		if done[m.Body] {
			continue
		}
		if err := h.Plans.Take(ctx, h.Queue, sqs.FromEvent(m)); err != nil {
			h.Logger.WarnContext(ctx, "a message of the plane's queue failed", "message", m.MessageId, "err", err)
			failed = append(failed, m.MessageId)
			continue
		}
		done[m.Body] = true
	}
	return answer(failed), nil
}
