package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

const receiversPath = "/v1/receivers"

func (a *API) receiverRoutes() {
	tags := []string{"receivers"}
	manage := access{action: auth.ManageRules, fleet: true, body: smallBody, yaml: true}
	one := receiversPath + "/{id}"
	register(a, a.written(huma.Operation{Method: http.MethodPost, Path: receiversPath, Summary: "Create receiver", Tags: tags, DefaultStatus: http.StatusCreated,
		Description: "Somebody to be told of alerts, from now on: a webhook by the Standard Webhooks scheme, or Alertmanagers by their API v2. " +
			"The answer has a webhook's secret; nothing shows it again but a repeat under the same Idempotency-Key."}, notify.Spec{}),
		with(manage, http.StatusOK, http.StatusGone), a.createReceiver)
	register(a, huma.Operation{Method: http.MethodGet, Path: receiversPath, Summary: "List receivers", Tags: tags,
		Description: "By name. Secrets are shown by their fingerprints."}, access{action: auth.ManageRules, fleet: true}, a.listReceivers)
	register(a, huma.Operation{Method: http.MethodGet, Path: one, Summary: "Get receiver", Tags: tags}, access{action: auth.ManageRules, fleet: true}, a.getReceiver)
	register(a, a.written(huma.Operation{Method: http.MethodPut, Path: one, Summary: "Replace receiver", Tags: tags,
		Description: "Its kind and its secrets stay. One that is enabled by it (enabled absent, or true), also where the plane had disabled it, gets what was left to send, too. " +
			"A change has what failed be tried at once; what is said already changes nothing, and keeps the revision."}, notify.Spec{}),
		with(manage, http.StatusPreconditionFailed), a.replaceReceiver)
	register(a, huma.Operation{Method: http.MethodDelete, Path: one, Summary: "Delete receiver", Tags: tags,
		Description: "What was to be sent to it goes with it."},
		access{action: auth.ManageRules, fleet: true, also: []int{http.StatusPreconditionFailed}}, a.deleteReceiver)
	rotate := a.written(huma.Operation{Method: http.MethodPost, Path: one + "/rotate", Summary: "Rotate secret", Tags: tags, DefaultStatus: http.StatusOK,
		Description: "Gives a webhook another secret. The one before it signs, too, for the overlap: a receiver takes either signature."}, rotateBody{})
	rotate.RequestBody.Required = false
	register(a, rotate, with(manage, http.StatusPreconditionFailed), a.rotateReceiver)
	register(a, huma.Operation{Method: http.MethodPost, Path: one + "/test", Summary: "Test receiver", Tags: tags, DefaultStatus: http.StatusOK,
		Description: "Sends one message, once, and answers what came back."},
		access{action: auth.ManageRules, fleet: true, body: smallBody, also: []int{http.StatusPreconditionFailed}}, a.testReceiver)
	register(a, huma.Operation{Method: http.MethodGet, Path: one + "/deliveries", Summary: "List deliveries", Tags: tags,
		Description: "The one that was made last comes first. Dead letters: state=failed."}, access{action: auth.ManageRules, fleet: true}, a.listDeliveries)
	register(a, huma.Operation{Method: http.MethodPost, Path: one + "/deliveries/{delivery}/redeliver", Summary: "Redeliver", Tags: tags, DefaultStatus: http.StatusAccepted,
		Description: "Sends it again, under the id that it had."}, access{action: auth.ManageRules, fleet: true, body: smallBody}, a.redeliver)
}

type rotateBody struct {
	Secret  string          `json:"secret,omitempty" doc:"whsec_ and base64 of 24 to 64 bytes; one is made when absent"`
	Overlap *alert.Duration `json:"overlap,omitempty" doc:"How long the one before it signs, too: 0s to 7d, 1d when absent"`
}

