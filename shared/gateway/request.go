package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-lambda-go/events"
)

// defaultStage is the name of the stage that is no part of the path.
const defaultStage = "$default"

// NewRequest makes the request that an HTTP API's event tells of, as net/http's
// server would have made it of the same bytes. It fails for a body that says it
// is base64 and is not.
//
// Where a request comes from is told by the gateway alone (RemoteAddr is its
// sourceIp). X-Forwarded-For, -Port and -Proto are passed on as they come; the
// first entries of X-Forwarded-For are the client's own words, and nothing here
// believes them.
func NewRequest(ctx context.Context, e events.APIGatewayV2HTTPRequest) (*http.Request, error) {
	body, err := bodyOf(e)
	if err != nil {
		return nil, err
	}
	u := &url.URL{Path: pathOf(e), RawQuery: e.RawQueryString}
	r := &http.Request{
		Method: e.RequestContext.HTTP.Method, URL: u, RequestURI: u.RequestURI(),
		Proto: e.RequestContext.HTTP.Protocol, Header: headerOf(e), Host: e.RequestContext.DomainName,
		Body: http.NoBody, ContentLength: int64(len(body)),
	}
	var ok bool
	if r.ProtoMajor, r.ProtoMinor, ok = http.ParseHTTPVersion(r.Proto); !ok {
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	}
	if host := r.Header.Get("Host"); host != "" { // a server takes it out of the header too
		r.Host = host
		r.Header.Del("Host")
	}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if len(body) > 0 || r.Header.Get("Content-Length") != "" {
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if ip := e.RequestContext.HTTP.SourceIP; ip != "" {
		r.RemoteAddr = net.JoinHostPort(ip, "0") // the port is not told
	}
	return r.WithContext(context.WithValue(ctx, eventKey{}, &e.RequestContext)), nil
}

// eventKey is the context's key of what the gateway says about the request.
type eventKey struct{}

func eventOf(ctx context.Context) *events.APIGatewayV2HTTPRequestContext {
	e, _ := ctx.Value(eventKey{}).(*events.APIGatewayV2HTTPRequestContext)
	return e
}

// RequestID is the gateway's id of the request, which its access log has too;
// empty for a request that did not come through it.
func RequestID(ctx context.Context) string {
	if e := eventOf(ctx); e != nil {
		return e.RequestID
	}
	return ""
}

// pathOf is the decoded path, without the stage. The gateway puts a named stage
// before the path, also under a domain of one's own.
func pathOf(e events.APIGatewayV2HTTPRequest) string {
	p := e.RawPath
	if stage := e.RequestContext.Stage; stage != "" && stage != defaultStage {
		if rest, ok := strings.CutPrefix(p, "/"+stage); ok && (rest == "" || rest[0] == '/') {
			p = rest
		}
	}
	// All other escapes are decoded already: what looks like one now is text.
	p = strings.ReplaceAll(p, "%25", "%")
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	return p
}

// headerOf takes the header fields apart from how they are framed on the way:
// the gateway has dealt with transfer codings.
func headerOf(e events.APIGatewayV2HTTPRequest) http.Header {
	h := make(http.Header, len(e.Headers)+1)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) { // in an order of its own where only case differs
		h.Add(name, e.Headers[name])
	}
	h.Del("Transfer-Encoding")
	if len(e.Cookies) > 0 { // they are not among the headers
		h.Set("Cookie", strings.Join(e.Cookies, "; "))
	}
	return h
}

func bodyOf(e events.APIGatewayV2HTTPRequest) ([]byte, error) {
	if !e.IsBase64Encoded {
		return []byte(e.Body), nil
	}
	b, err := base64.StdEncoding.DecodeString(e.Body)
	if err != nil {
		return nil, fmt.Errorf("decode body: %w", err)
	}
	return b, nil
}
