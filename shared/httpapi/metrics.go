package httpapi

import (
	"net/http"
	"strings"
	"time"
)

// Metrics is told what the API does, and shows it at /metrics.
type Metrics interface {
	http.Handler
	// Answered: a request had an answer. The route is a path of the table of routes,
	// or "none"; the method is one of HTTP's, or "other".
	Answered(route, method string, status int, took time.Duration)
	// Waiting: so many more requests wait for something to happen.
	Waiting(more int)
	// AuditDropped: so many audit records of refused calls were not written.
	AuditDropped(records int)
}

// unmeasured is for a process of which nobody reads metrics.
type unmeasured struct{ http.Handler }

func (unmeasured) Answered(string, string, int, time.Duration) {}
func (unmeasured) Waiting(int)                                 {}
func (unmeasured) AuditDropped(int)                            {}

// answered tells of an answer.
func (a *API) answered(rq *request, status int, took time.Duration) {
	_, route, ok := strings.Cut(rq.pattern(), " ")
	if !ok {
		route = "none"
	}
	method := "other"
	switch rq.http.Method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		method = rq.http.Method
	}
	a.metrics.Answered(route, method, status, took)
}
