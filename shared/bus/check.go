package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrInvalid: the message is none that an engine can take.
var ErrInvalid = errors.New("invalid bus message")

// MaxTypeBytes bounds a message's type (EventBridge: DetailType, 128
// characters).
const MaxTypeBytes = 128

// Fit returns the message as every engine carries it; engines call it first.
// Its errors match ErrInvalid, or ErrTooLarge, naming the limit.
//
// A detail over MaxDetailBytes goes by reference, see Reference. Broken UTF-8
// becomes U+FFFD, as which every JSON reader reads it: JSON on the wire is UTF-8
// (RFC 8259, section 8.1).
func (m Message) Fit() (Message, error) {
	switch n := len(m.Detail); {
	case m.ID == "":
		return m, fmt.Errorf("%w: no id", ErrInvalid)
	case m.Type == "" || len(m.Type) > MaxTypeBytes || !utf8.ValidString(m.Type):
		return m, fmt.Errorf("%w: message %s: type of %d bytes, takes 1 to %d of UTF-8", ErrInvalid, m.ID, len(m.Type), MaxTypeBytes)
	case m.Time.IsZero():
		return m, fmt.Errorf("%w: message %s: no time", ErrInvalid, m.ID)
	case n == 0 || m.Detail[0] != '{' || !json.Valid(m.Detail):
		// https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutEventsRequestEntry.html
		return m, fmt.Errorf("%w: message %s: detail is no JSON object", ErrInvalid, m.ID)
	}
	if !utf8.Valid(m.Detail) {
		m.Detail = json.RawMessage(string([]rune(string(m.Detail))))
	}
	if len(m.Detail) <= MaxDetailBytes {
		return m, nil
	}
	detail, err := Reference(m)
	if err != nil {
		return m, err
	}
	if n := len(detail); n > MaxDetailBytes {
		return m, fmt.Errorf("%w: message %s: detail of %d bytes even by reference, the limit is %d", ErrTooLarge, m.ID, n, MaxDetailBytes)
	}
	m.Detail = detail
	return m, nil
}

// Match tells whether the pattern selects messages of the type.
func (p Pattern) Match(eventType string) bool {
	if prefix, ok := strings.CutSuffix(p.Type, "*"); ok {
		return strings.HasPrefix(eventType, prefix)
	}
	return p.Type == "" || p.Type == eventType
}
