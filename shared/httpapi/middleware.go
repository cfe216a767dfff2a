package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

// drainTimeout is how long net/http may go on reading the body of a request that
// was refused: a client in the middle of sending reads its answer better so.
const drainTimeout = time.Second

// writeSlack is how long a client may take to read an answer, beyond the longest
// wait for it.
const writeSlack = time.Minute

// ServeHTTP takes a request through everything that comes before its handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rq := &request{api: a, http: r, requestID: id.New("req", a.now())}
	rq.correlation = rq.requestID
	if c := r.Header.Get("X-Correlation-ID"); correlationShape.MatchString(c) && !operation.SecretShaped(c) {
		rq.correlation = c
	}
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, rq))
	rq.http = r
	rec := &recorder{ResponseWriter: w}
	_ = http.NewResponseController(w).SetWriteDeadline(start.Add(a.cfg.MaxWait + writeSlack)) // a test's recorder has none
	h := w.Header()
	h.Set("X-Correlation-ID", rq.correlation)
	h.Set("X-Request-ID", rq.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	defer func() {
		if v := recover(); v != nil {
			a.panicked(rec, rq, v)
		}
		a.done(rec, rq, time.Since(start))
	}()
	if err := a.admit(rec, rq, &r); err != nil {
		if r.ContentLength != 0 { // all of it may never come
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTimeout)) // a test's recorder has none
		}
		a.refuse(rec, rq, err)
		return
	}
	rq.http = r
	a.mux.ServeHTTP(rec, r)
}

func (a *API) now() time.Time { return a.cfg.Store.Now() }

// admit finds the route and refuses what may not reach it.
func (a *API) admit(w http.ResponseWriter, rq *request, r **http.Request) error {
	if err := a.find(w, rq, *r); err != nil {
		return err
	}
	if !rq.route.public {
		if err := a.authenticate(rq, *r); err != nil {
			return err
		}
	}
	if err := rq.checkQuery(*r); err != nil {
		return err
	}
	return rq.readBody(w, r)
}

// find looks the route up, and tells a wrong path from a wrong method.
func (a *API) find(w http.ResponseWriter, rq *request, r *http.Request) error {
	p := r.URL.Path
	if p != path.Clean(p) || r.URL.RawPath != "" && strings.Contains(strings.ToLower(r.URL.RawPath), "%2f") {
		return problem.New(problem.NotFound, "there is nothing at this path")
	}
	if _, pattern := a.mux.Handler(r); a.routes[pattern] != nil {
		rq.route = a.routes[pattern]
		return nil
	}
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := *r
		probe.Method = m
		if _, pattern := a.mux.Handler(&probe); a.routes[pattern] != nil {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return problem.New(problem.NotFound, "there is nothing at this path")
	}
	sort.Strings(allowed)
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return problem.New(problem.MethodNotAllowed, "the path takes %s", strings.Join(allowed, ", "))
}

// authenticate says who it is, holds them to their limits, and asks whether they
// may.
func (a *API) authenticate(rq *request, r *http.Request) error {
	var err error
	rq.principal, err = a.cfg.Auth.Authenticate(r.Context(), bearerOf(r))
	if err != nil {
		if d, ok := errors.AsType[*auth.DeniedError](err); ok {
			rq.denied, rq.principal = d.Reason, auth.Principal{ID: d.Token}
		}
		if limit := a.limit("address " + hostOf(r.RemoteAddr)); limit != nil {
			return limit
		}
		return err
	}
	if err := a.limit(rq.principal.ID); err != nil {
		return err
	}
	cluster := ""
	if !rq.route.fleet {
		cluster = firstOf(rq.principal.Clusters)
	}
	return rq.principal.Authorize(rq.route.action, cluster)
}

func (a *API) limit(who string) error {
	ok, after := a.cfg.Limiter.Allow(who)
	if ok {
		return nil
	}
	return problem.New(problem.RateLimited, "too many requests: the limit is %g a second", a.cfg.Limiter.MaxRate()).
		WithExtra("limit", a.cfg.Limiter.MaxRate()).WithRetryAfter(max(after, time.Second))
}

// bearerOf takes the credential from the request; only the header is looked at,
// and only when there is one of it.
func bearerOf(r *http.Request) string {
	vs := r.Header["Authorization"]
	if len(vs) != 1 {
		return ""
	}
	return auth.Bearer(vs[0])
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// checkQuery refuses a query that cannot be read, parameters that are empty (all
// but cursor: the first page's) or given twice and, on routes without huma, every
// parameter.
func (rq *request) checkQuery(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.New(problem.Invalid, "the query cannot be read").WithField("/query", "format", "is not URL-encoded")
	}
	names := make([]string, 0, len(q))
	for name := range q {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch {
		case rq.route.bare && !rq.route.public:
			return invalidParam("query", name, "unknown_parameter", "is not a parameter of this path")
		case name != "cursor" && !rq.route.bare && slices.Contains(q[name], ""):
			return invalidParam("query", name, "empty", "must not be empty")
		case len(q[name]) > 1 && !slices.Contains(rq.route.several, name):
			return invalidParam("query", name, "repeated", "must be given once")
		}
	}
	return nil
}

