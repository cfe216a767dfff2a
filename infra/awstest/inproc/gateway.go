package inproc

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/infra/awstest/bill"
	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/gateway"
	"github.com/opsplane/opsplane/shared/httpapi"
	"github.com/opsplane/opsplane/shared/operation"
)

func adminCall() admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Plane, Rule: "test"}, Method: "LOCAL", Path: "test"}
}

// httpAPI is API Gateway: it asks the authorizer, remembers its answers, and
// calls the function of the route.
type httpAPI struct {
	d                           *Deployment
	authorizer                  *gateway.Authorizer
	api, agentapi, idleAgentapi *gateway.Server

	mu      sync.Mutex
	answers map[string]answer // by credential
}

type answer struct {
	events.APIGatewayV2CustomAuthorizerSimpleResponse
	at time.Time
}

// accessLog is about the size of a line of the access log in template.yaml.
const accessLog = 420

// gateway makes the functions behind the HTTP API. What agents call without any
// operation (heartbeats, inventory) is metered apart, over the same table.
func (d *Deployment) gateway() http.Handler {
	d.t.Helper()
	authn, err := d.function("authorizer", d.Operations).Authenticator()
	d.no(err)
	h := &httpAPI{d: d, answers: map[string]answer{}}
	h.authorizer = &gateway.Authorizer{Auth: authn, Logger: d.Plane.Log}
	p := d.function("api", d.Operations)
	api, err := httpapi.New(httpapi.Config{Store: p.Store, Admission: p.Admission(), Control: p.Control(), Registry: p.Registry(), Auth: gateway.Principals{},
		MaxWait: gateway.MaxWait, AuditFirst: true, Logger: p.Log})
	d.no(err)
	h.api = &gateway.Server{Handler: api, Logger: p.Log}
	h.agentapi = d.agentFunction(d.function("agentapi", d.Operations))
	h.idleAgentapi = d.agentFunction(d.function("agentapi", d.Idle))
	return h
}

func (d *Deployment) agentFunction(p *cloud.Plane) *gateway.Server {
	d.t.Helper()
	api, err := httpapi.New(httpapi.Config{AgentsOnly: true, Store: p.Store, Agent: p.Agents(), Auth: gateway.Principals{}, MaxWait: gateway.MaxWait, AuditFirst: true, Logger: p.Log})
	d.no(err)
	return &gateway.Server{Handler: api, Logger: p.Log}
}

// ServeHTTP answers one request.
func (h *httpAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server, meter := h.api, h.d.Operations
	if rest, ok := strings.CutPrefix(r.URL.Path, "/v1/agent/"); ok {
		if server = h.agentapi; rest == "heartbeat" || rest == "inventory" {
			server, meter = h.idleAgentapi, h.d.Idle
		}
	}
	meter.Add(bill.HTTPRequest, 1)
	meter.Add(bill.LogGB, accessLog/float64(1<<30))
	e, err := gatewayEvent(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, err := h.authorize(r.Context(), meter, e)
	if err != nil || !a.IsAuthorized {
		http.Error(w, `{"message":"Forbidden"}`, http.StatusForbidden)
		return
	}
	e.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{Lambda: a.Context}
	var res events.APIGatewayV2HTTPResponse
	meter.Invoke(r.Context(), func(ctx context.Context) {
		h.d.opts.Faults.invoke(ctx, func(ctx context.Context) { res, err = server.Serve(ctx, e) })
	})
	if err != nil {
		http.Error(w, `{"message":"Internal Server Error"}`, http.StatusInternalServerError)
		return
	}
	for k, v := range res.Headers {
		w.Header().Set(k, v)
	}
	body := []byte(res.Body)
	if res.IsBase64Encoded {
		body, _ = base64.StdEncoding.DecodeString(res.Body)
	}
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(body) // the client is gone: nobody is left to tell
}

// authorize asks the authorizer, or remembers what it said.
func (h *httpAPI) authorize(ctx context.Context, meter *bill.Meter, e events.APIGatewayV2HTTPRequest) (events.APIGatewayV2CustomAuthorizerSimpleResponse, error) {
	credential := e.Headers["authorization"]
	h.mu.Lock()
	known, ok := h.answers[credential]
	h.mu.Unlock()
	if ok && time.Since(known.at) < gateway.AuthorizerTTL {
		return known.APIGatewayV2CustomAuthorizerSimpleResponse, nil
	}
	var a events.APIGatewayV2CustomAuthorizerSimpleResponse
	var err error
	meter.Invoke(ctx, func(ctx context.Context) {
		a, err = h.authorizer.Authorize(ctx, events.APIGatewayV2CustomAuthorizerV2Request{Headers: e.Headers})
	})
	if err == nil {
		h.mu.Lock()
		h.answers[credential] = answer{a, time.Now()}
		h.mu.Unlock()
	}
	return a, err
}

// gatewayEvent writes a request as API Gateway does (payload format 2.0).
func gatewayEvent(r *http.Request) (events.APIGatewayV2HTTPRequest, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return events.APIGatewayV2HTTPRequest{}, err
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	e := events.APIGatewayV2HTTPRequest{Version: "2.0", RouteKey: "$default", RawPath: r.URL.EscapedPath(), RawQueryString: r.URL.RawQuery, Headers: map[string]string{"host": r.Host}}
	for k, vs := range r.Header {
		e.Headers[strings.ToLower(k)] = strings.Join(vs, ",")
	}
	if len(body) > 0 {
		e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	e.RequestContext.Stage = "$default"
	e.RequestContext.HTTP = events.APIGatewayV2HTTPRequestContextHTTPDescription{Method: r.Method, Path: r.URL.Path, Protocol: r.Proto, SourceIP: host}
	return e, nil
}
