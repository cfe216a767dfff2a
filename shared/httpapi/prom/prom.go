// Package prom has the API's metrics for Prometheus, and shows those of the whole
// process (httpapi.Metrics). Programs that nobody scrapes are not compiled with it.
package prom

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the API's, in a registry.
type Metrics struct {
	http.Handler // shows what is in the registry

	requests   *prometheus.CounterVec
	took       *prometheus.HistogramVec
	waits      prometheus.Gauge
	auditDrops prometheus.Counter
}

// New registers the API's metrics.
func New(reg *prometheus.Registry) (*Metrics, error) {
	m := &Metrics{
		Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "opsplane_http_requests_total",
			Help: "Answered requests by route, method and class of status."}, []string{"route", "method", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "opsplane_http_request_seconds",
			Help: "Time to answer, by route; waits are in it.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 60}}, []string{"route"}),
		waits: prometheus.NewGauge(prometheus.GaugeOpts{Name: "opsplane_http_open_waits", Help: "Requests that wait for something to happen."}),
		auditDrops: prometheus.NewCounter(prometheus.CounterOpts{Name: "opsplane_audit_dropped_total",
			Help: "Audit records of refused calls that were not written."}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.took, m.waits, m.auditDrops} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

// Answered implements httpapi.Metrics.
func (m *Metrics) Answered(route, method string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	m.took.WithLabelValues(route).Observe(took.Seconds())
}

// Waiting implements httpapi.Metrics.
func (m *Metrics) Waiting(more int) { m.waits.Add(float64(more)) }

// AuditDropped implements httpapi.Metrics.
func (m *Metrics) AuditDropped(records int) { m.auditDrops.Add(float64(records)) }
