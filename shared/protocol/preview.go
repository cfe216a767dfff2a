package protocol

import (
	"encoding/json"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// PreviewRequest is GET /v1/agent/previews/{id}: what a dry run asks.
type PreviewRequest struct {
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	TargetUID  string          `json:"target_uid"`
	TargetName string          `json:"target_name"`
	NodeName   string          `json:"node_name,omitempty"`
	Payload    json.RawMessage `json:"payload"`
	// Reason and By are the operation's, and whoever asks for it: what is rehearsed
	// carries them as the operation would.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// DeadlineMS is how long the operation would have; 0: not told.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
}

// PreviewAnswer is POST /v1/agent/previews/{id}.
type PreviewAnswer struct {
	Blockers   []Blocker `json:"blockers"`
	ObservedAt time.Time `json:"observed_at"`
}

// Blocker is something that stands in the way of an operation.
type Blocker = operation.Blocker
