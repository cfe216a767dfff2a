package httpapi

import (
	"errors"
	"net/http"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/problem"
)

func (a *API) healthRoutes() {
	a.handle(route{pattern: "GET /healthz", public: true}, func(w http.ResponseWriter, _ *http.Request) {
		a.write(w, http.StatusOK, map[string]string{"status": "ok", "version": a.cfg.Version})
	})
	a.handle(route{pattern: "GET /readyz", public: true}, a.ready)
	if a.cfg.Metrics != nil {
		// They count over all clusters, and name clusters, rules and receivers.
		a.handle(route{pattern: "GET /metrics", action: auth.ReadMetrics, fleet: true}, a.cfg.Metrics.ServeHTTP)
	}
}

// NotReadyError is an error of Config.Ready whose reason anybody may read.
type NotReadyError struct {
	Reason string
	Err    error // what led there, for the log; may be nil
}

func (e *NotReadyError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}

// Unwrap gives what led there.
func (e *NotReadyError) Unwrap() error { return e.Err }

func (a *API) ready(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Ready != nil {
		if err := a.cfg.Ready(r.Context()); err != nil {
			detail := "the plane is not ready yet"
			if why, ok := errors.AsType[*NotReadyError](err); ok {
				detail = "the plane is not ready: " + why.Reason
			}
			a.refuse(w, requestOf(r.Context()), problem.New(problem.Unavailable, "%s", detail).WithCause(err).WithRetryAfter(retryUnavailable))
			return
		}
	}
	a.write(w, http.StatusOK, map[string]string{"status": "ready"})
}