// receiverView is a receiver as it is shown: without its secrets.
type receiverView struct {
	ID           string               `json:"id"`
	Name         string               `json:"name"`
	Kind         string               `json:"kind" enum:"webhook,alertmanager"`
	URL          *string              `json:"url"`
	URLs         []string             `json:"urls" nullable:"false"`
	Matchers     []alert.Match        `json:"matchers" nullable:"false"`
	SendResolved bool                 `json:"send_resolved"`
	Timeout      string               `json:"timeout"`
	Labels       map[string]string    `json:"labels" nullable:"false"`
	Enabled      bool                 `json:"enabled" doc:"Whether it is told of alerts; where the plane disabled it, disabled says why"`
	Disabled     *notify.Disabled     `json:"disabled" doc:"By the plane; null: it did not. A PUT without enabled, or with true, ends it"`
	Held         []notify.Held        `json:"held" nullable:"false" doc:"Where messages are not taken, or a pause was asked for: nothing is sent there for a while"`
	Secrets      []notify.Fingerprint `json:"secrets" nullable:"false" doc:"By their fingerprints, the newest first"`
	CreatedAt    time.Time            `json:"created_at"`
	CreatedBy    operation.Actor      `json:"created_by"`
	UpdatedAt    time.Time            `json:"updated_at"`
	UpdatedBy    operation.Actor      `json:"updated_by"`
	Secret       *string              `json:"secret,omitempty" doc:"Shown once, by what makes it"`
	Warnings     []string             `json:"warnings" nullable:"false" doc:"What its matchers name that there is not, of rules and clusters, who tells the same Alertmanager under the same labels, and what a change that leaves it is refused for"`
	Links        receiverLinks        `json:"links"`
}

type receiverLinks struct {
	Deliveries string `json:"deliveries"`
}

// viewReceiver is the receiver, which is one of several, as it is shown.
func (a *API) viewReceiver(r notify.Receiver, of []notify.Receiver, held []notify.Held, all present) receiverView {
	timeout := r.Timeout
	if timeout == 0 {
		timeout = alert.Duration(notify.DefaultTimeout)
	}
	v := receiverView{ID: r.ID, Name: r.Name, Kind: r.Kind, URL: orNull(r.URL), URLs: orEmpty(r.URLs), Matchers: orEmpty(r.Matchers),
		SendResolved: r.SendResolved == nil || *r.SendResolved, Timeout: timeout.String(), Labels: r.Labels, Enabled: r.Active(),
		Disabled: r.Disabled, Held: orEmpty(held), Secrets: orEmpty(r.Secrets), CreatedAt: r.CreatedAt, CreatedBy: r.CreatedBy, UpdatedAt: r.UpdatedAt, UpdatedBy: r.UpdatedBy,
		Warnings: []string{}, Links: receiverLinks{Deliveries: receiversPath + "/" + r.ID + "/deliveries"}}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	v.Warnings = append(v.Warnings, alert.MatchersWithout(r.Matchers, all.rules)...)
	v.Warnings = append(v.Warnings, alert.ClustersWithout(r.Matchers, all.clusters)...)
	for _, name := range r.Doubles(of) {
		v.Warnings = append(v.Warnings, fmt.Sprintf("receiver %s tells the same Alertmanager of alerts under the same labels: one that either ends, ends there for both", name))
	}
	for _, f := range a.cfg.Receivers.Outdated(r) {
		v.Warnings = append(v.Warnings, fmt.Sprintf("a change is refused that leaves %s: %s", f.Pointer, f.Detail))
	}
	return v
}

type receiverOutput struct {
	ETag string `header:"ETag" doc:"The receiver's revision"`
	Body receiverView
}

// answerReceiver reads what viewReceiver needs.
func (a *API) answerReceiver(ctx context.Context, rq *request, r notify.Receiver, secret string) (*receiverOutput, error) {
	all, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	held, err := a.cfg.Receivers.Holds(ctx, r)
	if err != nil {
		return nil, err
	}
	of, err := a.cfg.Receivers.Receivers(ctx)
	if err != nil {
		return nil, err
	}
	out := &receiverOutput{ETag: strconv.Quote(strconv.FormatInt(r.Revision, 10)), Body: a.viewReceiver(r, of, held[r.ID], all)}
	out.Body.Secret = orNull(secret)
	return out, nil
}

