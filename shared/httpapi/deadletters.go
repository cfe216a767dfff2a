package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/record"
)

const deadLettersPath = "/v1/dead-letters"

func (a *API) deadLetterRoutes() {
	tags := []string{"dead letters"}
	register(a, huma.Operation{Method: http.MethodGet, Path: deadLettersPath, Summary: "List dead letters", Tags: tags}, access{action: auth.Read}, a.listDeadLetters)
	register(a, huma.Operation{Method: http.MethodGet, Path: deadLettersPath + "/{id}", Summary: "Get dead letter", Tags: tags}, access{action: auth.Read}, a.getDeadLetter)
	register(a, huma.Operation{Method: http.MethodPost, Path: deadLettersPath + "/{id}/redrive", Summary: "Redrive dead letter", Tags: tags,
		DefaultStatus: http.StatusAccepted, Description: "The death of a doorbell failed its operation; this retries it."},
		access{action: auth.Resolve, body: smallBody, also: []int{http.StatusOK}}, a.redrive)
}

// deadLetterView is a message that no reader could deal with.
type deadLetterView struct {
	ID         string     `json:"id"`
	Queue      string     `json:"queue"`
	Cluster    *string    `json:"cluster"`
	Operation  *string    `json:"operation" doc:"Of a doorbell"`
	Body       string     `json:"body"`
	Reason     string     `json:"reason"`
	At         time.Time  `json:"at"`
	RedrivenAt *time.Time `json:"redriven_at"`
}

func viewDeadLetter(d record.DeadLetter) deadLetterView {
	return deadLetterView{ID: d.ID, Queue: d.Queue, Cluster: orNull(d.Cluster), Operation: orNull(d.Operation), Body: d.Body, Reason: d.Reason,
		At: d.At, RedrivenAt: d.Redriven}
}

func (a *API) listDeadLetters(ctx context.Context, rq *request, in *struct {
	PageInput
	Cluster  string `query:"cluster" doc:"Id or name"`
	Redriven string `query:"redriven" enum:"true,false"`
	Order    string `query:"order" enum:"asc,desc" default:"desc"`
}) (*listOutput[deadLetterView], error) {
	cluster, err := a.clusterParam(ctx, rq, in.Cluster)
	if err != nil {
		return nil, err
	}
	redriven := parseBool(in.Redriven)
	found, next, err := page(listKey("dead letters", cluster, in.Redriven, in.Order), in.PageInput, in.Order != "asc",
		func(sp record.Span) ([]record.DeadLetter, bool, error) { return a.cfg.Store.DeadLetters(ctx, sp) },
		func(d record.DeadLetter) string { return record.TimeSort(d.At, d.ID) },
		func(d record.DeadLetter) bool {
			return rq.sees(d.Cluster) && (cluster == "" || d.Cluster == cluster) && (redriven == nil || *redriven == (d.Redriven != nil))
		})
	if err != nil {
		return nil, err
	}
	items := make([]deadLetterView, len(found))
	for i, d := range found {
		items[i] = viewDeadLetter(d)
	}
	return &listOutput[deadLetterView]{Body: newList(items, next)}, nil
}

func (a *API) getDeadLetter(ctx context.Context, rq *request, in *struct {
	ID string `path:"id"`
}) (*bodyOutput[deadLetterView], error) {
	if !id.Valid(id.DeadLetter, in.ID) {
		return nil, notFound("dead letter", in.ID)
	}
	d, _, err := a.cfg.Store.DeadLetter(ctx, in.ID)
	if err != nil {
		return nil, missing(err, "dead letter", in.ID)
	}
	if !rq.sees(d.Cluster) {
		return nil, notFound("dead letter", in.ID)
	}
	return &bodyOutput[deadLetterView]{Body: viewDeadLetter(d)}, nil
}

type redriveBodyView struct {
	Reason   string `json:"reason,omitempty" maxLength:"1024"`
	Deadline string `json:"deadline,omitempty" doc:"RFC 3339"`
}

// redrivenView is a letter that was sent again, with its operation.
type redrivenView struct {
	DeadLetter deadLetterView `json:"dead_letter"`
	Operation  operationView  `json:"operation"`
}

func (a *API) redrive(ctx context.Context, rq *request, in *struct {
	ID   string `path:"id"`
	Key  string `header:"Idempotency-Key"`
	Body *redriveBodyView
}) (*createdOutput[redrivenView], error) {
	if !id.Valid(id.DeadLetter, in.ID) {
		return nil, notFound("dead letter", in.ID)
	}
	call, err := rq.keyed()
	if err != nil {
		return nil, err
	}
	var input control.RetryInput
	if in.Body != nil {
		input = control.RetryInput(*in.Body)
	}
	done, err := a.cfg.Control.Redrive(ctx, call, in.ID, input)
	if err != nil {
		return nil, err
	}
	out := &createdOutput[redrivenView]{Status: http.StatusAccepted, Location: operationsPath + "/" + done.Operation.Spec.ID, Replayed: replayed(done.Replayed),
		Body: redrivenView{DeadLetter: viewDeadLetter(done.Letter), Operation: viewOperation(&done.Operation)}}
	if done.Replayed {
		out.Status = http.StatusOK
	}
	return out, nil
}
