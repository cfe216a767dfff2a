package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/react"
)

const alertsPath = "/v1/alerts"

func (a *API) alertRoutes() {
	tags := []string{"alerts"}
	register(a, huma.Operation{Method: http.MethodGet, Path: alertsPath, Summary: "List alerts", Tags: tags,
		Description: "The one that began last comes first. Those that are not over: state=pending&state=firing. " +
			"One call looks at 5,000 alerts at most: a page may be short, even empty, and have a next_cursor where more are left; read on until it is null."},
		access{action: auth.Read, several: []string{"state", "severity"}}, a.listAlerts)
	register(a, huma.Operation{Method: http.MethodGet, Path: alertsPath + "/{id}", Summary: "Get alert", Tags: tags}, access{action: auth.Read}, a.getAlert)
	register(a, huma.Operation{Method: http.MethodPost, Path: alertsPath + "/{id}/acknowledge", Summary: "Acknowledge alert", Tags: tags,
		Description: "Says that somebody is at it. It stays as it is otherwise, and resolves as it would. Who did so before stays in its history; of one that is resolved it is refused."},
		access{action: auth.Silence, body: smallBody, also: []int{http.StatusConflict}}, a.acknowledgeAlert)
}

// alertView is an alert with its links.
type alertView struct {
	alert.Alert
	// GroupKey is where the alert's state is kept, which is nobody's concern.
	GroupKey *struct{}  `json:"group_key,omitempty" hidden:"true"`
	Links    alertLinks `json:"links"`
}

type alertLinks struct {
	Rule      string  `json:"rule"`
	Operation *string `json:"operation"`
	Node      *string `json:"node" doc:"The node that the alert is about, or that the event which set it off happened on, where that tells"`
	Events    string  `json:"events" doc:"The evidence: the events from the first of it to the last"`
}

func viewAlert(x alert.Alert) alertView {
	v := alertView{Alert: x, Links: alertLinks{Rule: rulesPath + "/" + x.RuleID, Node: nodeLink(&x), Events: eventsLink(&x)}}
	if x.Operation != "" {
		link := operationsPath + "/" + x.Operation
		v.Links.Operation = &link
	}
	return v
}

// nodeLink leads to the node that the alert is about, or that its first event happened
// on; where the name alone is known of that, to the list of those of the name.
func nodeLink(x *alert.Alert) *string {
	const nodes = "/v1/nodes"
	link := ""
	switch {
	case id.Prefix(x.Subject.ID) == id.Node:
		link = nodes + "/" + x.Subject.ID
	case x.Cluster == "":
	case x.NodeUID != "":
		link = nodes + "/" + fleet.NodeID(x.Cluster, x.NodeUID)
	case x.Node != "":
		link = nodes + "?" + url.Values{"cluster": {x.Cluster}, "name": {x.Node}}.Encode()
	}
	return orNull(link)
}

// eventsLink leads to the evidence: the events from the first of it to the last, about
// the same subject, or of the same types where it has several.
func eventsLink(x *alert.Alert) string {
	q := url.Values{"cluster": {cmp.Or(x.Cluster, event.PlaneStream)}}
	if len(x.Evidence) == 0 {
		q.Set("since", stamp(x.Since))
	}
	one := x.Count == 1 // subject; else its group must say so
	for _, v := range x.Group {
		one = one || v != "" && (v == x.Subject.ID || v == x.Subject.Name)
	}
	one = one && x.Subject.ID != "" && x.Subject.ID == x.LastSubject.ID
	var since, until time.Time
	for i, e := range x.Evidence {
		if i == 0 || e.At.Before(since) {
			since = e.At
		}
		if e.At.After(until) {
			until = e.At
		}
		if !one && !slices.Contains(q["type"], e.Type) {
			q.Add("type", e.Type)
		}
	}
	if len(x.Evidence) > 0 {
		q.Set("since", stamp(since))
		q.Set("until", stamp(until.Add(time.Millisecond))) // its times are whole ones
	}
	if one {
		q.Set("subject", x.Subject.ID)
	}
	return "/v1/events?" + q.Encode()
}

