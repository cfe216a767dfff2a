package dynamo

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// streamKept is how long a stream keeps a record (AWS: "Change data capture for
// DynamoDB Streams": 24 hours).
const streamKept = 24 * time.Hour

// position is how far a reader is in every shard of a stream. It goes to
// readers as opaque text.
type position struct {
	// Stream is the label of the stream: a table whose stream was switched off
	// and on has a new one, which begins anew.
	Stream string `json:"s"`
	// At is when the position was given out, in Unix milliseconds: what was in
	// a shard then and was never read is gone a day later.
	At int64 `json:"t"`
	// Shards has the last sequence number read of each shard: empty before the
	// first, endOfShard behind the last.
	Shards map[string]string `json:"p"`
}

// endOfShard stands for the sequence number of a shard that was read to its end.
const endOfShard = "end"

func (p *position) encode() (string, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encode feed position: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// decodePosition reads a position; the error matches ledger.ErrInvalid.
func decodePosition(s string) (*position, error) {
	p := &position{}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil || p.Stream == "" {
		return nil, fmt.Errorf("%w: feed position %q", ledger.ErrInvalid, s)
	}
	if p.Shards == nil {
		p.Shards = map[string]string{}
	}
	return p, nil
}
