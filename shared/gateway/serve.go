package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/problem"
)

// Server answers the events of an HTTP API by a handler.
type Server struct {
	Handler http.Handler
	Logger  *slog.Logger
	// Budget is the longest that the handler may take; 0: the package's.
	Budget time.Duration
}

// Serve answers one event; it is what Lambda calls. What goes wrong is always an
// answer: an error would make the gateway say 500 without a word. The handler's
// context ends before the gateway's patience and the function's own time do.
func (s *Server) Serve(ctx context.Context, e events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, error) {
	if e.RouteKey == PreflightRoute {
		return events.APIGatewayV2HTTPResponse{StatusCode: http.StatusNoContent, Headers: map[string]string{}}, nil
	}
	budget := s.Budget
	if budget <= 0 {
		budget = Budget
	}
	if end, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(end)-endMargin)
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	r, err := NewRequest(ctx, e)
	if err != nil { // the gateway's own encoding: nothing that the client could mend
		s.Logger.ErrorContext(ctx, "event cannot be read", "err", err, "gateway_request_id", e.RequestContext.RequestID)
		w := newRecorder(e.RequestContext.HTTP.Method)
		problem.Write(w, problem.New(problem.Malformed, "the body did not come in whole").WithRequest(e.RawPath, e.RequestContext.RequestID))
		return w.answer(), nil
	}
	w := s.run(r)
	a := w.answer()
	if n := size(a); w.over || n > MaxAnswerBytes {
		s.Logger.WarnContext(r.Context(), "answer too large", "bytes", n, "limit", MaxAnswerBytes, "method", r.Method, "path", r.URL.Path)
		a = s.tooLarge(r, w)
	}
	return a, nil
}

// run has the request handled; a handler that panics answers 500.
func (s *Server) run(r *http.Request) (w *recorder) {
	w = newRecorder(r.Method)
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if v != http.ErrAbortHandler { // that one was told where it was raised
			s.Logger.ErrorContext(r.Context(), "handler panicked", "panic", v, "stack", string(debug.Stack()), "method", r.Method, "path", r.URL.Path)
		}
		w = instead(r, w, problem.New(problem.Internal, "The request failed for a reason inside the plane. Its log has the cause under this correlation id."))
	}()
	s.Handler.ServeHTTP(w, r)
	return w
}

// tooLarge answers in place of an answer that Lambda would not return. A request
// that reads can ask for less; one that changed something was carried out.
func (s *Server) tooLarge(r *http.Request, w *recorder) events.APIGatewayV2HTTPResponse {
	p := problem.New(problem.Internal, "the request was carried out, but its answer has more than the %d bytes that can be returned; read its result", MaxAnswerBytes)
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		p = problem.New(problem.Invalid, "the answer has more than the %d bytes that can be returned; ask for fewer items", MaxAnswerBytes).
			WithField("/query/limit", "range", "must be less, so that the answer fits")
	}
	return instead(r, w, p.WithExtra("limit", MaxAnswerBytes)).answer()
}

// instead replaces what was written by a problem under the same ids.
func instead(r *http.Request, w *recorder, p *problem.Problem) *recorder {
	out := newRecorder(r.Method)
	for _, name := range []string{"X-Correlation-Id", "X-Request-Id"} {
		if v := w.header.Get(name); v != "" {
			out.header.Set(name, v)
		}
	}
	correlation := out.header.Get("X-Correlation-Id")
	if correlation == "" {
		correlation = RequestID(r.Context())
	}
	problem.Write(out, p.WithRequest(r.URL.Path, correlation))
	return out
}

// LogAttr names the gateway's id of a request, for the log lines of what handles
// it; the attribute is empty for other contexts.
func LogAttr(ctx context.Context) slog.Attr {
	if id := RequestID(ctx); id != "" {
		return slog.String("gateway_request_id", id)
	}
	return slog.Attr{}
}
