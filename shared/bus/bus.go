// Package bus is the seam for publishing events to rules of the users' own:
// in process on one machine, EventBridge on AWS. Delivery is at least once; the
// event's id tells repeats.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Source is the source of everything that Opsplane publishes.
const Source = "opsplane"

// MaxDetailBytes bounds a message's detail as it is carried (EventBridge: 256 KB
// an entry, of which the envelope takes its part). A larger one goes by
// reference, as may one that an engine cannot carry.
const MaxDetailBytes = 200 << 10

// Errors of the seam; match with errors.Is.
var (
	ErrUnavailable = errors.New("bus unavailable")
	ErrTooLarge    = errors.New("bus message too large")
)

// Message is one event on the bus.
type Message struct {
	ID   string // the event's id
	Type string // detail-type
	Time time.Time
	// Detail is the event: a JSON object, with the event's id as "id", since a
	// rule's target may see nothing else of the message.
	Detail json.RawMessage
}

// PartialError says which messages of a publish were not accepted, by index.
type PartialError struct {
	Failed []int
	Err    error
}

func (e *PartialError) Error() string { return "bus: some messages not accepted: " + e.Err.Error() }

// Unwrap gives the first message's error.
func (e *PartialError) Unwrap() error { return e.Err }

// Publisher is an engine.
type Publisher interface {
	// Publish sends messages, of any number: the engine batches.
	Publish(ctx context.Context, ms ...Message) error
}

// Audience is what an engine can add that knows its subscribers.
type Audience interface {
	// Attended tells whether there is any. While there is none, nothing need be
	// published: a subscriber hears what is published from its coming on.
	Attended() bool
}

// Pattern selects messages: an empty field matches all. Type matches exactly,
// or as a prefix when it ends in "*".
type Pattern struct{ Type string }
