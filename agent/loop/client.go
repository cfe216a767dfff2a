package loop

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	callTimeout    = 10 * time.Second
	maxAnswerBytes = 32 << 20 // 100 assignments with large payloads
)

// UnauthorizedError is unrecoverable: the plane refuses the agent's token, and
// no retry will change that.
type UnauthorizedError struct {
	Status int
	Detail string
}

func (e *UnauthorizedError) Error() string {
	return fmt.Sprintf("the plane refuses this agent's token (HTTP %d): %s", e.Status, e.Detail)
}

// StatusError is an answer other than 2xx.
type StatusError struct {
	Status int
	Code   string // error_code of the problem, if it was one
	Detail string
	After  time.Duration // Retry-After in seconds (RFC 9110, 10.2.3), if it was given
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("HTTP %d %s: %s", e.Status, e.Code, e.Detail)
}

// atLeast lengthens a wait to what the plane asked for, within most.
func atLeast(wait time.Duration, err error, most time.Duration) time.Duration {
	var se *StatusError
	if errors.As(err, &se) {
		wait = max(wait, min(se.After, most))
	}
	return wait
}

// refused tells whether the plane understood the call and will not take it as
// it is, so that sending it again is of no use.
func refused(err error) bool {
	var se *StatusError
	if !errors.As(err, &se) {
		return false
	}
	switch se.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// api is the plane's agent API.
type api struct {
	base      string
	token     string
	userAgent string
	client    *http.Client
	metrics   *Metrics
}

func newAPI(cfg Config, m *Metrics) (*api, error) {
	u, err := url.Parse(cfg.PlaneURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, errors.New("the plane's URL must be http(s)://host[:port]")
	}
	if u.User != nil {
		return nil, errors.New("the plane's URL must not carry a credential")
	}
	client := cfg.HTTPClient
	if client == nil {
		if client, err = newHTTPClient(cfg.CAFile); err != nil {
			return nil, err
		}
	}
	if cfg.TokenNow != nil {
		own := *client // the caller's stays as it is
		own.Transport = &authorized{next: own.Transport, token: cfg.TokenNow}
		client = &own
	}
	return &api{
		metrics:   m,
		base:      strings.TrimRight(cfg.PlaneURL, "/"),
		token:     cfg.Token,
		userAgent: "opsplane-agent/" + cfg.Version,
		client:    client,
	}, nil
}

func newHTTPClient(caFile string) (*http.Client, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA file %s: no certificate in it", caFile)
		}
		tlsConfig.RootCAs = pool
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			TLSClientConfig:     tlsConfig,
			ForceAttemptHTTP2:   true,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConns:        32,
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     90 * time.Second,
		},
		// A redirect would carry the token somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// authorized puts the token of the moment on each request to the plane, its
// queue's too.
type authorized struct {
	next  http.RoundTripper // nil: the default one
	token func() string
}

func (t *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	r = r.Clone(r.Context()) // a round tripper leaves the request alone
	r.Header.Set("Authorization", "Bearer "+t.token())
	return next.RoundTrip(r)
}

// post sends in as JSON and reads the answer into out.
func (c *api) post(ctx context.Context, path, correlation string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return c.call(ctx, http.MethodPost, path, correlation, body, out)
}

func (c *api) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, "", nil, out)
}

func (c *api) call(ctx context.Context, method, path, correlation string, body []byte, out any) error {
	err := c.exchange(ctx, method, path, correlation, body, out)
	c.metrics.PlaneCalls.Add(1)
	if err != nil && ctx.Err() == nil {
		c.metrics.PlaneErrors.Add(1)
	}
	return err
}

func (c *api) exchange(ctx context.Context, method, path, correlation string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request %s: %w", path, err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("User-Agent", c.userAgent)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if correlation != "" {
		req.Header.Set("X-Correlation-ID", correlation)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection is used again
		_ = resp.Body.Close()
	}()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("call %s: %w", path, statusError(resp))
	}
	if out == nil {
		return nil
	}
	var buffer bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxAnswerBytes {
		buffer.Grow(int(n) + bytes.MinRead) // which ReadFrom wants to have left at the end
	}
	_, err = buffer.ReadFrom(io.LimitReader(resp.Body, maxAnswerBytes+1))
	data := buffer.Bytes()
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", path, err)
	}
	if len(data) > maxAnswerBytes {
		return fmt.Errorf("read answer of %s: more than %d bytes", path, maxAnswerBytes)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode answer of %s: %w", path, err)
	}
	return nil
}

func statusError(resp *http.Response) error {
	var problem struct {
		ErrorCode string `json:"error_code"`
		Title     string `json:"title"`
		Detail    string `json:"detail"`
	}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	_ = json.Unmarshal(data, &problem) // a gateway's own answers are no problem document
	detail := problem.Detail
	if detail == "" {
		detail = problem.Title
	}
	if detail == "" {
		detail = http.StatusText(resp.StatusCode)
	}
	detail = redact(detail, 512)
	if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden {
		return &UnauthorizedError{Status: resp.StatusCode, Detail: detail}
	}
	se := &StatusError{Status: resp.StatusCode, Code: problem.ErrorCode, Detail: detail}
	if s, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
		se.After = time.Duration(s) * time.Second
	}
	return se
}

// encode is json.Marshal without the escapes for HTML, which would make one
// byte six and break the limits that are counted before.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
