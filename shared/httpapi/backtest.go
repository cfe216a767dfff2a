package httpapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/react"
)

// ruleTestBody is what a test judges.
type ruleTestBody struct {
	Rule  alert.Rule `json:"rule"`
	Since string     `json:"since,omitempty" doc:"RFC 3339; a week ago when absent"`
	Until string     `json:"until,omitempty" doc:"RFC 3339; now when absent"`
}

// ruleTestView is what the rule would have done.
type ruleTestView struct {
	react.Backtested
	Alerts   []alertView `json:"alerts" nullable:"false" doc:"Those that would have fired, or are pending at the end, as they stand then, in the order in which they began"`
	Warnings []string    `json:"warnings" nullable:"false" doc:"What may be a slip in the rule, and what the test could not see"`
}

// testWeek is how far back a test looks by itself.
const testWeek = 7 * 24 * time.Hour

// maxTest bounds what one test takes; it tells how far it came.
const maxTest = 20 * time.Second

// maxTests bounds the tests that one process judges at once: each may take a core.
const maxTests = 2

// beginTest takes one of the tests that may be under way.
func (a *API) beginTest() (end func(), err error) {
	select {
	case a.tests <- struct{}{}:
		return func() { <-a.tests }, nil
	default:
		return nil, tooManyWaits("tests of rules", maxTests).WithRetryAfter(maxTest / 4)
	}
}

func (a *API) testRule(ctx context.Context, rq *request, _ *struct{ RawBody []byte }) (*bodyOutput[ruleTestView], error) {
	release, err := rq.wait() // a test is as dear as a wait is long
	if err != nil {
		return nil, err
	}
	defer release()
	var body ruleTestBody
	if err := alert.Decode(rq.body, &body); err != nil {
		return nil, err
	}
	var b react.Backtest
	var had []string
	if was, err := a.cfg.Alerts.Rule(ctx, body.Rule.Name); err == nil {
		was, _ = rq.seesRule(was)
		had = was.Rule.Clusters
	}
	if b.Rule, err = a.checkRule(ctx, rq, body.Rule, had); err != nil {
		return nil, below("/rule", err)
	}
	b.Since = a.now().Add(-testWeek)
	for _, x := range []struct {
		name, text string
		at         *time.Time
	}{{"since", body.Since, &b.Since}, {"until", body.Until, &b.Until}} {
		if x.text == "" {
			continue
		}
		if *x.at, err = operation.ParseTime(x.text); err != nil {
			return nil, alert.Faults{{Pointer: "/" + x.name, Code: alert.CodeFormat, Detail: err.Error()}}
		}
	}
	if b.Streams, err = a.streamsSeen(ctx, rq); err != nil {
		return nil, err
	}
	b.Sees = func(r react.Rule) bool {
		_, sees := rq.seesRule(r)
		return sees
	}
	end, err := a.beginTest()
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, min(maxTest, a.cfg.MaxWait))
	defer cancel()
	out, err := a.cfg.Alerts.Backtest(ctx, b)
	if err != nil {
		return nil, below("/rule", err)
	}
	all, err := a.present(ctx, rq)
	if err != nil {
		return nil, err
	}
	b.Rule.Enabled = nil // it is judged as if it were
	v := ruleTestView{Backtested: out, Alerts: make([]alertView, len(out.Alerts)), Warnings: append(warningsOf(&b.Rule, all), unseenBy(&out)...)}
	for i, x := range out.Alerts {
		v.Alerts[i] = viewAlert(x)
	}
	return &bodyOutput[ruleTestView]{Body: v}, nil
}

// unseenBy tells what of the time that was asked for a test could not see any more.
func unseenBy(out *react.Backtested) []string {
	var all []string
	if n := out.DetailsExpired; n > 0 {
		all = append(all, fmt.Sprintf("retention has taken the detail, which the rule reads, of %d of the %d events judged: what it says of them is not what it would have said then", n, out.Judged))
	}
	var last time.Time
	n := 0
	for _, x := range out.EventsFrom {
		if x.Expired {
			n++
			if x.At.After(last) {
				last = x.At
			}
		}
	}
	if n > 0 {
		all = append(all, fmt.Sprintf("retention has taken earlier events of %d of the streams judged; from %s on nothing is missing: see events_from", n, stamp(last)))
	}
	return all
}

// below moves faults of a rule to where the rule is in the body.
func below(at string, err error) error {
	faults, ok := err.(alert.Faults) //nolint:errorlint // they are returned as they are
	if !ok {
		return err
	}
	out := make(alert.Faults, len(faults))
	for i, f := range faults {
		if !strings.HasPrefix(f.Pointer, "/since") {
			f.Pointer = at + f.Pointer
		}
		out[i] = f
	}
	return out
}

// streamsSeen lists the streams whose alerts and events the caller may see.
func (a *API) streamsSeen(ctx context.Context, rq *request) ([]string, error) {
	all, err := event.Streams(ctx, a.cfg.Store)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, s := range all {
		cluster := s
		if s == event.PlaneStream {
			cluster = ""
		}
		if rq.sees(cluster) {
			out = append(out, s)
		}
	}
	return out, nil
}
