package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// maxKeysBytes bounds what of a record's keys is shown.
const maxKeysBytes = 4 << 10

// identity is what tells a record from others, as far as it can be read.
type identity struct{ event, sequence string }

// unique is an id of the record, the same whenever it comes.
func (i identity) unique(raw json.RawMessage) string {
	switch {
	case i.sequence != "":
		return i.sequence
	case i.event != "":
		return i.event
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// fields reads a JSON object, of anything else none.
func fields(raw json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

// text reads a JSON string, of anything else none.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// identify reads what it can of any record.
func identify(raw json.RawMessage) identity {
	record := fields(raw)
	return identity{event: text(record["eventID"]), sequence: text(fields(record["dynamodb"])["SequenceNumber"])}
}

// describe says what an unreadable record looks like: its head, its keys, and
// the names, types and sizes of its attributes. Values are left out: whoever may
// read dead letters need not be one who may read every item.
func describe(raw json.RawMessage) []byte {
	record := fields(raw)
	if record == nil {
		return fmt.Appendf(nil, "no object: %d bytes of JSON", len(raw))
	}
	change := fields(record["dynamodb"])
	shown := struct {
		EventID   string            `json:"event_id,omitempty"`
		EventName string            `json:"event_name,omitempty"`
		Source    string            `json:"source,omitempty"`
		Stream    string            `json:"stream,omitempty"`
		Sequence  string            `json:"sequence,omitempty"`
		Keys      json.RawMessage   `json:"keys,omitempty"`
		Image     map[string]string `json:"image,omitempty"`
		Names     []string          `json:"names"` // of what the record consists of
	}{
		EventID: text(record["eventID"]), EventName: text(record["eventName"]), Source: text(record["eventSource"]),
		Stream: text(record["eventSourceARN"]), Sequence: text(change["SequenceNumber"]), Image: map[string]string{},
		Names: slices.Sorted(maps.Keys(record)),
	}
	if keys := change["Keys"]; len(keys) <= maxKeysBytes {
		shown.Keys = keys
	}
	for name, value := range fields(change["NewImage"]) {
		kind := "?"
		if types := slices.Sorted(maps.Keys(fields(value))); len(types) > 0 {
			kind = types[0]
		}
		shown.Image[name] = fmt.Sprintf("%.8s, %d bytes of JSON", kind, len(value))
	}
	b, err := json.Marshal(shown)
	if err != nil {
		return fmt.Appendf(nil, "%d bytes of JSON: %v", len(raw), err)
	}
	return b
}
