package cluster

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

type contextKey int

const (
	keyOperation contextKey = iota
	keyCall
)

// Operation makes every request under the context carry the operation's id and
// its correlation id in the user agent, so that the API server's audit log tells
// on whose behalf it came.
func Operation(ctx context.Context, a *protocol.Assignment) context.Context {
	return context.WithValue(ctx, keyOperation, " operation/"+product(a.Operation)+" correlation/"+product(a.CorrelationID))
}

// call is what the transport saw of one effect.
type call struct {
	method, path string
	retryAfter   time.Duration
}

// transport names the operation in the user agent. Of an effect it keeps what
// was asked and takes the Retry-After away: client-go would sleep on it, up to
// 100 s, without a word, while the lease runs out.
type transport struct {
	next  http.RoundTripper
	agent string
	heard func(r *http.Response) // of every answer
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if op, ok := req.Context().Value(keyOperation).(string); ok {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", t.agent+op)
	}
	c, _ := req.Context().Value(keyCall).(*call)
	if c != nil {
		c.method, c.path = req.Method, req.URL.Path
	}
	resp, err := t.next.RoundTrip(req)
	if err == nil && t.heard != nil {
		t.heard(resp)
	}
	if err == nil {
		resp = plainDenial(resp)
	}
	if c != nil && err == nil {
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			c.retryAfter = time.Duration(s) * time.Second
		}
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the transport below, to close its idle
// connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