func (a *API) listAlerts(ctx context.Context, rq *request, in *struct {
	PageInput
	State    []string `query:"state,explode" doc:"pending, firing or resolved; repeatable, or separated by commas"`
	Severity []string `query:"severity,explode" doc:"info, warning, error or critical; repeatable, or separated by commas"`
	Rule     string   `query:"rule" maxLength:"63" doc:"Name"`
	Cluster  string   `query:"cluster" doc:"Id or name; plane is the plane's own"`
	Since    string   `query:"since" doc:"RFC 3339: began at or after"`
	Until    string   `query:"until" doc:"RFC 3339: began before"`
}) (*listOutput[alertView], error) {
	f := react.Filter{Rule: in.Rule}
	var err error
	if f.States, err = oneOf("state", in.State, alert.States); err != nil {
		return nil, err
	}
	if f.Severities, err = oneOf("severity", in.Severity, event.Severities); err != nil {
		return nil, err
	}
	if f.Since, err = parseTime("since", in.Since); err != nil {
		return nil, err
	}
	if f.Until, err = parseTime("until", in.Until); err != nil {
		return nil, err
	}
	if err = between("since", f.Since, "until", f.Until); err != nil {
		return nil, err
	}
	switch {
	case in.Cluster != "":
		stream, err := a.streamParam(ctx, rq, in.Cluster)
		if err != nil {
			return nil, err
		}
		f.Streams = []string{stream}
	case len(rq.principal.Clusters) > 0:
		f.Streams = rq.principal.Clusters
	}
	parts := []string{in.Rule, in.Cluster, stamp(f.Since), stamp(f.Until)}
	for _, s := range f.States {
		parts = append(parts, string(s))
	}
	key := listKey("alerts", append(parts, f.Severities...)...)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	found, next, err := a.cfg.Alerts.Alerts(ctx, f, place, in.Limit)
	if err != nil {
		return nil, err
	}
	items := make([]alertView, len(found))
	for i, x := range found {
		items[i] = viewAlert(x.Alert)
	}
	if next != "" {
		next = encodeCursor(key, next)
	}
	return &listOutput[alertView]{Body: newList(items, next)}, nil
}

// AlertPath is exported for huma, which reads embedded fields only then.
type AlertPath struct {
	ID string `path:"id" maxLength:"64"`
}

// seenAlert is an alert that the caller may see.
func (a *API) seenAlert(ctx context.Context, rq *request, alertID string) (alert.Alert, error) {
	if !id.Valid(id.Alert, alertID) {
		return alert.Alert{}, notFound("alert", alertID)
	}
	x, err := a.cfg.Alerts.Alert(ctx, alertID)
	if err == nil && !rq.sees(x.Cluster) {
		return x, notFound("alert", alertID)
	}
	return x, err
}

func (a *API) getAlert(ctx context.Context, rq *request, in *AlertPath) (*bodyOutput[alertView], error) {
	x, err := a.seenAlert(ctx, rq, in.ID)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[alertView]{Body: viewAlert(x)}, nil
}

func (a *API) acknowledgeAlert(ctx context.Context, rq *request, in *struct {
	AlertPath
	Body struct {
		Note *string `json:"note,omitempty" maxLength:"1024" doc:"What is known, and who does what; when absent, the note that there is stays"`
	} `nameHint:"AcknowledgeBody"`
}) (*bodyOutput[alertView], error) {
	x, err := a.seenAlert(ctx, rq, in.ID)
	if err != nil {
		return nil, err
	}
	if err := rq.principal.Authorize(auth.Silence, x.Cluster); err != nil {
		return nil, err
	}
	if x, err = a.cfg.Alerts.Acknowledge(ctx, rq.call(), in.ID, in.Body.Note); err != nil {
		return nil, err
	}
	return &bodyOutput[alertView]{Body: viewAlert(x)}, nil
}
