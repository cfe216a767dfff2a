package local

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/shared/notify"
)

// notifyMetrics tells of what receivers were told when the metrics are read.
type notifyMetrics struct{ e *Engine }

var notifyCounters = []struct {
	desc  *prometheus.Desc
	value func(notify.Stats) float64
}{
	{describe("notify_sent_total", "Messages that receivers took."), func(s notify.Stats) float64 { return float64(s.Sent) }},
	{describe("notify_failed_total", "Tries that receivers did not take."), func(s notify.Stats) float64 { return float64(s.Failed) }},
	{describe("notify_retried_total", "Tries of messages that had failed before."), func(s notify.Stats) float64 { return float64(s.Retried) }},
	{describe("notify_given_up_total", "Messages that were given up."), func(s notify.Stats) float64 { return float64(s.Given) }},
	{describe("notify_superseded_total", "Messages that a webhook did not take before a later one of their alert."), func(s notify.Stats) float64 { return float64(s.Superseded) }},
	{describe("notify_lost_total", "Events that passed retention before they were told, or cannot be read; what a restore passed over is one."), func(s notify.Stats) float64 { return float64(s.Lost) }},
	{describe("notify_unreadable_total", "Receivers, messages and other items of the notifier that could not be read, each time."), func(s notify.Stats) float64 { return float64(s.Unread) }},
	{describe("notify_request_seconds_total", "Time that requests to receivers took."), func(s notify.Stats) float64 { return s.Seconds }},
}

var notifyLatencyDesc = describe("notify_latency_seconds", "From an alert's event being taken to its receiver taking the message.")

// Describe implements prometheus.Collector.
func (c notifyMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, x := range notifyCounters {
		out <- x.desc
	}
	out <- notifyLatencyDesc
}

// Collect implements prometheus.Collector.
func (c notifyMetrics) Collect(out chan<- prometheus.Metric) {
	s := c.e.Receivers.Metrics.Read()
	for _, x := range notifyCounters {
		out <- prometheus.MustNewConstMetric(x.desc, prometheus.CounterValue, x.value(s))
	}
	buckets, n := map[float64]uint64{}, uint64(0)
	for i, bound := range notify.LatencyBounds {
		n += uint64(s.Latency[i])
		buckets[bound] = n
	}
	n += uint64(s.Latency[len(notify.LatencyBounds)])
	out <- prometheus.MustNewConstHistogram(notifyLatencyDesc, n, s.LatencySum, buckets)
}
