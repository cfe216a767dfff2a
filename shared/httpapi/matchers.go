package httpapi

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
)

// matchers turns the names of clusters in matchers of silences and receivers into
// ids, and refuses what no alert can have: a cluster that there is not, a severity
// that is none, a rule without a name, or a cluster that the caller does not see. Of a pattern one cluster's id, or
// one severity, must match. Their
// form is for the domain to check. One of had may go on being there, whose cluster was
// deleted since.
func (a *API) matchers(ctx context.Context, rq *request, in, had []alert.Match) ([]alert.Match, error) {
	if len(in) > alert.MaxMatchers {
		return in, nil // it is told so, and none is looked up
	}
	var f alert.Faults
	out := slices.Clone(in)
	for i := range out {
		m := &out[i]
		m.Name = ""
		was := slices.IndexFunc(had, func(h alert.Match) bool { return h.Field == m.Field && h.Op == m.Op && h.Value == m.Value })
		wrong := func(code, detail string) {
			f = append(f, alert.Fault{Pointer: "/matchers/" + strconv.Itoa(i) + "/value", Code: code, Detail: detail})
		}
		switch {
		case m.Field == "rule" && m.Value == "":
			wrong(alert.CodeRequired, "must name a rule: none has an empty name")
		case m.Field == "severity" && !matchesSome(*m, event.Severities, func(s string) alert.Alert { return alert.Alert{Severity: s} }):
			wrong(alert.CodeFormat, "must be one of "+strings.Join(event.Severities, ", ")+", or a pattern that one of them matches")
		case m.Field == "cluster" && m.Op == alert.OpMatch:
			all, err := a.cfg.Store.Clusters(ctx)
			if err != nil {
				return nil, err
			}
			ids := []string{""}
			for _, c := range all {
				if rq.sees(c.ID) { // whether there are others is not told
					ids = append(ids, c.ID)
				}
			}
			if was < 0 && !matchesSome(*m, ids, func(id string) alert.Alert { return alert.Alert{Cluster: id} }) {
				wrong("not_found", "matches no cluster's id: a pattern is of ids; = and != take names, too")
			}
		case m.Field == "cluster" && m.Value != alert.PlaneCluster:
			c, err := admission.FindCluster(ctx, a.cfg.Store, m.Value)
			if err != nil && !errors.Is(err, ledger.ErrNotFound) {
				return nil, err
			}
			if err != nil && was >= 0 {
				m.Name = had[was].Name
				continue
			}
			if err != nil || !rq.sees(c.ID) {
				wrong("not_found", "names no cluster, by id or name; plane is the plane's own stream")
				continue
			}
			m.Value, m.Name = c.ID, c.Name
		}
	}
	if len(f) > 0 {
		return nil, f
	}
	return out, nil
}

// matchesSome tells whether a matcher is for one of the values, or is broken, which
// the domain tells; != is for some of several in any case, and its value must be one.
func matchesSome(m alert.Match, values []string, with func(string) alert.Alert) bool {
	if m.Op == alert.OpNotEqual {
		return slices.Contains(values, m.Value)
	}
	ready, err := compiled([]alert.Match{m})
	return err != nil || slices.ContainsFunc(values, func(v string) bool { x := with(v); return ready.Matches(&x) })
}

// compiled makes matchers ready apart from a silence, whose times may be over: one
// that was ended before it began has none that a new one could have.
func compiled(ms []alert.Match) (*alert.Matcher, error) {
	at := time.Unix(0, 0)
	return alert.CompileSilence(alert.Silence{Matchers: ms, StartsAt: at, EndsAt: at.Add(time.Hour), Reason: "none"})
}

// silencedCluster is the one cluster whose alerts the matchers are for, "" for the
// plane's or those of all.
func silencedCluster(ms []alert.Match) string {
	for _, m := range ms {
		if m.Field == "cluster" && m.Op == alert.OpEqual && m.Value != alert.PlaneCluster {
			return m.Value
		}
	}
	return ""
}
