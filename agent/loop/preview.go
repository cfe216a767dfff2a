package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

const previewWithin = 8 * time.Second

// preview tells what a dry run would meet. Whoever asked waits ten seconds and
// no longer, so a failure is logged and never tried again.
func (a *Agent) preview(ctx context.Context, previewID string) {
	ctx, cancel := context.WithTimeout(ctx, previewWithin)
	defer cancel()
	if err := a.answerPreview(ctx, previewID); err != nil {
		a.log.Warn("a preview was not answered", slog.String("preview", previewID), slog.Any("err", err))
	}
}

func (a *Agent) answerPreview(ctx context.Context, previewID string) error {
	select {
	case a.previews <- struct{}{}:
		defer func() { <-a.previews }()
	case <-ctx.Done():
		return ctx.Err()
	}
	path := "/v1/agent/previews/" + url.PathEscape(previewID)
	var req protocol.PreviewRequest
	if err := a.api.get(ctx, path, &req); err != nil {
		return err
	}
	blockers, err := a.cfg.Executor.Preview(ctx, req)
	if err != nil {
		return fmt.Errorf("preview %s: %w", previewID, err)
	}
	answer := protocol.PreviewAnswer{Blockers: []protocol.Blocker{}, ObservedAt: a.now().UTC()}
	size := 0
	for _, b := range blockers {
		b.Detail, b.Rule, b.Resource = detail(b.Detail), detail(b.Rule), detail(b.Resource)
		size += 2*(len(b.Detail)+len(b.Rule)+len(b.Resource)+len(b.Code)) + 64
		if size > protocol.MaxPreviewBytes {
			break
		}
		answer.Blockers = append(answer.Blockers, b)
	}
	a.metrics.Previews.Add(1)
	return a.api.post(ctx, path, "", answer, nil)
}
