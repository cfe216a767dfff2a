package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// PlaneQueue is the queue of what never reaches a cluster.
const PlaneQueue = "plane"

// ErrUnreadable: a message is none that its queue carries.
var ErrUnreadable = errors.New("unreadable message")

// PlaneMessage is what the plane's queue carries.
type PlaneMessage struct {
	Version   int    `json:"version"`
	Operation string `json:"operation"`
}

// ParsePlane reads a message of the plane's queue, or tells with ErrUnreadable
// what is wrong with it.
func ParsePlane(body []byte) (PlaneMessage, error) {
	var m PlaneMessage
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	switch {
	case m.Version != protocol.Version:
		return m, fmt.Errorf("%w: version %d", ErrUnreadable, m.Version)
	case !id.Valid(id.Operation, m.Operation):
		return m, fmt.Errorf("%w: it names no operation", ErrUnreadable)
	}
	return m, nil
}

// RingPlane rings for an operation that the plane runs.
func (r *Relay) RingPlane(ctx context.Context, id string) error {
	body, err := json.Marshal(PlaneMessage{Version: protocol.Version, Operation: id})
	if err != nil {
		return fmt.Errorf("encode plane message: %w", err)
	}
	if err := r.Queue.Send(ctx, PlaneQueue, queue.Outgoing{Body: body}); err != nil {
		return fmt.Errorf("ring the plane for %s: %w", id, err)
	}
	return nil
}
