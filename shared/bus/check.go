package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid: the message is none that an engine can take.
var ErrInvalid = errors.New("invalid bus message")

// MaxTypeBytes bounds a message's type (EventBridge: DetailType, 128
// characters).
const MaxTypeBytes = 128

// Check tells whether every engine can take the message; its errors match
// ErrTooLarge, naming the limit, or ErrInvalid. Engines call it first.
func (m Message) Check() error {
	switch n := len(m.Detail); {
	case m.ID == "":
		return fmt.Errorf("%w: no id", ErrInvalid)
	case m.Type == "" || len(m.Type) > MaxTypeBytes:
		return fmt.Errorf("%w: message %s: type of %d bytes, takes 1 to %d", ErrInvalid, m.ID, len(m.Type), MaxTypeBytes)
	case m.Time.IsZero():
		return fmt.Errorf("%w: message %s: no time", ErrInvalid, m.ID)
	case n > MaxDetailBytes:
		return fmt.Errorf("%w: message %s: detail of %d bytes, the limit is %d", ErrTooLarge, m.ID, n, MaxDetailBytes)
	case n == 0 || m.Detail[0] != '{' || !json.Valid(m.Detail):
		// https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutEventsRequestEntry.html
		return fmt.Errorf("%w: message %s: detail is no JSON object", ErrInvalid, m.ID)
	}
	return nil
}

// Match tells whether the pattern selects messages of the type.
func (p Pattern) Match(eventType string) bool {
	if prefix, ok := strings.CutSuffix(p.Type, "*"); ok {
		return strings.HasPrefix(eventType, prefix)
	}
	return p.Type == "" || p.Type == eventType
}
