package event

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/id"
)

// Limits of a query.
const (
	DefaultLimit = 50
	MaxLimit     = 200
	MaxWait      = 60 * time.Second
	maxTypes     = 50
	maxSubject   = 600 // bytes: a kind and the longest name
)

// ErrInvalidQuery: the query breaks a limit; its text says which.
var ErrInvalidQuery = errors.New("invalid events query")

// QueryError says which part of a query breaks which rule. It matches
// ErrInvalidQuery.
type QueryError struct {
	Part   string // as the API's parameter is called
	Detail string // what it must be, with the limit
}

func (e *QueryError) Error() string {
	return fmt.Sprintf("%s: %s %s", ErrInvalidQuery, e.Part, e.Detail)
}

// Is makes errors.Is(err, ErrInvalidQuery) true.
func (e *QueryError) Is(target error) bool { return target == ErrInvalidQuery }

// Query says which events to read, and from where.
type Query struct {
	// Streams to read; nil: all. A caller that may see some clusters only names
	// their streams; an empty list is refused, since it must not mean all.
	Streams []string
	// Cluster narrows to one cluster's stream.
	Cluster string
	// Types are exact ("node.left") or, ending in a dot or ".*", everything
	// below ("operation.*"). Empty: all.
	Types []string
	// Severities are those asked for. Empty: all.
	Severities []string
	// Subject is the subject's id, "kind:name", or an operation's id. Empty: all.
	Subject string
	// Since and Until bound when it happened (Event.Happened): Since is
	// included, Until is not. Zero leaves the side open.
	Since, Until time.Time
	// Limit is 1 to MaxLimit; 0 means DefaultLimit.
	Limit int
	// Cursor reads on from where a page of the same query stopped. Empty begins
	// at the oldest event that is left.
	Cursor string
	// Wait is how long to wait for an event when none matches; at most MaxWait.
	Wait time.Duration
}

// normalize checks the query and brings it into one form, so that the same
// question has the same mark.
func (q Query) normalize() (Query, error) {
	bad := func(part, format string, args ...any) (Query, error) {
		return q, &QueryError{part, fmt.Sprintf(format, args...)}
	}
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	switch {
	case q.Limit < 1 || q.Limit > MaxLimit:
		return bad("limit", "is %d: it is 1 to %d", q.Limit, MaxLimit)
	case q.Wait < 0 || q.Wait > MaxWait:
		return bad("wait", "is %s: it is at most %s", q.Wait, MaxWait)
	case len(q.Types) > maxTypes:
		return bad("type", "names %d types, the limit is %d", len(q.Types), maxTypes)
	case len(q.Subject) > maxSubject:
		return bad("subject", "has %d bytes, the limit is %d", len(q.Subject), maxSubject)
	}
	q.Types = slices.Clone(q.Types)
	for i, t := range q.Types {
		var ok bool
		if q.Types[i], ok = typeOrFamily(t); !ok {
			return bad("type", "%.*q is no type such as node.left and no family such as node.*, of at most %d bytes", MaxTypeBytes, t, MaxTypeBytes)
		}
	}
	slices.Sort(q.Types)
	q.Types = slices.Compact(q.Types)
	q.Severities = slices.Clone(q.Severities)
	slices.Sort(q.Severities)
	q.Severities = slices.Compact(q.Severities)
	for _, s := range q.Severities {
		if !slices.Contains(Severities, s) {
			return bad("severity", "%.32q is none of %s", s, strings.Join(Severities, ", "))
		}
	}
	if q.Cluster != "" {
		if q.Streams != nil && !slices.Contains(q.Streams, q.Cluster) {
			return bad("cluster", "%.64q is not among the streams", q.Cluster)
		}
		q.Streams, q.Cluster = []string{q.Cluster}, ""
	}
	q.Streams = slices.Clone(q.Streams)
	slices.Sort(q.Streams)
	q.Streams = slices.Compact(q.Streams)
	if q.Streams != nil && len(q.Streams) == 0 {
		return bad("cluster", "names no stream")
	}
	if slices.Contains(q.Streams, "") {
		return bad("cluster", "names a stream without a name")
	}
	return q, nil
}

// typeOrFamily reads a type, or a family ("node.*", "node.") as "node.".
func typeOrFamily(s string) (string, bool) {
	word := strings.TrimSuffix(strings.TrimSuffix(s, "*"), ".")
	if word == s {
		return s, ValidType(s)
	}
	return word + ".", (strings.HasSuffix(s, ".") || strings.HasSuffix(s, ".*")) && ValidType(word+".x")
}

// among tells whether a type is one of those, by name or by family, as
// typeOrFamily reads them.
func among(types []string, typ string) bool {
	return slices.ContainsFunc(types, func(t string) bool { return typ == t || strings.HasSuffix(t, ".") && strings.HasPrefix(typ, t) })
}

// mark is what a cursor must have in common with the query: everything that
// says which events there are. Limit and wait may change.
func (q *Query) mark() string {
	h := sha256.New()
	part := func(kind string, values ...string) {
		fmt.Fprintf(h, "%s %d\n", kind, len(values))
		for _, v := range values {
			fmt.Fprintf(h, "%d:%s\n", len(v), v)
		}
	}
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	part("streams", q.Streams...)
	part("types", q.Types...)
	part("rest", q.Subject, stamp(q.Since), stamp(q.Until))
	if len(q.Severities) > 0 { // without, the cursors of versions that did not ask for them go on
		part("severities", q.Severities...)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

// matches tells whether the event is asked for, of a stream that has the head.
func (q *Query) matches(head *Head, e *Event) bool {
	if len(q.Types) > 0 && !among(q.Types, e.Type) {
		return false
	}
	if len(q.Severities) > 0 && !slices.Contains(q.Severities, e.Severity) {
		return false
	}
	if q.Subject != "" && !q.about(e) {
		return false
	}
	if q.Since.IsZero() && q.Until.IsZero() {
		return true
	}
	at := head.happened(e)
	return !at.Before(q.Since) && (q.Until.IsZero() || at.Before(q.Until))
}

// about tells whether the event's subject is the query's.
func (q *Query) about(e *Event) bool {
	if e.Subject.ID == q.Subject || e.OperationID == q.Subject && id.Prefix(q.Subject) == id.Operation {
		return true
	}
	kind, name, ok := strings.Cut(q.Subject, ":")
	return ok && kind == e.Subject.Kind && name == e.Subject.Name
}

// open tells whether every event matches.
func (q *Query) open() bool {
	return len(q.Types) == 0 && len(q.Severities) == 0 && q.Subject == "" && q.Since.IsZero() && q.Until.IsZero()
}
