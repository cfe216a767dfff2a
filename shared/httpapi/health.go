package httpapi

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/problem"
)

func (a *API) healthRoutes() {
	a.handle(route{pattern: "GET /healthz", public: true}, func(w http.ResponseWriter, _ *http.Request) {
		a.write(w, http.StatusOK, map[string]string{"status": "ok", "version": a.cfg.Version})
	})
	a.handle(route{pattern: "GET /readyz", public: true}, a.ready)
	if a.cfg.Metrics != nil {
		h := promhttp.HandlerFor(a.cfg.Metrics, promhttp.HandlerOpts{})
		a.handle(route{pattern: "GET /metrics", action: auth.Read}, h.ServeHTTP)
	}
}

func (a *API) ready(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Ready != nil {
		if err := a.cfg.Ready(r.Context()); err != nil {
			a.refuse(w, requestOf(r.Context()), problem.New(problem.Unavailable, "the plane is not ready yet").WithCause(err).WithRetryAfter(retryUnavailable))
			return
		}
	}
	a.write(w, http.StatusOK, map[string]string{"status": "ready"})
}
