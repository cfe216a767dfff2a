package httpapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests   *prometheus.CounterVec
	took       *prometheus.HistogramVec
	waits      prometheus.Gauge
	auditDrops prometheus.Counter
}

// newMetrics makes the API's metrics; without a registry nobody reads them.
func newMetrics(reg *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "opsplane_http_requests_total",
			Help: "Answered requests by route, method and class of status."}, []string{"route", "method", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "opsplane_http_request_seconds",
			Help: "Time to answer, by route; waits are in it.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 60}}, []string{"route"}),
		waits: prometheus.NewGauge(prometheus.GaugeOpts{Name: "opsplane_http_open_waits", Help: "Requests that wait for something to happen."}),
		auditDrops: prometheus.NewCounter(prometheus.CounterOpts{Name: "opsplane_audit_dropped_total",
			Help: "Audit records of refused calls that were not written."}),
	}
	if reg == nil {
		return m, nil
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

func (m *metrics) answered(rq *request, status int, took time.Duration) {
	_, route, ok := strings.Cut(rq.pattern(), " ")
	if !ok {
		route = "none"
	}
	method := "other"
	switch rq.http.Method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		method = rq.http.Method
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status/100)+"xx").Inc()
	m.took.WithLabelValues(route).Observe(took.Seconds())
}
