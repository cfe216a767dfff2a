package dynamo

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
)

// TestDecodeChange reads an event as Lambda hands it to a function (AWS: "Using
// AWS Lambda with Amazon DynamoDB", the example event).
func TestDecodeChange(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/stream_event.json")
	if err != nil {
		t.Fatal(err)
	}
	var e events.DynamoDBEvent
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	k := ledger.Key{PK: "op#op_01m8mnkrs5p4xq5a2ebf609qyd", SK: "state"}
	want := []ledger.Change{{Key: k, Version: 1}, {Key: k, Version: 12}, {Key: k, Deleted: true}}
	var got []ledger.Change
	for _, r := range e.Records {
		c, err := DecodeChange(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, c)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
}

func TestDecodeChangeRefuses(t *testing.T) {
	t.Parallel()
	good := func() events.DynamoDBEventRecord {
		return events.DynamoDBEventRecord{EventID: "e1", EventName: "MODIFY", Change: events.DynamoDBStreamRecord{
			SequenceNumber: "42",
			Keys:           map[string]events.DynamoDBAttributeValue{"pk": events.NewStringAttribute("p"), "sk": events.NewStringAttribute("s")},
			NewImage:       map[string]events.DynamoDBAttributeValue{"v": events.NewNumberAttribute("3")},
		}}
	}
	if _, err := DecodeChange(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*events.DynamoDBEventRecord){
		"no keys":            func(r *events.DynamoDBEventRecord) { r.Change.Keys = nil },
		"key of bytes":       func(r *events.DynamoDBEventRecord) { r.Change.Keys["sk"] = events.NewBinaryAttribute([]byte("s")) },
		"empty key":          func(r *events.DynamoDBEventRecord) { r.Change.Keys["pk"] = events.NewStringAttribute("") },
		"another table":      func(r *events.DynamoDBEventRecord) { delete(r.Change.Keys, "sk") },
		"no image":           func(r *events.DynamoDBEventRecord) { r.Change.NewImage = nil },
		"version of text":    func(r *events.DynamoDBEventRecord) { r.Change.NewImage["v"] = events.NewStringAttribute("3") },
		"version of nothing": func(r *events.DynamoDBEventRecord) { r.Change.NewImage["v"] = events.NewNullAttribute() },
		"version 0":          func(r *events.DynamoDBEventRecord) { r.Change.NewImage["v"] = events.NewNumberAttribute("0") },
		"broken version":     func(r *events.DynamoDBEventRecord) { r.Change.NewImage["v"] = events.NewNumberAttribute("1.5") },
		"huge version": func(r *events.DynamoDBEventRecord) {
			r.Change.NewImage["v"] = events.NewNumberAttribute(strings.Repeat("9", 38))
		},
		"unknown event": func(r *events.DynamoDBEventRecord) { r.EventName = "RENAME" },
	} {
		r := good()
		spoil(&r)
		_, err := DecodeChange(r)
		var refused *RecordError
		if !errors.As(err, &refused) || refused.EventID != "e1" || refused.Sequence != "42" || refused.Detail == "" {
			t.Errorf("%s: got %v, want a *RecordError that names the record", name, err)
		}
	}
}

// FuzzDecodeChange: whatever the stream holds is read or refused.
func FuzzDecodeChange(f *testing.F) {
	b, err := os.ReadFile("testdata/stream_event.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"Records":[{"eventName":"INSERT","dynamodb":{"Keys":{"pk":{"S":"p"},"sk":{"N":"1"}}}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e events.DynamoDBEvent
		if json.Unmarshal(b, &e) != nil {
			return
		}
		for _, r := range e.Records {
			c, err := DecodeChange(r)
			var refused *RecordError
			if err != nil && !errors.As(err, &refused) {
				t.Errorf("got %v, want a *RecordError", err)
			}
			if err == nil && (c.PK == "" || c.SK == "" || (c.Version < 1) != c.Deleted) {
				t.Errorf("got %+v", c)
			}
		}
	})
}