// ReceiverPath is exported for huma, which reads embedded fields only then.
type ReceiverPath struct {
	ID string `path:"id" maxLength:"64" doc:"Id or name"`
}

func (a *API) createReceiver(ctx context.Context, rq *request, _ *struct {
	Key     string `header:"Idempotency-Key"`
	RawBody []byte
}) (*createdOutput[receiverView], error) {
	var sp notify.Spec
	if err := alert.Decode(rq.body, &sp); err != nil {
		return nil, err
	}
	call, err := rq.keyedFor(sp)
	if err != nil {
		return nil, err
	}
	made, was, err := once(ctx, a.cfg.Store, call, func() (*receiverOutput, error) {
		sp := sp
		var err error
		if sp.Matchers, err = a.matchers(ctx, rq, sp.Matchers, nil); err != nil {
			return nil, err
		}
		r, secret, err := a.cfg.Receivers.Create(ctx, call, sp)
		if err != nil {
			return nil, err
		}
		return a.answerReceiver(ctx, rq, r, secret)
	}, func(id string) (*receiverOutput, error) {
		r, secret, err := a.cfg.Receivers.Made(ctx, id)
		if err != nil {
			return nil, err
		}
		return a.answerReceiver(ctx, rq, r, secret)
	})
	if err != nil {
		return nil, err
	}
	return created(receiversPath, made.Body.ID, was, made.Body), nil
}

func (a *API) listReceivers(ctx context.Context, rq *request, in *struct{ PageInput }) (*listOutput[receiverView], error) {
	key := listKey("receivers")
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := a.cfg.Receivers.Receivers(ctx)
	if err != nil {
		return nil, err
	}
	there, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	held, err := a.cfg.Receivers.Holds(ctx, all...)
	if err != nil {
		return nil, err
	}
	items, next := []receiverView{}, ""
	for _, r := range all {
		if r.Name <= place {
			continue
		}
		if len(items) == in.Limit {
			next = encodeCursor(key, items[len(items)-1].Name)
			break
		}
		items = append(items, a.viewReceiver(r, all, held[r.ID], there))
	}
	return &listOutput[receiverView]{Body: newList(items, next)}, nil
}

