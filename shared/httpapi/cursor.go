package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

// Pages.
const (
	defaultLimit   = 50
	maxLimit       = 200
	maxCursorBytes = 4096
	cursorSum      = 8 // bytes of checksum
)

// PageInput is exported for huma, which reads embedded fields only then: the
// part of a list's parameters that says which page.
type PageInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Items a page"`
	Cursor string `query:"cursor" doc:"next_cursor of the page before, with the same other parameters; empty, as absent: from the beginning"`
}

// listKey names a list and everything that says what is in it: a cursor of one
// is none of another.
func listKey(list string, parts ...string) string {
	var b strings.Builder
	b.WriteString(list)
	for _, p := range parts {
		fmt.Fprintf(&b, "|%d:%s", len(p), p)
	}
	return b.String()
}

// encodeCursor writes a place in a list: the place behind a checksum over both.
// The checksum guards against mixing up and damage, not against forging: a place
// grants nothing.
func encodeCursor(key, place string) string {
	sum := cursorCheck(key, place)
	return base64.RawURLEncoding.EncodeToString(append(sum, place...))
}

func cursorCheck(key, place string) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "1 %d:%s %s", len(key), key, place)
	return h.Sum(nil)[:cursorSum:cursorSum]
}

// decodeCursor reads what encodeCursor wrote for the same list; "" for no cursor.
func decodeCursor(key, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	bad := problem.New(problem.InvalidCursor, "it is no cursor of this list with these parameters").
		WithField("/query/cursor", "invalid_cursor", "is no cursor of this list with these parameters")
	if len(cursor) > maxCursorBytes || strings.ContainsAny(cursor, "\r\n") {
		return "", bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) <= cursorSum {
		return "", bad
	}
	place := string(b[cursorSum:])
	if string(cursorCheck(key, place)) != string(b[:cursorSum]) || !utf8.ValidString(place) {
		return "", bad
	}
	return place, nil
}

// parseTime reads a query parameter that is a timestamp.
func parseTime(name, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := operation.ParseTime(s)
	if err != nil {
		return t, invalidParam("query", name, "format", "%s", err.Error())
	}
	return t, nil
}

// between refuses a stretch of time that ends before it begins.
func between(sinceName string, since time.Time, untilName string, until time.Time) error {
	if since.IsZero() || until.IsZero() || !until.Before(since) {
		return nil
	}
	return invalidParam("query", untilName, "range", "must not be before %s, which is %s", sinceName, stamp(since))
}

// waitParam reads the parameter that says how long to wait.
func waitParam(s string, most time.Duration) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, invalidParam("query", "wait", "format", "must be a duration such as 30s, at most %s", alert.Duration(most))
	}
	if d < 0 || d > most {
		return 0, invalidParam("query", "wait", "range", "must be from 0s to %s", alert.Duration(most))
	}
	return d, nil
}

// parseWait reads how long to wait. The limit is everywhere the same; a plane whose
// answers have to come sooner answers by then with what is current, which is how a
// wait ends anyway.
func (a *API) parseWait(ctx context.Context, s string) (time.Duration, error) {
	d, err := waitParam(s, event.MaxWait)
	if err != nil || d == 0 {
		return 0, err
	}
	d = min(d, a.cfg.MaxWait)
	if end, ok := ctx.Deadline(); ok { // it answers with what is current while it still can
		d = min(d, max(time.Until(end)-waitSlack, 0))
	}
	return d, nil
}

// waitSlack is what a wait leaves of a request's own time for the answer.
const waitSlack = 2 * time.Second

// parseBool reads an optional true or false.
func parseBool(s string) *bool {
	if s == "" {
		return nil
	}
	v := s == "true"
	return &v
}

// stamp is a time as a part of a list's key.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
