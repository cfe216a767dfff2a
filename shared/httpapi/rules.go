package httpapi

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/react"
)

const rulesPath = "/v1/rules"

// ruleBody bounds a rule with what is around it in a test's request.
const ruleBody = alert.MaxRuleBytes + 4<<10

func (a *API) ruleRoutes() {
	tags := []string{"rules"}
	manage := access{action: auth.ManageRules, fleet: true, body: ruleBody, yaml: true}
	register(a, a.written(huma.Operation{Method: http.MethodPost, Path: rulesPath, Summary: "Create rule", Tags: tags, DefaultStatus: http.StatusCreated,
		Description: "The body is a rule in YAML or JSON. Its conditions are checked for types and cost before it is taken; errors tell where."}, alert.Rule{}),
		with(manage, http.StatusOK, http.StatusGone), a.createRule)
	register(a, huma.Operation{Method: http.MethodGet, Path: rulesPath, Summary: "List rules", Tags: tags,
		Description: "The shipped rules and those that were made, by name."}, access{action: auth.Read}, a.listRules)
	register(a, a.written(huma.Operation{Method: http.MethodPost, Path: rulesPath + "/test", Summary: "Test rule", Tags: tags,
		Description: "Judges the stored events by a rule as if it had been in force: which alerts would have fired, when, on what evidence, and what it cost. Nothing is kept. What is refused when the rule is saved is refused here, too, below /rule: all but a name that is taken. " +
			"It answers when its time is up with complete false and how far it came."}, ruleTestBody{}),
		access{action: auth.Read, body: ruleBody, yaml: true}, a.testRule)
	register(a, huma.Operation{Method: http.MethodGet, Path: rulesPath + "/{id}", Summary: "Get rule", Tags: tags}, access{action: auth.Read}, a.getRule)
	register(a, a.written(huma.Operation{Method: http.MethodPut, Path: rulesPath + "/{id}", Summary: "Replace rule", Tags: tags,
		Description: "What becomes of alerts that fire is the new rule's on_change: resolve (they end) or keep. With a new name go the rules and silences that name it. A shipped rule is not replaced: override it."}, alert.Rule{}),
		with(manage, http.StatusPreconditionFailed), a.replaceRule)
	register(a, huma.Operation{Method: http.MethodDelete, Path: rulesPath + "/{id}", Summary: "Delete rule", Tags: tags,
		Description: "Its alerts resolve. Of a shipped rule it takes the override back. Where rules or silences name it still, the answer is 200 and says so.", DefaultStatus: http.StatusNoContent},
		access{action: auth.ManageRules, fleet: true, also: []int{http.StatusOK, http.StatusPreconditionFailed}}, a.deleteRule)
	register(a, a.written(huma.Operation{Method: http.MethodPut, Path: rulesPath + "/{id}/override", Summary: "Override rule", Tags: tags,
		Description: "Turns a shipped rule off, or changes its thresholds: what is given replaces the rule's own."}, alert.Override{}),
		with(manage, http.StatusPreconditionFailed), a.overrideRule)
}

func with(ac access, also ...int) access {
	ac.also = append(ac.also, also...)
	return ac
}

// written documents a body that comes as YAML or JSON and that the domain reads
// itself: it knows lines and columns.
func (a *API) written(op huma.Operation, body any) huma.Operation {
	schema := &huma.Schema{}
	if a.cfg.documents {
		schema = huma.SchemaFromType(a.huma.OpenAPI().Components.Schemas, reflect.TypeOf(body))
	}
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: schema}, yamlTypes[0]: {Schema: schema},
	}}
	op.SkipValidateBody = true
	return op
}

// storedRuleView is a rule with what is known of it.
type storedRuleView struct {
	ID        string           `json:"id"`
	Rule      alert.Rule       `json:"rule"`
	Version   int64            `json:"version" doc:"Grows at each change; alerts name it"`
	Digest    string           `json:"digest"`
	Shipped   bool             `json:"shipped" doc:"It came with the product"`
	Override  *alert.Override  `json:"override" doc:"What was changed of a shipped rule"`
	CreatedAt *time.Time       `json:"created_at"`
	CreatedBy *operation.Actor `json:"created_by"`
	UpdatedAt *time.Time       `json:"updated_at"`
	UpdatedBy *operation.Actor `json:"updated_by"`
	Faults    alert.Faults     `json:"faults,omitempty" doc:"Why it judges nothing: another version of the plane took it. Its alerts stay as they are"`
	Failing   *ruleFailing     `json:"failing,omitempty" doc:"How judging by the rule, as it is now, failed in the streams that the caller sees"`
	Warnings  []string         `json:"warnings" nullable:"false" doc:"What may be a slip: types that are in no catalogue, inhibitors that inhibit nothing, clusters that were deleted, expressions that failed"`
	Links     ruleLinks        `json:"links"`
}

