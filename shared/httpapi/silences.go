package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

const silencesPath = "/v1/silences"

func (a *API) silenceRoutes() {
	tags := []string{"silences"}
	register(a, a.written(huma.Operation{Method: http.MethodPost, Path: silencesPath, Summary: "Create silence", Tags: tags, DefaultStatus: http.StatusCreated,
		Description: "Keeps the alerts that it matches from being told, from starts_at to ends_at. They are judged and kept as ever. " +
			"Who is confined to clusters names one of them by a matcher of cluster with =."}, silenceBody{}),
		access{action: auth.Silence, body: smallBody, yaml: true, also: []int{http.StatusOK, http.StatusGone}}, a.createSilence)
	register(a, huma.Operation{Method: http.MethodGet, Path: silencesPath, Summary: "List silences", Tags: tags,
		Description: "The one that begins last comes first."}, access{action: auth.Read}, a.listSilences)
	register(a, huma.Operation{Method: http.MethodGet, Path: silencesPath + "/{id}", Summary: "Get silence", Tags: tags}, access{action: auth.Read}, a.getSilence)
	register(a, huma.Operation{Method: http.MethodDelete, Path: silencesPath + "/{id}", Summary: "End silence", Tags: tags, DefaultStatus: http.StatusOK,
		Description: "Ends it now; it stays in the list of past ones."}, access{action: auth.Silence}, a.endSilence)
}

// silenceBody is what a person gives.
type silenceBody struct {
	Matchers []alert.Match `json:"matchers" doc:"All of them must hold"`
	StartsAt *time.Time    `json:"starts_at,omitempty" doc:"Now when absent"`
	EndsAt   time.Time     `json:"ends_at"`
	Reason   string        `json:"reason"`
}

// silenceView is a silence with its state.
type silenceView struct {
	ID        string          `json:"id"`
	Matchers  []alert.Match   `json:"matchers" nullable:"false"`
	StartsAt  time.Time       `json:"starts_at"`
	EndsAt    time.Time       `json:"ends_at"`
	State     string          `json:"state" enum:"pending,active,expired"`
	Author    operation.Actor `json:"author"`
	Reason    string          `json:"reason"`
	CreatedAt time.Time       `json:"created_at"`
	Warnings  []string        `json:"warnings" nullable:"false" doc:"What it names that there is not, of rules and clusters: a slip, made later, or deleted; and that it holds for more than it names"`
}

// viewSilence is the silence as it is shown.
func (a *API) viewSilence(s alert.Silence, all present) silenceView {
	v := silenceView{Warnings: []string{}, ID: s.ID, Matchers: s.Matchers, StartsAt: s.StartsAt, EndsAt: s.EndsAt, State: "active", Author: s.Author, Reason: s.Reason, CreatedAt: s.Created}
	switch now := a.now(); {
	case !now.Before(s.EndsAt):
		v.State = "expired"
	case now.Before(s.StartsAt):
		v.State = "pending"
	}
	if v.State != "expired" {
		v.Warnings = append(v.Warnings, alert.MatchersWithout(s.Matchers, all.rules)...)
		v.Warnings = append(v.Warnings, alert.ClustersWithout(s.Matchers, all.clusters)...)
		v.Warnings = append(v.Warnings, alert.MatchersOfNothing(s.Matchers, all.rules)...)
	}
	return v
}

// showSilence reads what viewSilence needs.
func (a *API) showSilence(ctx context.Context, rq *request, s alert.Silence) (silenceView, error) {
	all, err := a.present(ctx, rq)
	return a.viewSilence(s, all), err
}

