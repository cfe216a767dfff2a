package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

// decodeDoorbell reads a message strictly: a version or kind that this agent
// does not know, unknown fields, or another cluster's doorbell is an error.
func decodeDoorbell(body []byte, cluster string) (protocol.Doorbell, error) {
	var d protocol.Doorbell
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("malformed: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return d, errors.New("malformed: more than one document")
	}
	if d.Version != protocol.Version {
		return d, fmt.Errorf("unknown version %d", d.Version)
	}
	if d.Cluster != cluster {
		return d, errors.New("for another cluster")
	}
	switch d.Kind {
	case protocol.KindOperation, protocol.KindAttention:
		if !id.Valid(id.Operation, d.Operation) || d.Generation < 0 {
			return d, errors.New("malformed: names no operation")
		}
	case protocol.KindPreview:
		if !id.Valid(id.Preview, d.Preview) {
			return d, errors.New("malformed: names no preview")
		}
	default:
		return d, errors.New("unknown kind")
	}
	return d, nil
}