// readBody reads the whole body within the route's limit and puts it back. A
// body that is not read to its end costs the connection: net/http would wait for
// the rest before it sends the answer.
func (rq *request) readBody(w http.ResponseWriter, rp **http.Request) error {
	r := *rp
	if r.Body == nil || r.ContentLength == 0 {
		return nil
	}
	b, err := rq.wholeBody(w, r)
	if err != nil {
		if r.ProtoMajor < 2 { // HTTP/2 ends the stream alone
			w.Header().Set("Connection", "close")
		}
		return err
	}
	if len(b) > 0 {
		yaml, err := checkMediaType(r.Header, rq.route.yaml)
		if err != nil {
			return err
		}
		if !yaml {
			err = rq.checkRepeats(b)
		}
		if err != nil {
			return err
		}
	}
	rq.body = b
	clone := *r
	clone.Body, clone.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	*rp = &clone
	return nil
}

// checkRepeats refuses a body that can be read in two ways. Agents write
// their bodies by a program of ours: those are large, and not checked.
func (rq *request) checkRepeats(body []byte) error {
	if rq.route.bare {
		return nil
	}
	at, twice := admission.RepeatedKey(body)
	if !twice {
		return nil
	}
	return problem.New(problem.Malformed, "%s is in the body twice", at).WithField(at, "repeated", "is there twice")
}

func (rq *request) wholeBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := rq.route.body
	switch {
	case limit == 0 && r.ContentLength > 0:
		return nil, noBody()
	case r.ContentLength > limit && limit > 0:
		return nil, tooLarge(r.ContentLength, limit)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(rq.api.cfg.BodyTimeout)) // a test's recorder has none
	b, err := readAll(http.MaxBytesReader(w, r.Body, limit), r.ContentLength)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over) && limit == 0:
		return nil, noBody()
	case errors.As(err, &over):
		return nil, tooLarge(-1, limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, problem.New(problem.Malformed, "the body did not come in whole within %s", rq.api.cfg.BodyTimeout).WithCause(err)
	case err != nil:
		return nil, problem.New(problem.Malformed, "the body did not come in whole").WithCause(err)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return b, nil
}

// readAll is io.ReadAll with room for the size that was announced, as far as a
// client that sends nothing may make us hold it.
func readAll(r io.Reader, size int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(max(size, 0), 1<<20)) + bytes.MinRead) // which ReadFrom wants left at the end
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}

func noBody() *problem.Problem { return problem.New(problem.Malformed, "the request takes no body") }

func tooLarge(size, limit int64) *problem.Problem {
	p := problem.New(problem.PayloadTooLarge, "the body has more than %d bytes", limit)
	if size > 0 {
		p = problem.New(problem.PayloadTooLarge, "the body has %d bytes, the limit is %d", size, limit)
	}
	return p.WithExtra("limit", limit)
}

// yamlTypes are what people call YAML (RFC 9512 registers the first).
var yamlTypes = []string{"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"}

// checkMediaType takes JSON in UTF-8, which is also what an absent header means,
// as it is: not compressed. Where the route takes it YAML will do, too: it tells
// whether the body is that.
func checkMediaType(h http.Header, orYAML bool) (yaml bool, err error) {
	for _, coding := range h.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(coding), "identity") {
			return false, problem.New(problem.UnsupportedMediaType, "a body comes as it is, without a Content-Encoding").WithExtra("supported", []string{"identity"})
		}
	}
	s := h.Get("Content-Type")
	if s == "" {
		return false, nil
	}
	takes := []string{"application/json"}
	if orYAML {
		takes = append(takes, yamlTypes[0])
	}
	media, params, err := mime.ParseMediaType(s)
	charset := params["charset"]
	yaml = orYAML && slices.Contains(yamlTypes, media)
	if err != nil || media != "application/json" && !yaml || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return false, problem.New(problem.UnsupportedMediaType, "a body is %s in UTF-8", strings.Join(takes, " or ")).WithExtra("supported", takes)
	}
	return yaml, nil
}

// panicked answers what a handler did not survive.
func (a *API) panicked(rec *recorder, rq *request, v any) {
	if v == http.ErrAbortHandler {
		panic(v)
	}
	if rec.status != 0 && rq.http.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client went in the middle of its answer
	}
	a.log.ErrorContext(rq.http.Context(), "handler panicked", "panic", v, "stack", string(debug.Stack()), "route", rq.pattern(), "correlation_id", rq.correlation)
	if rec.status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun: cutting it off is all that is left
	}
	p := problem.New(problem.Internal, "The request failed for a reason inside the plane. Its log has the cause under this correlation id.")
	rq.fail(p)
	problem.Write(rec, p)
}

// done counts, audits and logs a request that was answered.
func (a *API) done(rec *recorder, rq *request, took time.Duration) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	a.answered(rq, rec.status, took)
	if refused(rq, rec.status) {
		a.audit.add(rq.refusal(a.now(), rec.status))
	}
	a.log.DebugContext(rq.http.Context(), "request", "method", rq.http.Method, "path", rq.http.URL.Path, "route", rq.pattern(), "status", rec.status,
		"took_ms", took.Milliseconds(), "principal", rq.principal.ID, "correlation_id", rq.correlation, "request_id", rq.requestID)
}

// recorder keeps the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write notes the status that writing implies.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
