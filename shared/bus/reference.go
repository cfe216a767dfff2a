package bus

import (
	"encoding/json"
	"fmt"
	"net/url"
	"time"
)

// reference is what stands for an event that is too large for the bus. Its
// fields are those of an event (event.Event.MarshalJSON), but for the last three.
type reference struct {
	ID            string          `json:"id"`
	Type          string          `json:"type"`
	Subject       json.RawMessage `json:"subject,omitempty"`
	Cluster       json.RawMessage `json:"cluster,omitempty"`
	ClusterID     json.RawMessage `json:"cluster_id,omitempty"`
	Timestamp     json.RawMessage `json:"timestamp,omitempty"`
	ReceivedAt    json.RawMessage `json:"received_at,omitempty"`
	Stream        json.RawMessage `json:"stream,omitempty"`
	Sequence      json.RawMessage `json:"sequence,omitempty"`
	Detail        struct{}        `json:"detail"`
	OperationID   json.RawMessage `json:"operation_id,omitempty"`
	CorrelationID json.RawMessage `json:"correlation_id,omitempty"`
	Severity      json.RawMessage `json:"severity,omitempty"`
	// Omitted is always true; Bytes is the size of what it stands for.
	Omitted bool `json:"detail_omitted"`
	Bytes   int  `json:"detail_bytes"`
	// Ref is the path of the event in the API: a list with it in it.
	Ref string `json:"detail_ref"`
}

// Reference makes the detail that stands for one that is too large: the event
// without its own detail, with "detail_omitted": true, its size and where the
// API has it. Rules match it by everything but what is in "detail.detail".
func Reference(m Message) (json.RawMessage, error) {
	var r reference
	// Reading leniently: a field of another kind is carried as it is.
	var fields struct {
		*reference
		ID     json.RawMessage `json:"id"`
		Type   json.RawMessage `json:"type"`
		Detail json.RawMessage `json:"detail"`
		// What the message itself has under the names of a reference.
		Omitted json.RawMessage `json:"detail_omitted"`
		Bytes   json.RawMessage `json:"detail_bytes"`
		Ref     json.RawMessage `json:"detail_ref"`
	}
	fields.reference = &r
	if err := json.Unmarshal(m.Detail, &fields); err != nil {
		return nil, fmt.Errorf("%w: message %s: %w", ErrInvalid, m.ID, err)
	}
	r.ID, r.Type, r.Omitted, r.Bytes, r.Ref = m.ID, m.Type, true, len(m.Detail), ref(m, &r)
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("%w: message %s: %w", ErrInvalid, m.ID, err)
	}
	return b, nil
}

// ref is the narrowest list of the API that the event is in: its type, its
// cluster, its subject and its instant.
func ref(m Message, r *reference) string {
	q := url.Values{"type": {m.Type}}
	var cluster string
	if json.Unmarshal(r.ClusterID, &cluster) == nil && cluster != "" {
		q.Set("cluster", cluster)
	}
	var subject struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(r.Subject, &subject) == nil && subject.ID != "" {
		q.Set("subject", subject.ID)
	}
	at := m.Time.UTC()
	q.Set("since", at.Format(time.RFC3339Nano))
	q.Set("until", at.Add(time.Nanosecond).Format(time.RFC3339Nano))
	return "/v1/events?" + q.Encode()
}
