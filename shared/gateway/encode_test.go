package gateway

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
)

// httpAPI plays an HTTP API in front of a function: it makes the event of a
// request and the answer of the function's, by the API Gateway Developer Guide,
// "Create AWS Lambda proxy integrations for HTTP APIs in API Gateway" (payload
// format 2.0), and, where that is silent, by what others observed of AWS:
//
//   - rawPath is decoded, but for %25 (honojs/hono#2156, fastify/aws-lambda-fastify#169),
//     and begins with a named stage (aws-powertools/powertools-lambda-python#621)
//   - rawQueryString stays as it was sent (ministackorg/ministack#1035)
//   - a body is text for JSON, XML, JavaScript and text/*, else base64
//
// Each event and answer goes through JSON, as it does on AWS.
type httpAPI struct {
	t          testing.TB
	server     *Server
	stage      string // "": $default
	authorizer map[string]any
}

// ServeHTTP is one request through the gateway.
func (g *httpAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := json.Marshal(g.event(r))
	if err != nil {
		panic(err)
	}
	var e events.APIGatewayV2HTTPRequest
	if err := json.Unmarshal(raw, &e); err != nil {
		panic(err)
	}
	a, err := g.server.Serve(r.Context(), e)
	if err != nil {
		panic(err)
	}
	raw, err = json.Marshal(a)
	if err != nil {
		panic(err)
	}
	g.answer(w, raw)
}

func (g *httpAPI) event(r *http.Request) events.APIGatewayV2HTTPRequest {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		panic(err)
	}
	stage := g.stage
	if stage == "" {
		stage = "$default"
	}
	e := events.APIGatewayV2HTTPRequest{Version: "2.0", RouteKey: "$default", RawPath: decodeButPercent(r.URL.EscapedPath()), RawQueryString: r.URL.RawQuery,
		Headers: map[string]string{}}
	if g.stage != "" {
		e.RawPath = "/" + g.stage + e.RawPath
	}
	for name, values := range r.Header {
		if name == "Cookie" {
			for _, v := range values {
				e.Cookies = append(e.Cookies, strings.Split(v, "; ")...)
			}
			continue
		}
		e.Headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	e.Headers["host"] = r.Host
	e.Headers["x-forwarded-for"] = strings.TrimPrefix(e.Headers["x-forwarded-for"]+", "+host, ", ")
	e.Headers["x-forwarded-proto"], e.Headers["x-forwarded-port"] = "https", "443"
	e.RequestContext = events.APIGatewayV2HTTPRequestContext{RouteKey: "$default", Stage: stage, RequestID: "JKJaXmPLvHcESHA=", APIID: "api", DomainName: "api.execute-api.us-east-1.amazonaws.com",
		HTTP: events.APIGatewayV2HTTPRequestContextHTTPDescription{Method: r.Method, Path: e.RawPath, Protocol: r.Proto, SourceIP: host, UserAgent: r.UserAgent()}}
	if g.authorizer != nil {
		e.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{Lambda: g.authorizer}
	}
	if isText(r.Header.Get("Content-Type")) {
		e.Body = string(body)
	} else if len(body) > 0 {
		e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return e
}

func isText(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	switch media = strings.ToLower(strings.TrimSpace(media)); media {
	case "application/json", "application/xml", "application/javascript":
		return true
	}
	return strings.HasPrefix(media, "text/")
}

// decodeButPercent decodes a path as the gateway does.
func decodeButPercent(escaped string) string {
	p, err := url.PathUnescape(strings.ReplaceAll(escaped, "%25", "%2525"))
	if err != nil {
		panic(err)
	}
	return p
}

// answer interprets what the function returned: one value a field, cookies apart.
func (g *httpAPI) answer(w http.ResponseWriter, raw []byte) {
	var a struct {
		StatusCode      int               `json:"statusCode"`
		Headers         map[string]string `json:"headers"`
		Body            string            `json:"body"`
		Cookies         []string          `json:"cookies"`
		IsBase64Encoded bool              `json:"isBase64Encoded"`
	}
	if len(raw) > MaxAnswerBytes {
		g.t.Errorf("Lambda refuses an answer of %d bytes", len(raw))
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		panic(err)
	}
	body := []byte(a.Body)
	if a.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(a.Body); err != nil {
			panic(err)
		}
	}
	for name, v := range a.Headers {
		w.Header().Set(name, v)
	}
	for _, c := range a.Cookies {
		w.Header().Add("Set-Cookie", c)
	}
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(body) // a HEAD or 204 takes none
}
