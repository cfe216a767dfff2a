package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// maxKeysBytes bounds what of a record's keys is shown, maxNames how many of
	// the names in it.
	maxKeysBytes = 4 << 10
	maxNames     = 32
)

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
		EventID: clip(text(record["eventID"])), EventName: clip(text(record["eventName"])), Source: clip(text(record["eventSource"])),
		Stream: clip(text(record["eventSourceARN"])), Sequence: clip(text(change["SequenceNumber"])), Image: map[string]string{},
		Names: names(record),
	}
	if keys := change["Keys"]; len(keys) <= maxKeysBytes {
		shown.Keys = keys
	}
	image := fields(change["NewImage"])
	for _, name := range names(image) {
		kind := strings.Join(names(fields(image[name])), " ")
		shown.Image[name] = fmt.Sprintf("%.16s, %d bytes of JSON", kind, len(image[name]))
	}
	b, err := json.Marshal(shown)
	if err != nil {
		return fmt.Appendf(nil, "%d bytes of JSON: %v", len(raw), err)
	}
	return b
}

// names are those of an object, or the first of many.
func names(object map[string]json.RawMessage) []string {
	all := slices.Sorted(maps.Keys(object))
	return all[:min(maxNames, len(all))]
}

// clip shortens what no record of ours is as long as.
func clip(s string) string { return fmt.Sprintf("%.256s", s) }