type ruleLinks struct {
	Alerts string `json:"alerts"`
}

// viewRule is the rule as it is shown.
func viewRule(r react.Rule, all present) storedRuleView {
	v := storedRuleView{ID: r.ID, Rule: r.Rule, Version: r.Version, Digest: r.Digest, Shipped: r.Shipped, Override: r.Override, Faults: r.Faults(),
		Links: ruleLinks{Alerts: alertsPath + "?rule=" + r.Rule.Name}}
	v.Warnings = warningsOf(&r.Rule, all)
	enabled := r.Rule.IsEnabled()
	v.Rule.Enabled = &enabled                                       // said, also where it is by itself
	if v.Override != nil && reflect.ValueOf(*v.Override).IsZero() { // taken back
		v.Override = nil
	}
	if !r.CreatedAt.IsZero() {
		v.CreatedAt, v.CreatedBy = &r.CreatedAt, &r.CreatedBy
	}
	if !r.UpdatedAt.IsZero() {
		v.UpdatedAt, v.UpdatedBy = &r.UpdatedAt, &r.UpdatedBy
	}
	return v
}

type ruleOutput struct {
	ETag string `header:"ETag" doc:"The rule's revision; none of a shipped rule that nobody changed"`
	Body storedRuleView
}

func answerRule(r react.Rule, all present) *ruleOutput {
	out := &ruleOutput{Body: viewRule(r, all)}
	if r.Revision > 0 {
		out.ETag = strconv.Quote(strconv.FormatInt(r.Revision, 10))
	}
	return out
}

// RulePath is exported for huma, which reads embedded fields only then.
type RulePath struct {
	ID string `path:"id" maxLength:"64" doc:"Id or name"`
}

// checkRule turns names of clusters in a rule that was read into ids, and holds the
// rule to what can be known without the others. had are clusters that it named before.
func (a *API) checkRule(ctx context.Context, rq *request, r alert.Rule, had []string) (alert.Rule, error) {
	if len(r.Clusters) <= alert.MaxClusters { // of more it says so, and looks none up
		var err error
		if r.Clusters, err = a.clustersOf(ctx, rq, r.Clusters, had); err != nil {
			return r, err
		}
	}
	return r, r.Validate()
}

// clustersOf turns names of clusters into ids. One of had that was deleted since may go
// on being named, by its id.
func (a *API) clustersOf(ctx context.Context, rq *request, names, had []string) ([]string, error) {
	var out []string
	for i, name := range names {
		if name == alert.PlaneCluster {
			out = append(out, name)
			continue
		}
		c, err := admission.FindCluster(ctx, a.cfg.Store, name)
		if errors.Is(err, ledger.ErrNotFound) && slices.Contains(had, name) {
			out = append(out, name)
			continue
		}
		if err != nil || !rq.sees(c.ID) {
			return nil, alert.Faults{{Pointer: "/clusters/" + strconv.Itoa(i), Code: "not_found", Detail: "names no cluster; plane is the plane's own stream"}}
		}
		out = append(out, c.ID)
	}
	return out, nil
}

func (a *API) createRule(ctx context.Context, rq *request, _ *struct {
	Key     string `header:"Idempotency-Key"`
	RawBody []byte
}) (*createdOutput[storedRuleView], error) {
	var said alert.Rule
	if err := alert.Decode(rq.body, &said); err != nil {
		return nil, err
	}
	call, err := rq.keyedFor(said)
	if err != nil {
		return nil, err
	}
	made, was, err := once(ctx, a.cfg.Store, call, func() (react.Rule, error) {
		r, err := a.checkRule(ctx, rq, said, nil)
		if err != nil {
			return react.Rule{}, err
		}
		return a.cfg.Alerts.CreateRule(ctx, call, r)
	}, func(id string) (react.Rule, error) { return a.cfg.Alerts.Rule(ctx, id) })
	if err != nil {
		return nil, err
	}
	all, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	return created(rulesPath, made.ID, was, viewRule(made, all)), nil
}

