package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/version"
)

const (
	maxBody  = 4 << 10 // of an answer that is read
	maxShown = 1 << 10 // of it that a test shows
	maxError = 256     // of what is kept of an error
)

func (s *Service) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.roots}
}

// webhook sends a message by the Standard Webhooks scheme, version 1.0.0.
func (s *Service) webhook(ctx context.Context, r *target, id string, payload []byte) answer {
	now := s.Store.Now()
	at := now.Unix()
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", strconv.FormatInt(at, 10))
	h.Set("webhook-signature", r.secrets.sign(now, id, at, payload))
	return s.post(ctx, &r.Receiver, r.URL, h, payload)
}

// post sends one request and tells what came of it.
func (s *Service) post(ctx context.Context, r *Receiver, to string, h http.Header, body []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, r.timeout())
	defer cancel()
	u, err := url.Parse(to)
	if err != nil {
		return answer{err: "the URL cannot be read"}
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return answer{err: "the URL cannot be read"}
	}
	rq.Header = h
	rq.Header.Set("Content-Type", "application/json")
	rq.Header.Set("User-Agent", "Opsplane/"+version.Version)
	began := time.Now()
	defer func() { s.Metrics.took(time.Since(began)) }()
	rs, err := s.client(r.Kind, u.Scheme).Do(rq)
	if err != nil {
		return answer{err: clip(reason(ctx, err), maxError)}
	}
	defer func() { _ = rs.Body.Close() }()
	// What is longer is not read: its connection is closed.
	text, err := io.ReadAll(io.LimitReader(rs.Body, maxBody))
	a := answer{status: rs.StatusCode, body: clip(string(text), maxShown)}
	switch {
	case rs.StatusCode >= 200 && rs.StatusCode < 300:
		return a // taken, whatever became of the rest of the answer
	case rs.StatusCode >= 300 && rs.StatusCode < 400:
		a.err = fmt.Sprintf("answered %d: redirects are not followed", rs.StatusCode)
	case err != nil:
		a.err = fmt.Sprintf("answered %d, and broke off", rs.StatusCode)
	default:
		a.err = fmt.Sprintf("answered %d", rs.StatusCode)
	}
	switch rs.StatusCode {
	case http.StatusGone:
		a.gone = r.Kind == KindWebhook
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		a.pause = retryAfter(rs.Header.Get("Retry-After"), s.Store.Now())
	}
	return a
}

// reason is why there was no answer, without the URL, which may hold what is secret.
func reason(ctx context.Context, err error) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "no answer in time"
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return err.Error()
}

// retryAfter reads seconds or a date (RFC 9110, 10.2.3).
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return max(0, min(time.Duration(n)*time.Second, maxHold))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(at.Sub(now), maxHold))
	}
	return 0
}

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
	p := &push{Labels: labelsOf(r, a), StartsAt: a.Since, Annotations: map[string]string{"summary": a.Summary, "runbook_url": s.runbook(a), "description": describe(a)}}
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
	if a.Flapping {
		text += "; it fires and resolves again and again"
	}
	return text + " (" + a.ID + ")"
}

// push sends alerts to all of a receiver's Alertmanagers at once, but to those that are
// away, and returns what came of each. An alert is taken when all of them took it: to
// those that did, the next time is only one more.
func (s *Service) push(ctx context.Context, h *held, r *target, due []*Delivery) []answer {
	within := r.longest()
	if at, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(at)-keepWithin)
	}
	one, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answers, now := make([][]answer, len(r.URLs)), s.now()
	var wg sync.WaitGroup
	for i, to := range r.URLs {
		if is := h.lane.Away[to]; isAhead(is.Until, now) {
			answers[i] = slices.Repeat([]answer{{err: is.Error}}, len(due))
			continue
		}
		wg.Go(func() { answers[i] = s.pushTo(one, r, to, due, now) })
	}
	wg.Wait()
	if ctx.Err() == nil {
		h.lane.Away = s.away(h.lane.Away, r.URLs, answers, now)
	}
	out := slices.Clone(answers[0])
	for _, more := range answers[1:] {
		for i := range out {
			pause := min(out[i].pause, more[i].pause) // the first that may be asked again is
			if out[i].taken() {
				out[i] = more[i]
			}
			out[i].pause = pause
		}
	}
	return out
}

// pushTo sends alerts to one Alertmanager. Of a batch that it refuses, each alert is
// tried alone.
func (s *Service) pushTo(ctx context.Context, r *target, to string, due []*Delivery, now time.Time) []answer {
	to = strings.TrimSuffix(to, "/") + "/api/v2/alerts"
	all := s.post(ctx, &r.Receiver, to, http.Header{}, pushBody(due, now))
	out := slices.Repeat([]answer{all}, len(due))
	if all.status == http.StatusBadRequest && len(due) > 1 {
		for i := range due {
			out[i] = s.post(ctx, &r.Receiver, to, http.Header{}, pushBody(due[i:i+1], now))
		}
	}
	return out
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
	items, err := s.Store.Ledger.GetMany(ctx, keys)
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
		d.Push = &p
	}
	return nil
}

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
