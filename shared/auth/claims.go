package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// claims are a token's claims as they came.
type claims map[string]any

func parseClaims(payload []byte) (claims, error) {
	var c claims
	err := json.Unmarshal(payload, &c)
	return c, err
}

// get finds a claim by its name, else by a dotted path.
func (c claims) get(name string) any {
	if v, ok := c[name]; ok {
		return v
	}
	var at any = map[string]any(c)
	for part := range strings.SplitSeq(name, ".") {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[part]
	}
	return at
}

func (c claims) text(name string) string {
	s, _ := c.get(name).(string)
	return s
}

// list gives a claim that is a list of strings, or one.
func (c claims) list(name string) []string {
	switch v := c.get(name).(type) {
	case string:
		return []string{v}
	case []any:
		var list []string
		for _, e := range v {
			if s, ok := e.(string); ok {
				list = append(list, s)
			}
		}
		return list
	}
	return nil
}

// issuerError is an issuer that did not answer, or not with its documents.
type issuerError struct {
	url string
	err error
}

func (e *issuerError) Error() string { return "issuer's " + e.url + ": " + e.err.Error() }
func (e *issuerError) Unwrap() error { return e.err }

// maxDocument bounds what the issuer sends.
const maxDocument = 1 << 20

// issuerTransport makes every answer that is not a JSON document an
// *issuerError, and shields the issuer: a flood of tokens with invented keys
// gets the answer of a moment ago.
type issuerTransport struct {
	base http.RoundTripper

	mu   sync.Mutex
	last map[string]*answer // by URL: discovery and keys
}

type answer struct {
	limit  *rate.Limiter
	body   []byte
	header http.Header
	err    error
}

func newIssuerTransport(base http.RoundTripper) *issuerTransport {
	return &issuerTransport{base: base, last: map[string]*answer{}}
}

// RoundTrip implements http.RoundTripper.
func (t *issuerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	url := req.URL.Redacted()
	t.mu.Lock()
	a := t.last[url]
	if a == nil {
		a = &answer{limit: rate.NewLimiter(rate.Every(2*time.Second), 5), err: &issuerError{url, errors.New("asked too often")}}
		t.last[url] = a
	}
	if !a.limit.Allow() {
		defer t.mu.Unlock()
		return a.response(req)
	}
	t.mu.Unlock()
	body, header, err := t.fetch(req)
	if err != nil {
		err = &issuerError{url, err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.body, a.header, a.err = body, header, err
	return a.response(req)
}

func (t *issuerTransport) fetch(req *http.Request) ([]byte, http.Header, error) {
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("answered %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(body) > maxDocument:
		return nil, nil, fmt.Errorf("more than %d bytes", maxDocument)
	case !json.Valid(body):
		return nil, nil, errors.New("no JSON")
	}
	return body, resp.Header, nil
}

func (a *answer) response(req *http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(),
		Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req,
	}, nil
}