func (a *API) listRules(ctx context.Context, rq *request, in *struct {
	PageInput
	Shipped string `query:"shipped" enum:"true,false"`
	Enabled string `query:"enabled" enum:"true,false"`
}) (*listOutput[storedRuleView], error) {
	key := listKey("rules", in.Shipped, in.Enabled)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := a.rulesSeen(ctx, rq)
	if err != nil {
		return nil, err
	}
	failing, err := a.failing(ctx, rq, all)
	if err != nil {
		return nil, err
	}
	there, err := a.presentWith(ctx, all)
	if err != nil {
		return nil, err
	}
	shipped, enabled := parseBool(in.Shipped), parseBool(in.Enabled)
	items, next := []storedRuleView{}, ""
	for _, r := range all {
		if r.Rule.Name <= place || shipped != nil && *shipped != r.Shipped || enabled != nil && *enabled != r.Rule.IsEnabled() {
			continue
		}
		if len(items) == in.Limit {
			next = encodeCursor(key, items[len(items)-1].Rule.Name)
			break
		}
		v := viewRule(r, there)
		v.fails(failing)
		items = append(items, v)
	}
	return &listOutput[storedRuleView]{Body: newList(items, next)}, nil
}

// seesRule is the rule as the caller may see it: of its clusters those that the
// caller sees, and not at all where it is for others alone.
func (rq *request) seesRule(r react.Rule) (react.Rule, bool) {
	if len(rq.principal.Clusters) == 0 || len(r.Rule.Clusters) == 0 {
		return r, true
	}
	unseen := func(c string) bool { return !rq.sees(c) }
	r.Rule.Clusters = slices.DeleteFunc(slices.Clone(r.Rule.Clusters), unseen)
	if r.Override != nil {
		o := *r.Override
		o.Clusters = slices.DeleteFunc(slices.Clone(o.Clusters), unseen)
		r.Override = &o
	}
	return r, len(r.Rule.Clusters) > 0
}

func (a *API) getRule(ctx context.Context, rq *request, in *RulePath) (*ruleOutput, error) {
	r, err := a.cfg.Alerts.Rule(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	r, sees := rq.seesRule(r)
	if !sees {
		return nil, notFound("rule", in.ID)
	}
	all, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	failing, err := a.failing(ctx, rq, []react.Rule{r})
	if err != nil {
		return nil, err
	}
	out := answerRule(r, all)
	out.Body.fails(failing)
	return out, nil
}

func (a *API) replaceRule(ctx context.Context, rq *request, in *struct {
	RulePath
	IfMatch string `header:"If-Match" doc:"Change only this revision"`
	RawBody []byte
}) (*ruleOutput, error) {
	revision, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	var r alert.Rule
	if err := alert.Decode(rq.body, &r); err != nil {
		return nil, err
	}
	was, err := a.cfg.Alerts.Rule(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if r, err = a.checkRule(ctx, rq, r, was.Rule.Clusters); err != nil {
		return nil, err
	}
	made, err := a.cfg.Alerts.UpdateRule(ctx, rq.call(), in.ID, revision, r)
	if err != nil {
		return nil, err
	}
	return a.changedRule(ctx, rq, was.Rule.Name, made)
}

func (a *API) deleteRule(ctx context.Context, rq *request, in *struct {
	RulePath
	IfMatch string `header:"If-Match" doc:"Delete only this revision"`
}) (*deletedRule, error) {
	revision, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	was, err := a.cfg.Alerts.Rule(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Alerts.DeleteRule(ctx, rq.call(), in.ID, revision); err != nil {
		return nil, err
	}
	out := &deletedRule{Status: http.StatusNoContent}
	if out.Body.Warnings, err = a.leftBehind(ctx, was.Rule.Name); err != nil {
		return nil, err
	}
	if len(out.Body.Warnings) > 0 {
		out.Status = http.StatusOK
	}
	return out, nil
}

func (a *API) overrideRule(ctx context.Context, rq *request, in *struct {
	RulePath
	IfMatch string `header:"If-Match" doc:"Change only this revision"`
	RawBody []byte
}) (*ruleOutput, error) {
	revision, err := parseETag("If-Match", in.IfMatch)
	if err != nil {
		return nil, err
	}
	var o alert.Override
	if err := alert.Decode(rq.body, &o); err != nil {
		return nil, err
	}
	was, err := a.cfg.Alerts.Rule(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if o.Clusters, err = a.clustersOf(ctx, rq, o.Clusters, was.Rule.Clusters); err != nil {
		return nil, err
	}
	made, err := a.cfg.Alerts.OverrideRule(ctx, rq.call(), in.ID, revision, o)
	if err != nil {
		return nil, err
	}
	return a.changedRule(ctx, rq, made.Rule.Name, made)
}
