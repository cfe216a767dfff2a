package httpapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/react"
)

// ruleFailing is how judging by a rule failed.
type ruleFailing struct {
	Count   int64         `json:"count" doc:"Events for which an expression could not be evaluated; the number may be as much as half behind"`
	At      time.Time     `json:"at" doc:"When the last of them was received"`
	Cluster string        `json:"cluster,omitempty" doc:"Whose event that was; absent: the plane's own"`
	Last    alert.Failure `json:"last"`
}

// deletedRule answers that a rule was deleted.
type deletedRule struct {
	Status int
	Body   struct {
		Warnings []string `json:"warnings" nullable:"false" doc:"What names the rule still"`
	}
}

// present is what there is that rules and silences name.
type present struct {
	rules    []*alert.Rule
	clusters []string // ids
}

// present reads what there is, of rules those that the caller may see.
func (a *API) present(ctx context.Context, rq *request) (present, error) {
	all, err := a.rulesSeen(ctx, rq)
	if err != nil {
		return present{}, err
	}
	return a.presentWith(ctx, all)
}

// presentWith is present, with rules that were read.
func (a *API) presentWith(ctx context.Context, rules []react.Rule) (present, error) {
	clusters, err := a.cfg.Store.Clusters(ctx)
	if err != nil {
		return present{}, err
	}
	out := present{rules: react.Plain(rules)}
	for _, c := range clusters {
		out.clusters = append(out.clusters, c.ID)
	}
	return out, nil
}

// warningsOf tells what of a rule may be a slip: types that no catalogue has, which an
// agent that is newer may tell, and what it and others say of each other without
// effect; and which of its clusters are gone.
func warningsOf(r *alert.Rule, all present) []string {
	out := []string{}
	for _, t := range r.Types() {
		if _, known := event.Lookup(t); !known && !strings.HasSuffix(t, ".*") {
			out = append(out, "event type "+t+" is in no catalogue: nothing known tells it")
		}
	}
	out = append(out, r.References(all.rules)...)
	return append(out, r.ClustersWithout(all.clusters)...)
}

// fails shows how judging by the rule failed, where it did.
func (v *storedRuleView) fails(failing map[string]react.Failing) {
	f, ok := failing[v.ID]
	if !ok {
		return
	}
	v.Failing = &ruleFailing{Count: f.Count, At: f.At, Last: f.Last}
	if f.Stream != event.PlaneStream {
		v.Failing.Cluster = f.Stream
	}
	v.Warnings = append(v.Warnings, fmt.Sprintf("%s could not be evaluated for event %s: %s", f.Last.Field, f.Last.Event, f.Last.Error))
}

// failing is how judging by rules failed in the streams that the caller sees.
func (a *API) failing(ctx context.Context, rq *request, rules []react.Rule) (map[string]react.Failing, error) {
	streams, err := a.streamsSeen(ctx, rq)
	if err != nil {
		return nil, err
	}
	return a.cfg.Alerts.Failing(ctx, streams, rules)
}

// rulesSeen are the rules that the caller may see, by name.
func (a *API) rulesSeen(ctx context.Context, rq *request) ([]react.Rule, error) {
	all, err := a.cfg.Alerts.Rules(ctx)
	if err != nil {
		return nil, err
	}
	out := all[:0]
	for _, r := range all {
		if r, sees := rq.seesRule(r); sees {
			out = append(out, r)
		}
	}
	return out, nil
}

// changedRule answers with a rule that was changed, and what names it by the name that
// it had.
func (a *API) changedRule(ctx context.Context, rq *request, was string, r react.Rule) (*ruleOutput, error) {
	all, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	out := answerRule(r, all)
	if was != r.Rule.Name {
		left, err := a.leftBehind(ctx, was)
		if err != nil {
			return nil, err
		}
		out.Body.Warnings = append(out.Body.Warnings, left...)
	}
	return out, nil
}

// leftBehind tells what names a rule that is not there any more: rules, silences that
// have not ended, and receivers.
func (a *API) leftBehind(ctx context.Context, name string) ([]string, error) {
	all, err := a.cfg.Alerts.Rules(ctx)
	if err != nil {
		return nil, err
	}
	silences, err := a.cfg.Alerts.Silences(ctx, false)
	if err != nil {
		return nil, err
	}
	var choosers []alert.Chooser
	for _, s := range silences {
		choosers = append(choosers, alert.Chooser{Name: "silence " + s.ID, Matchers: s.Matchers})
	}
	if a.cfg.Receivers != nil {
		receivers, err := a.cfg.Receivers.Receivers(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range receivers {
			choosers = append(choosers, alert.Chooser{Name: "receiver " + r.Name, Matchers: r.Matchers})
		}
	}
	return alert.LeftBehind(name, react.Plain(all), choosers), nil
}
