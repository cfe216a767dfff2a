package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/version"
)

const (
	maxBody  = 4 << 10 // of an answer that is read
	maxShown = 1 << 10 // of it that a test shows
	maxError = 256     // of what is kept of an error

	errURL = "the URL cannot be read"
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
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return answer{err: errURL}
	}
	client := s.client(r.Kind, rq.URL.Scheme)
	if client == nil { // of one that another plane kept
		return answer{err: errURL}
	}
	rq.Header = h
	rq.Header.Set("Content-Type", "application/json")
	rq.Header.Set("User-Agent", "Opsplane/"+version.Version)
	began := time.Now()
	defer func() { s.Metrics.took(time.Since(began)) }()
	rs, err := client.Do(rq)
	if err != nil {
		return answer{err: clip(reason(ctx, err), maxError), late: errors.Is(ctx.Err(), context.DeadlineExceeded)}
	}
	defer func() { _ = rs.Body.Close() }()
	// What is longer is not read: its connection is closed. Neither is another protocol, which
	// no timeout would end (net/http: Response.Body).
	var text []byte
	if rs.StatusCode != http.StatusSwitchingProtocols {
		text, err = io.ReadAll(io.LimitReader(rs.Body, maxBody))
	}
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
	if n, err := strconv.ParseUint(text, 10, 32); err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(n)*time.Second, maxHold)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(at.Sub(now), maxHold))
	}
	return 0
}
