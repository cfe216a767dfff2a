package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

func (a *API) auditRoutes() {
	register(a, huma.Operation{Method: http.MethodGet, Path: "/v1/audit", Summary: "List audit records", Tags: []string{"audit"},
		Description: "Every call that changed something, and every one that was refused. Newest first."},
		access{action: auth.ReadAudit, fleet: true}, a.listAudit)
}

// auditView is the record of one call.
type auditView struct {
	ID            string          `json:"id"`
	At            time.Time       `json:"at"`
	Actor         operation.Actor `json:"actor"`
	Method        string          `json:"method"`
	Path          string          `json:"path"`
	Action        string          `json:"action"`
	Resource      *string         `json:"resource"`
	Status        int             `json:"status"`
	ErrorCode     *string         `json:"error_code"`
	Reason        *string         `json:"reason"`
	CorrelationID string          `json:"correlation_id"`
	RemoteAddr    *string         `json:"remote_addr"`
}

type auditInput struct {
	PageInput
	Actor    string `query:"actor" doc:"The principal's id"`
	Action   string `query:"action"`
	Resource string `query:"resource"`
	Refused  string `query:"refused" enum:"true,false"`
	Since    string `query:"since" doc:"RFC 3339, included; a week ago when absent"`
	Until    string `query:"until" doc:"RFC 3339, excluded; now when absent"`
}

// auditWindow is how far back a list goes that does not say.
const auditWindow = 7 * 24 * time.Hour

func (a *API) listAudit(ctx context.Context, _ *request, in *auditInput) (*listOutput[auditView], error) {
	since, err := parseTime("since", in.Since)
	if err != nil {
		return nil, err
	}
	until, err := parseTime("until", in.Until)
	if err != nil {
		return nil, err
	}
	if err := between("since", since, "until", until); err != nil {
		return nil, err
	}
	key := listKey("audit", in.Actor, in.Action, in.Resource, in.Refused, stamp(since), stamp(until))
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	now := a.now().UTC()
	if until.IsZero() || until.After(now) {
		until = now.Add(time.Millisecond)
	}
	if since.IsZero() {
		since = until.Add(-auditWindow)
	}
	if oldest := now.Add(-record.AuditKept); since.Before(oldest) {
		since = oldest
	}
	from := until
	if place == "" {
		place = record.TimeSort(until, "")
	} else {
		at, lower, err := auditPlace(place)
		if err != nil {
			return nil, err
		}
		from, since, place = at, lower, strings.SplitN(place, "@", 2)[1]
	}
	refused := parseBool(in.Refused)
	items := []auditView{}
	matches := func(r record.Audit) bool {
		return (in.Actor == "" || r.Actor.ID == in.Actor) && (in.Action == "" || r.Action == in.Action) &&
			(in.Resource == "" || r.Resource == in.Resource) && (refused == nil || *refused == (r.Status >= 400))
	}
	for scanned := 0; scanned < maxScan && place != "" && len(items) < in.Limit; {
		records, next, err := a.cfg.Store.Audits(ctx, place, from, since, maxLimit)
		if err != nil {
			return nil, err
		}
		scanned += len(records) + 1
		for i, r := range records {
			if !matches(r) {
				continue
			}
			if items = append(items, viewAudit(r)); len(items) == in.Limit && (i < len(records)-1 || next != "") {
				next = record.TimeSort(r.At, r.ID)
				break
			}
		}
		if place = next; place != "" {
			if from, err = sortTime(place); err != nil {
				return nil, err
			}
		}
	}
	next := ""
	if place != "" {
		// The lower end stays what it was on the first page.
		next = encodeCursor(key, strconv.FormatInt(since.UnixMilli(), 10)+"@"+place)
	}
	return &listOutput[auditView]{Body: newList(items, next)}, nil
}

func viewAudit(r record.Audit) auditView {
	return auditView{ID: r.ID, At: r.At, Actor: r.Actor, Method: r.Method, Path: r.Path, Action: r.Action, Resource: orNull(r.Resource), Status: r.Status,
		ErrorCode: orNull(r.ErrorCode), Reason: orNull(r.Reason), CorrelationID: r.CorrelationID, RemoteAddr: orNull(r.RemoteAddr)}
}

// auditPlace reads a place: the lower end of the list in milliseconds, and the
// sort key of the last record.
func auditPlace(place string) (at, since time.Time, err error) {
	low, sort, _ := strings.Cut(place, "@")
	ms, err := number(low)
	if err != nil {
		return at, since, err
	}
	at, err = sortTime(sort)
	return at, time.UnixMilli(ms).UTC(), err
}

// sortTime is the instant that a sort key begins with. A day's first instant
// stands for the end of the day before.
func sortTime(sort string) (time.Time, error) {
	head, tail, _ := strings.Cut(sort, "#")
	ms, err := number(strings.TrimLeft(head, "0"))
	if err != nil {
		return time.Time{}, err
	}
	t := time.UnixMilli(ms).UTC()
	if tail == "" {
		t = t.Add(-time.Millisecond)
	}
	return t, nil
}
