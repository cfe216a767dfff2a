// Package event is the domain of events: point-in-time facts about the fleet
// and its operations, kept in streams in the ledger.
//
// Facts come from two sides: relay turns journal entries into events
// (FromEntry), the agent API turns agents' reports into events (FromReport).
// Both append them to a stream in one commit with their own markers
// (AppendWrites, Append), so that in a stream nothing is lost, doubled or out of
// number. The API and the reactor read them on from a cursor (Reader), and the
// sweep forgets old ones (Trim).
package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// PlaneStream is the name of the plane's own stream. A cluster's stream is named
// by the cluster's id.
const PlaneStream = "plane"

// StreamOf returns the name of the stream of a cluster; the plane's for "".
func StreamOf(cluster string) string {
	if cluster == "" {
		return PlaneStream
	}
	return cluster
}

// Streams lists the streams that there are: the plane's, those of the clusters,
// and those of deleted ones that have events left.
func Streams(ctx context.Context, st *record.Store) ([]string, error) {
	clusters, err := st.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	out := []string{PlaneStream}
	for _, c := range clusters {
		out = append(out, StreamOf(c.ID))
	}
	former, err := st.Former(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range former { // one that is being deleted may be in both lists
		if s := StreamOf(c); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

// Subject is what an event is about.
type Subject struct {
	Kind string `json:"kind"` // operation.Kind*, or "agent", "plane"
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Kinds of subject beside the kinds of target.
const (
	KindAgent = "agent"
	KindPlane = "plane"
)

// Event is a fact. The tags are those of its place in a run; MarshalJSON has the
// shape that everyone else sees.
type Event struct {
	ID      string  `json:"i"`
	Type    string  `json:"t"`
	Subject Subject `json:"s"`
	// Cluster is empty for the plane's own events. It follows from the stream.
	Cluster string `json:"-"`
	// Timestamp is when it happened, as told by whoever saw it.
	Timestamp time.Time `json:"at"`
	// ReceivedAt is when the plane took it, by the plane's clock. In a stream it
	// goes back at a stream.clock_set_back alone: else the append puts it later.
	ReceivedAt time.Time `json:"r"`
	// Stream and Sequence are its place; the append gives them.
	Stream   string          `json:"-"`
	Sequence int64           `json:"-"`
	Detail   json.RawMessage `json:"d,omitempty"` // a JSON object
	// DetailExpired: there was a detail, and retention has taken it.
	DetailExpired bool            `json:"x,omitempty"`
	OperationID   string          `json:"o,omitempty"`
	CorrelationID string          `json:"c,omitempty"`
	Actor         operation.Actor `json:"a,omitzero"`
	Severity      string          `json:"v"`
}

// MaxAhead bounds what an agent's clock that is ahead can do: a timestamp
// further ahead of its receipt than this is shown as told, but is searched for
// and kept as if it were this far ahead.
const MaxAhead = time.Hour

// Happened is the time that filters and retention go by: the Timestamp, at most
// MaxAhead past the receipt.
func (e *Event) Happened() time.Time {
	if limit := e.ReceivedAt.Add(MaxAhead); e.Timestamp.After(limit) {
		return limit
	}
	return e.Timestamp
}

// view is an event as everyone sees it: in the API, on the bus, in alerts.
type view struct {
	ID            string           `json:"id"`
	Type          string           `json:"type"`
	Subject       Subject          `json:"subject"`
	Cluster       *string          `json:"cluster"`
	ClusterID     *string          `json:"cluster_id"`
	Timestamp     time.Time        `json:"timestamp"`
	ReceivedAt    time.Time        `json:"received_at"`
	Stream        string           `json:"stream"`
	Sequence      int64            `json:"sequence"`
	Detail        json.RawMessage  `json:"detail"`
	DetailExpired bool             `json:"detail_expired,omitempty"`
	OperationID   *string          `json:"operation_id"`
	CorrelationID *string          `json:"correlation_id"`
	Actor         *operation.Actor `json:"actor"`
	Severity      string           `json:"severity"`
}

// MarshalJSON writes the event as everyone sees it. What is not there is null;
// cluster and cluster_id are the same. A detail that retention has taken is null,
// with detail_expired: true. A detail that was taken before operation.CheckJSON
// looked at them is mended.
func (e Event) MarshalJSON() ([]byte, error) {
	v := view{
		ID: e.ID, Type: e.Type, Subject: e.Subject, Cluster: orNil(e.Cluster), ClusterID: orNil(e.Cluster),
		Timestamp: e.Timestamp, ReceivedAt: e.ReceivedAt, Stream: e.Stream, Sequence: e.Sequence, Detail: operation.MendJSON(e.Detail), DetailExpired: e.DetailExpired,
		OperationID: orNil(e.OperationID), CorrelationID: orNil(e.CorrelationID), Severity: e.Severity,
	}
	if len(v.Detail) == 0 && !e.DetailExpired {
		v.Detail = emptyDetail
	}
	if e.Actor != (operation.Actor{}) {
		v.Actor = &e.Actor
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Event) UnmarshalJSON(b []byte) error {
	var v view
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*e = Event{
		ID: v.ID, Type: v.Type, Subject: v.Subject, Cluster: orEmpty(v.ClusterID), Timestamp: v.Timestamp, ReceivedAt: v.ReceivedAt,
		Stream: v.Stream, Sequence: v.Sequence, Detail: v.Detail, DetailExpired: v.DetailExpired,
		OperationID: orEmpty(v.OperationID), CorrelationID: orEmpty(v.CorrelationID), Severity: v.Severity,
	}
	if v.DetailExpired {
		e.Detail = nil
	}
	if v.Actor != nil {
		e.Actor = *v.Actor
	}
	return nil
}

var emptyDetail = json.RawMessage("{}")

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// MaxTypeBytes bounds a type's name.
const MaxTypeBytes = 128

var typeForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$`)

// ValidType tells whether s can be a type: words of lower-case letters, digits
// and underscores, joined by dots. Types that the catalogue does not have are
// kept all the same.
func ValidType(s string) bool { return len(s) <= MaxTypeBytes && typeForm.MatchString(s) }

// ErrInvalid: the event breaks a rule; its text says which, with the limit.
var ErrInvalid = errors.New("invalid event")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// LimitError says that a part of an event has more bytes than it may. It matches
// ErrInvalid.
type LimitError struct {
	What        string // the part, by its pointer
	Size, Limit int    // bytes
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: %s has %d bytes, the limit is %d", ErrInvalid, e.What, e.Size, e.Limit)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *LimitError) Is(target error) bool { return target == ErrInvalid }

// New returns an event that the plane itself tells: it happened at at, in the
// cluster or, when that is empty, in the plane. Its id derives from type,
// cluster and parts, so that telling the same thing twice gives one id; parts
// must name the occasion.
func New(typ, cluster string, subject Subject, at time.Time, actor operation.Actor, detail any, parts ...string) (Event, error) {
	if !ValidType(typ) {
		return Event{}, invalid("type %q", typ)
	}
	e := Event{
		ID:   id.Derive(id.Event, append([]string{typ, cluster}, parts...)...),
		Type: typ, Subject: subject, Cluster: cluster, Timestamp: at.UTC(), ReceivedAt: at.UTC(),
		Stream: StreamOf(cluster), Actor: actor, Severity: SeverityOf(typ), Detail: emptyDetail,
	}
	if detail != nil {
		b, err := json.Marshal(detail)
		if err != nil {
			return Event{}, fmt.Errorf("encode detail of %s: %w", typ, err)
		}
		e.Detail = b
	}
	return e, nil
}
