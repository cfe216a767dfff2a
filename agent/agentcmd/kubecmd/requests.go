package kubecmd

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// requests are client-go's own figures of the calls to the API server.
type requests struct {
	took    *prometheus.HistogramVec
	limited prometheus.Histogram
	results *prometheus.CounterVec
	retries *prometheus.CounterVec
}

func (r *requests) collectors() []prometheus.Collector {
	return []prometheus.Collector{r.took, r.limited, r.results, r.retries}
}

// figures are made once: client-go takes one set for the whole process.
var figures = sync.OnceValue(func() *requests {
	r := &requests{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "opsplane_agent_kube_request_seconds",
			Help: "Calls to the API server, by method; watches count until their first answer.", Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 10)}, []string{"method"}),
		limited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "opsplane_agent_kube_client_wait_seconds",
			Help: "What calls waited for the agent's own limits (--kube-qps, --kube-burst).", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "opsplane_agent_kube_requests_total",
			Help: "Calls to the API server, by method and HTTP status; <error> is no answer."}, []string{"method", "code"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "opsplane_agent_kube_throttled_total",
			Help: "Calls that client-go sent again because the API server asked it to wait, by HTTP status."}, []string{"code"}),
	}
	metrics.Register(metrics.RegisterOpts{
		RequestLatency: took{r.took}, RateLimiterLatency: limited{r.limited}, RequestResult: result{r.results}, RequestRetry: retry{r.retries},
	})
	return r
})

type took struct{ h *prometheus.HistogramVec }

func (m took) Observe(_ context.Context, verb string, _ url.URL, d time.Duration) {
	m.h.WithLabelValues(verb).Observe(d.Seconds())
}

type limited struct{ h prometheus.Histogram }

func (m limited) Observe(_ context.Context, _ string, _ url.URL, d time.Duration) {
	m.h.Observe(d.Seconds())
}

type result struct{ c *prometheus.CounterVec }

func (m result) Increment(_ context.Context, code, method, _ string) {
	m.c.WithLabelValues(method, code).Inc()
}

type retry struct{ c *prometheus.CounterVec }

func (m retry) IncrementRetry(_ context.Context, code, _, _ string) {
	m.c.WithLabelValues(code).Inc()
}