func (a *API) getReceiver(ctx context.Context, rq *request, in *ReceiverPath) (*receiverOutput, error) {
	r, err := a.cfg.Receivers.Receiver(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return a.answerReceiver(ctx, rq, r, "")
}

func (a *API) replaceReceiver(ctx context.Context, rq *request, in *struct {
	ReceiverPath
	IfMatch string `header:"If-Match" doc:"Change only this revision"`
	RawBody []byte
}) (*receiverOutput, error) {
	revision, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	var sp notify.Spec
	if err := alert.Decode(rq.body, &sp); err != nil {
		return nil, err
	}
	was, err := a.cfg.Receivers.Receiver(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if sp.Matchers, err = a.matchers(ctx, rq, sp.Matchers, was.Matchers); err != nil {
		return nil, err
	}
	r, err := a.cfg.Receivers.Update(ctx, rq.call(), in.ID, revision, sp)
	if err != nil {
		return nil, err
	}
	return a.answerReceiver(ctx, rq, r, "")
}

func (a *API) deleteReceiver(ctx context.Context, rq *request, in *struct {
	ReceiverPath
	IfMatch string `header:"If-Match" doc:"Delete only this revision"`
}) (*struct{}, error) {
	revision, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	return nil, a.cfg.Receivers.Delete(ctx, rq.call(), in.ID, revision)
}

func (a *API) rotateReceiver(ctx context.Context, rq *request, in *ReceiverPath) (*receiverOutput, error) {
	var body rotateBody
	if len(rq.body) > 0 {
		if err := alert.Decode(rq.body, &body); err != nil {
			return nil, err
		}
	}
	overlap := notify.DefaultOverlap
	if body.Overlap != nil {
		overlap = body.Overlap.D()
	}
	r, secret, err := a.cfg.Receivers.Rotate(ctx, rq.call(), in.ID, body.Secret, overlap)
	if err != nil {
		return nil, err
	}
	return a.answerReceiver(ctx, rq, r, secret)
}

func (a *API) testReceiver(ctx context.Context, rq *request, in *ReceiverPath) (*bodyOutput[notify.Tested], error) {
	release, err := rq.wait() // it takes as long as the receiver does
	if err != nil {
		return nil, err
	}
	defer release()
	// A gateway may end the request before the receiver's own time is up.
	ctx, cancel := context.WithTimeout(ctx, a.cfg.MaxWait)
	defer cancel()
	out, err := a.cfg.Receivers.Test(ctx, rq.call(), in.ID)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[notify.Tested]{Body: out}, nil
}

// deliveryView is a message to a receiver.
type deliveryView struct {
	ID          string        `json:"id"`
	State       notify.State  `json:"state" enum:"pending,active,delivered,failed,superseded"`
	Event       string        `json:"event" doc:"The event that it tells; a webhook's webhook-id"`
	Type        string        `json:"type"`
	Alert       string        `json:"alert"`
	Rule        string        `json:"rule"`
	Cluster     *string       `json:"cluster"`
	CreatedAt   time.Time     `json:"created_at"`
	Next        *time.Time    `json:"next" doc:"When it is sent, of one that is to be"`
	Tries       int           `json:"tries" doc:"Those since it was made, redelivered or, of an Alertmanager's, taken before; those among them that a change of the receiver brought do not give it up"`
	LastAt      *time.Time    `json:"last_at"`
	LastStatus  *int          `json:"last_status" doc:"HTTP; null when there was no answer"`
	LastError   *string       `json:"last_error"`
	DoneAt      *time.Time    `json:"done_at"`
	Redelivered int           `json:"redelivered"`
	Links       deliveryLinks `json:"links"`
}

type deliveryLinks struct {
	Alert string `json:"alert"`
}

func viewDelivery(d notify.Delivery) deliveryView {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	v := deliveryView{ID: d.ID, State: d.State, Event: d.Event, Type: d.Type, Alert: d.Alert, Rule: d.Rule, Cluster: orNull(d.Cluster), CreatedAt: d.CreatedAt,
		Next: at(d.Next), Tries: d.Tries, LastAt: at(d.LastAt), LastError: orNull(d.LastError), DoneAt: at(d.DoneAt), Redelivered: d.Redeliver,
		Links: deliveryLinks{Alert: alertsPath + "/" + d.Alert}}
	if d.LastStatus != 0 {
		v.LastStatus = &d.LastStatus
	}
	return v
}

func (a *API) listDeliveries(ctx context.Context, _ *request, in *struct {
	ReceiverPath
	PageInput
	State string `query:"state" enum:"pending,active,delivered,failed,superseded"`
}) (*listOutput[deliveryView], error) {
	r, err := a.cfg.Receivers.Receiver(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	found, next, err := page(listKey("deliveries", r.ID, in.State), in.PageInput, true,
		func(sp record.Span) ([]notify.Delivery, bool, error) {
			return a.cfg.Receivers.Deliveries(ctx, r.ID, notify.State(in.State), sp)
		},
		func(d notify.Delivery) string { return record.TimeSort(d.CreatedAt, d.ID) },
		func(notify.Delivery) bool { return true })
	if err != nil {
		return nil, err
	}
	items := make([]deliveryView, len(found))
	for i, d := range found {
		items[i] = viewDelivery(d)
	}
	return &listOutput[deliveryView]{Body: newList(items, next)}, nil
}

func (a *API) redeliver(ctx context.Context, rq *request, in *struct {
	ReceiverPath
	Delivery string `path:"delivery" maxLength:"64"`
}) (*bodyOutput[deliveryView], error) {
	d, err := a.cfg.Receivers.Redeliver(ctx, rq.call(), in.ID, in.Delivery)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[deliveryView]{Body: viewDelivery(d)}, nil
}