func (a *API) createSilence(ctx context.Context, rq *request, _ *struct {
	Key     string `header:"Idempotency-Key"`
	RawBody []byte
}) (*createdOutput[silenceView], error) {
	var body silenceBody
	if err := alert.Decode(rq.body, &body); err != nil {
		return nil, err
	}
	call, err := rq.keyedFor(body)
	if err != nil {
		return nil, err
	}
	made, was, err := once(ctx, a.cfg.Store, call, func() (alert.Silence, error) {
		matchers, err := a.matchers(ctx, rq, body.Matchers, nil)
		if err != nil {
			return alert.Silence{}, err
		}
		if err := rq.principal.Authorize(auth.Silence, silencedCluster(matchers)); err != nil {
			return alert.Silence{}, err
		}
		s := alert.Silence{Matchers: matchers, EndsAt: body.EndsAt, Reason: body.Reason, StartsAt: a.now()}
		if body.StartsAt != nil {
			s.StartsAt = *body.StartsAt
		}
		return a.cfg.Alerts.CreateSilence(ctx, call, s)
	}, func(id string) (alert.Silence, error) {
		s, err := a.cfg.Alerts.Silence(ctx, id)
		if err == nil { // the caller's rights may have changed since
			err = rq.principal.Authorize(auth.Silence, silencedCluster(s.Matchers))
		}
		return s, err
	})
	if err != nil {
		return nil, err
	}
	v, err := a.showSilence(ctx, rq, made)
	if err != nil {
		return nil, err
	}
	return created(silencesPath, made.ID, was, v), nil
}

func (a *API) listSilences(ctx context.Context, rq *request, in *struct {
	PageInput
	Past string `query:"past" enum:"true,false" doc:"Those that are over, too"`
}) (*listOutput[silenceView], error) {
	key := listKey("silences", in.Past)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := a.cfg.Alerts.Silences(ctx, in.Past == "true")
	if err != nil {
		return nil, err
	}
	there, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s alert.Silence) bool { return !rq.seesSilence(s) })
	at := func(s *alert.Silence) string { return record.TimeSort(s.StartsAt, s.ID) }
	slices.SortFunc(all, func(a, b alert.Silence) int { return strings.Compare(at(&b), at(&a)) })
	items, next := []silenceView{}, ""
	for i := range all {
		if place != "" && at(&all[i]) >= place {
			continue
		}
		if len(items) == in.Limit {
			next = encodeCursor(key, at(&all[i-1]))
			break
		}
		items = append(items, a.viewSilence(all[i], there))
	}
	return &listOutput[silenceView]{Body: newList(items, next)}, nil
}

// seesSilence tells whether the caller may see the silence: it may be for an alert
// of a cluster that the caller sees.
func (rq *request) seesSilence(s alert.Silence) bool {
	clusters := rq.principal.Clusters
	if len(clusters) == 0 {
		return true
	}
	m, err := compiled(s.Matchers)
	return err == nil && slices.ContainsFunc(clusters, m.Concerns)
}

// SilencePath is exported for huma, which reads embedded fields only then.
type SilencePath struct {
	ID string `path:"id" maxLength:"64"`
}

func (a *API) getSilence(ctx context.Context, rq *request, in *SilencePath) (*bodyOutput[silenceView], error) {
	if !id.Valid(id.Silence, in.ID) {
		return nil, notFound("silence", in.ID)
	}
	s, err := a.cfg.Alerts.Silence(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if !rq.seesSilence(s) {
		return nil, notFound("silence", in.ID)
	}
	v, err := a.showSilence(ctx, rq, s)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[silenceView]{Body: v}, nil
}

func (a *API) endSilence(ctx context.Context, rq *request, in *SilencePath) (*bodyOutput[silenceView], error) {
	if !id.Valid(id.Silence, in.ID) {
		return nil, notFound("silence", in.ID)
	}
	s, err := a.cfg.Alerts.Silence(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if !rq.seesSilence(s) {
		return nil, notFound("silence", in.ID)
	}
	if err := rq.principal.Authorize(auth.Silence, silencedCluster(s.Matchers)); err != nil {
		return nil, err
	}
	s, err = a.cfg.Alerts.EndSilence(ctx, rq.call(), in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.showSilence(ctx, rq, s)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[silenceView]{Body: v}, nil
}
