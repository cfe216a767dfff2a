package protocol

import (
	"encoding/json"
	"time"
)

// EventsRequest is POST /v1/agent/events. N counts up from 1 within a boot
// without holes; a resend is dropped, a hole is recorded.
type EventsRequest struct {
	AgentID string  `json:"agent_id"`
	Boot    string  `json:"boot"`
	Events  []Event `json:"events"`
}

// Event is a fact that the fleet reports.
type Event struct {
	N       int64           `json:"n"`
	Type    string          `json:"type"`
	Subject Subject         `json:"subject"`
	At      time.Time       `json:"at"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

// Subject is what an event is about.
type Subject struct {
	Kind string `json:"kind"` // node, device, deployment, component, agent, cluster
	UID  string `json:"uid"`
	Name string `json:"name"`
}

// EventsAnswer answers an EventsRequest: the highest N that is stored, and
// which events were refused and why.
type EventsAnswer struct {
	Through int64          `json:"through"`
	Refused []RefusedEvent `json:"refused"`
}

// RefusedEvent names an event that was not taken; its number is used up.
type RefusedEvent struct {
	N      int64  `json:"n"`
	Detail string `json:"detail"`
}
