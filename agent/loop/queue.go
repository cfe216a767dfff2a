package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/remote"
)

// planeQueue is the plane's own long poll, which can also put messages aside.
type planeQueue struct {
	*remote.Client
	api *api
}

func newPlaneQueue(cfg Config, api *api) (*planeQueue, error) {
	c, err := remote.New(remote.Options{Base: cfg.PlaneURL, Token: cfg.Token, Client: api.client, UserAgent: api.userAgent})
	if err != nil {
		return nil, fmt.Errorf("make queue client: %w", err)
	}
	return &planeQueue{Client: c, api: api}, nil
}

// Bury puts a message aside as a dead letter; where the plane has no such call
// the message is deleted.
func (q *planeQueue) Bury(ctx context.Context, name string, m queue.Message, reason string) error {
	err := q.api.post(ctx, "/v1/agent/queue/bury", "", struct {
		Receipt string `json:"receipt"`
		Body    string `json:"body"`
		ID      string `json:"id"`
		Reason  string `json:"reason"`
	}{m.Receipt, string(m.Body), m.ID, reason}, nil)
	var se *StatusError
	if errors.As(err, &se) && (se.Status == http.StatusNotFound || se.Status == http.StatusMethodNotAllowed) {
		return q.Delete(ctx, name, m.Receipt)
	}
	return err
}
