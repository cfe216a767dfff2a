package dynamo

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/ledger"
)

// RecordError says why a stream record cannot be read. Reading it again will
// not help: the reader keeps it aside and goes on.
type RecordError struct {
	EventID  string // the stream's own name of the record
	Sequence string // its place in its shard
	Detail   string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("stream record %s (sequence %s): %s", e.EventID, e.Sequence, e.Detail)
}

// DecodeChange reads a record that Lambda was given from the table's stream
// (AWS: "DynamoDB Streams and AWS Lambda triggers"). A record that it cannot
// read, of another table or of a newer engine, is a *RecordError. A change
// that deletes has version 0: the stream holds only new images.
func DecodeChange(r events.DynamoDBEventRecord) (ledger.Change, error) {
	fail := func(format string, args ...any) (ledger.Change, error) {
		return ledger.Change{}, &RecordError{EventID: r.EventID, Sequence: r.Change.SequenceNumber, Detail: fmt.Sprintf(format, args...)}
	}
	var c ledger.Change
	var ok bool
	if c.PK, ok = text(r.Change.Keys, attrPK); !ok {
		return fail("no key %s", attrPK)
	}
	if c.SK, ok = text(r.Change.Keys, attrSK); !ok {
		return fail("no key %s", attrSK)
	}
	switch events.DynamoDBOperationType(r.EventName) {
	case events.DynamoDBOperationTypeRemove:
		c.Deleted = true
		return c, nil
	case events.DynamoDBOperationTypeInsert, events.DynamoDBOperationTypeModify:
	default:
		return fail("event %q", r.EventName)
	}
	v, ok := r.Change.NewImage[attrVersion]
	if !ok || v.DataType() != events.DataTypeNumber {
		return fail("no version in the image")
	}
	var err error
	if c.Version, err = parseVersion(v.Number()); err != nil {
		return fail("%v", err)
	}
	return c, nil
}

func parseVersion(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("version %q", s)
	}
	return n, nil
}

// text reads an attribute that must be a string; the library panics on others.
func text(m map[string]events.DynamoDBAttributeValue, name string) (string, bool) {
	v, ok := m[name]
	if !ok || v.DataType() != events.DataTypeString || v.String() == "" {
		return "", false
	}
	return v.String(), true
}
