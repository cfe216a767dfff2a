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

// MaxEventNumber is the largest number of an event: the largest whole number that
// every reader of JSON has.
const MaxEventNumber = 1<<53 - 1

// Event is a fact that the fleet reports.
type Event struct {
	N       int64           `json:"n"`
	Type    string          `json:"type"`
	Subject Subject         `json:"subject"`
	At      time.Time       `json:"at"`
	Detail  json.RawMessage `json:"detail,omitempty"`
	// Unreadable says why the plane could not read an event of a call; then N is
	// all that there is of it.
	Unreadable string `json:"-"`
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

// Codes of refused events.
const (
	RefusedTooLarge = "too_large"
	RefusedInvalid  = "invalid"
)

// RefusedEvent names an event that was not taken; its number is used up. Where
// the number cannot be told it is 0, and Index (the event's place in the call, from
// 0) says which it is.
type RefusedEvent struct {
	N      int64  `json:"n"`
	Index  int    `json:"index"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	// Limit is the most bytes there may be, of one that is too large.
	Limit int `json:"limit,omitempty"`
}
