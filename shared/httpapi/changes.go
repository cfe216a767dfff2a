package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

const changesPath = "/v1/manual-changes"

func (a *API) changeRoutes() {
	register(a, huma.Operation{Method: http.MethodPost, Path: changesPath, Summary: "Record manual change", Tags: []string{"manual changes"},
		DefaultStatus: http.StatusCreated, Description: "Records a repair made by hand, and asks for fresh inventory."},
		access{action: auth.RecordChange, body: smallBody, also: []int{http.StatusOK}}, a.createChange)
	register(a, huma.Operation{Method: http.MethodGet, Path: changesPath, Summary: "List manual changes", Tags: []string{"manual changes"}},
		access{action: auth.Read}, a.listChanges)
}

// changeView is a repair that was made by hand.
type changeView struct {
	ID            string          `json:"id"`
	Target        string          `json:"target"`
	TargetName    string          `json:"target_name"`
	Cluster       *string         `json:"cluster"`
	Reason        string          `json:"reason"`
	Runbook       *string         `json:"runbook"`
	Actor         operation.Actor `json:"actor"`
	At            time.Time       `json:"at"`
	CorrelationID string          `json:"correlation_id"`
}

func viewChange(c record.ManualChange) changeView {
	return changeView{ID: c.ID, Target: c.TargetID, TargetName: c.TargetName, Cluster: orNull(c.Cluster), Reason: c.Reason,
		Runbook: orNull(c.Runbook), Actor: c.Actor, At: c.At, CorrelationID: c.CorrelationID}
}

type changeBodyView struct {
	Target  string `json:"target" doc:"An id, kind:name, or fleet"`
	Cluster string `json:"cluster,omitempty" doc:"Narrows a name to one cluster"`
	Reason  string `json:"reason" maxLength:"1024"`
	Runbook string `json:"runbook,omitempty" doc:"What was followed: a link or a name"`
}

func (a *API) createChange(ctx context.Context, rq *request, in *struct {
	Key  string `header:"Idempotency-Key"`
	Body changeBodyView
}) (*createdOutput[changeView], error) {
	call, err := rq.keyed()
	if err != nil {
		return nil, err
	}
	c, was, err := a.cfg.Control.RecordChange(ctx, call, control.ChangeInput(in.Body))
	if err != nil {
		return nil, err
	}
	out := &createdOutput[changeView]{Status: http.StatusCreated, Replayed: replayed(was), Body: viewChange(c)}
	if was {
		out.Status = http.StatusOK
	}
	return out, nil
}

func (a *API) listChanges(ctx context.Context, rq *request, in *struct {
	PageInput
	Target  string `query:"target" doc:"An id"`
	Cluster string `query:"cluster" doc:"Id or name"`
	Order   string `query:"order" enum:"asc,desc" default:"desc"`
}) (*listOutput[changeView], error) {
	cluster, err := a.clusterParam(ctx, rq, in.Cluster)
	if err != nil {
		return nil, err
	}
	key := listKey("changes", in.Target, cluster, in.Order)
	items, next, err := page(key, in.PageInput, in.Order != "asc",
		func(sp record.Span) ([]record.ManualChange, bool, error) { return a.cfg.Store.ManualChanges(ctx, sp) },
		func(c record.ManualChange) string { return record.TimeSort(c.At, c.ID) },
		func(c record.ManualChange) bool {
			return rq.sees(c.Cluster) && (cluster == "" || c.Cluster == cluster) && (in.Target == "" || c.TargetID == in.Target)
		})
	if err != nil {
		return nil, err
	}
	out := make([]changeView, len(items))
	for i, c := range items {
		out[i] = viewChange(c)
	}
	return &listOutput[changeView]{Body: newList(out, next)}, nil
}

// page reads one page of a list that is walked by sort key: what matches, and
// the cursor behind it. It looks at maxScan items at most; a page may be short
// and still have a cursor.
func page[T any](key string, in PageInput, reverse bool, read func(record.Span) ([]T, bool, error), sort func(T) string, matches func(T) bool) ([]T, string, error) {
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, "", err
	}
	var out []T
	for scanned := 0; scanned < maxScan; {
		found, more, err := read(record.Span{After: place, Reverse: reverse, Limit: maxLimit})
		if err != nil {
			return nil, "", err
		}
		scanned += max(len(found), 1)
		for i, x := range found {
			place = sort(x)
			if !matches(x) {
				continue
			}
			if out = append(out, x); len(out) == in.Limit {
				if i == len(found)-1 && !more {
					return out, "", nil
				}
				return out, encodeCursor(key, place), nil
			}
		}
		if !more {
			return out, "", nil
		}
	}
	return out, encodeCursor(key, place), nil
}
