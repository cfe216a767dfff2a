package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// How Prometheus tells Alertmanagers, which expect it so (prometheus: rules/alerting.go
// and rules/manager.go): a firing alert again each minute, with an end four of them
// ahead, and a resolved one for up to 15 minutes until it is taken.
const (
	resend      = time.Minute
	endsAhead   = 4 * resend
	resolvedFor = 15 * time.Minute
)

// push is what an Alertmanager is told of an alert: postableAlert of its API v2.
type push struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       *time.Time        `json:"endsAt,omitempty"` // nil: it fires
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

func (s *Service) pushOf(r *Receiver, a *alert.Alert) *push {
	p := &push{Labels: labelsOf(r, a), StartsAt: a.Since, Annotations: map[string]string{"summary": a.Summary, "runbook_url": s.runbook(a), "description": describe(a), "node": a.Node}}
	if s.Base == "" && isPath(a.Runbook) {
		delete(p.Annotations, "runbook_url") // it would lead nowhere from there
	}
	maps.DeleteFunc(p.Annotations, func(_, v string) bool { return v == "" })
	if a.FiredAt != nil {
		p.StartsAt = *a.FiredAt
	}
	if a.State == alert.Resolved && a.ResolvedAt != nil {
		p.EndsAt = a.ResolvedAt
	}
	if s.Base != "" {
		p.GeneratorURL = s.links(a).Alert
	}
	return p
}

// describe says what an alert has come by.
func describe(a *alert.Alert) string {
	text := fmt.Sprintf("%d matching events since %s", a.Count, a.Since.UTC().Format(time.RFC3339))
	if a.Subject.Name != "" {
		text += fmt.Sprintf(", the first about %s %s", a.Subject.Kind, a.Subject.Name)
	}
	if a.Node != "" && a.Subject.Kind != "node" {
		text += " on node " + a.Node
	}
	if a.Flapping {
		text += "; it fires and resolves again and again"
	}
	return text + " (" + a.ID + ")"
}

// refresh ends what is over, or silenced, or not for the receiver: it may have resolved
// while that was disabled, its event was lost, or the matchers are others by now.
func (s *Service) refresh(ctx context.Context, r *target, due []*Delivery) error {
	var keys []ledger.Key
	now := s.now()
	for _, d := range due {
		if d.Push != nil && d.Push.EndsAt != nil && d.Push.EndsAt.After(now) { // a stream's clock was ahead: till then it would fire there
			p := *d.Push
			p.EndsAt, d.Push = &now, &p
		}
		if d.Push != nil && d.Push.EndsAt == nil {
			keys = append(keys, record.AlertKey(d.Alert))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	items, err := s.getMany(ctx, keys)
	if err != nil {
		return fmt.Errorf("read alerts: %w", err)
	}
	for _, d := range due {
		if d.Push == nil || d.Push.EndsAt != nil {
			continue
		}
		p, end := *d.Push, now
		if it, ok := items[record.AlertKey(d.Alert)]; ok {
			a, err := record.Decode[alert.Alert](it)
			if err != nil {
				s.unreadable(ctx, it.Key, err)
			}
			if err != nil || a.State != alert.Resolved && !a.Muted() && r.wants(&a) {
				continue
			}
			if a.ResolvedAt != nil && a.ResolvedAt.Before(now) {
				end = *a.ResolvedAt
			}
		}
		p.EndsAt = &end
		d.Push, d.Type = &p, alert.TypeResolved
	}
	return nil
}

// samePlace is a URL as all that lead to the same place are written.
func samePlace(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	u.Host = strings.TrimSuffix(u.Host, map[string]string{"https": ":443", "http": ":80"}[u.Scheme])
	u.Path, u.RawPath = path.Clean("/"+u.Path), ""
	return u.String()
}

// apiPath is where an Alertmanager has its API, behind its URL.
const apiPath = "/api/v2"

// alertsURL is where an Alertmanager takes alerts.
func alertsURL(base string) string { return strings.TrimSuffix(base, "/") + apiPath + "/alerts" }

func pushBody(due []*Delivery, now time.Time) []byte {
	alerts := make([]push, len(due))
	for i, d := range due {
		alerts[i] = *d.Push
		begin, end := d.Push.StartsAt, now.Add(endsAhead)
		if d.Push.EndsAt != nil {
			end = *d.Push.EndsAt
		}
		if begin.After(now) {
			begin = now
		}
		if end.Before(begin) { // by clocks that differ; it is refused so
			begin = end
		}
		alerts[i].StartsAt, alerts[i].EndsAt = begin, &end
	}
	b, err := json.Marshal(alerts)
	if err != nil {
		panic(fmt.Sprintf("encode alerts: %v", err)) // maps of texts, and times
	}
	return b
}

// pushAtMost is how many alerts one push has at most.
func (s *Service) pushAtMost() int { return cmp.Or(s.pushMost, pushRound) }

// pushTo sends alerts to one Alertmanager.
func (s *Service) pushTo(ctx context.Context, r *target, to endpoint, due []*Delivery, now time.Time) answer {
	a := s.post(ctx, &r.Receiver, alertsURL(to.url), http.Header{}, pushBody(due, now))
	a.pause = min(a.pause, maxPushAsked)
	return a
}
