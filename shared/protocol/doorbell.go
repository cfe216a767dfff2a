package protocol

import "time"

// Doorbell kinds.
const (
	// KindOperation: operation X, generation G, is for you: claim it.
	KindOperation = "operation"
	// KindAttention: something changed on an operation that you may hold (a
	// cancel): renew now.
	KindAttention = "attention"
	// KindPreview: a preview request waits; it is no operation.
	KindPreview = "preview"
)

// Doorbell is a queue message. Unknown kinds and versions are put aside.
type Doorbell struct {
	Version    int       `json:"version"`
	Kind       string    `json:"kind"`
	Operation  string    `json:"operation,omitempty"` // or the preview's id in Preview
	Preview    string    `json:"preview,omitempty"`
	Cluster    string    `json:"cluster"`
	Generation int64     `json:"generation"`
	SentAt     time.Time `json:"sent_at"`
}
