package local

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/tally"
)

// eventMetrics tells of events and alerts when the metrics are read.
type eventMetrics struct{ e *Engine }

// counts are what the engine counts of events and rules.
func (e *Engine) counts(s *react.Stats) []tally.Count {
	received := e.Agents.Intake.Read()
	return append(received.Counts(), s.Counts()...)
}

// countDescs describe the counts by their names.
var countDescs = func() map[string]*prometheus.Desc {
	out := map[string]*prometheus.Desc{}
	for _, c := range append(agentapi.Received{}.Counts(), new(react.Stats).Counts()...) {
		out[c.Name] = describe(c.Name, c.Help)
	}
	return out
}()

// toldTypes are there from the start, so that a rate has a zero to begin with.
var toldTypes = []string{alert.TypePending, alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved, alert.TypeFolded,
	alert.TypeSilenced, alert.TypeUnsilenced, alert.TypeInhibited}

var (
	toldDesc    = describe("alerts_told_total", "Transitions of alerts, by the type of their event.", "type")
	failedDesc  = describe("rule_failures_total", "Expressions that could not be evaluated, by the rule.", "rule")
	latencyDesc = describe("alert_latency_seconds", "From an event's happening to the alert that it set off being kept.")
	pulseDesc   = describe("reactor_age_seconds", "Time since the reactor was last seen alive.")
	behindDesc  = describe("reactor_streams_behind", "Streams that could not be judged.")
)

// Describe implements prometheus.Collector.
func (c eventMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range countDescs {
		out <- d
	}
	for _, d := range []*prometheus.Desc{toldDesc, failedDesc, latencyDesc, pulseDesc, behindDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c eventMetrics) Collect(out chan<- prometheus.Metric) {
	s := c.e.Reactor.Metrics.Read()
	for _, x := range c.e.counts(&s) {
		out <- prometheus.MustNewConstMetric(countDescs[x.Name], prometheus.CounterValue, float64(x.Value))
	}
	for _, typ := range toldTypes {
		out <- prometheus.MustNewConstMetric(toldDesc, prometheus.CounterValue, float64(s.Told[typ]), typ)
	}
	for rule, n := range s.Failed {
		out <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, float64(n), rule)
	}
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, n := range s.Latency {
		total += uint64(n)
		if i < len(react.LatencyBounds) {
			buckets[react.LatencyBounds[i]] = total
		}
	}
	out <- prometheus.MustNewConstHistogram(latencyDesc, total, s.LatencySum, buckets)
	out <- prometheus.MustNewConstMetric(pulseDesc, prometheus.GaugeValue, time.Since(c.e.reactorSince()).Seconds())
	n, _ := c.e.behind.longer(time.Now(), 0)
	out <- prometheus.MustNewConstMetric(behindDesc, prometheus.GaugeValue, float64(n))
}
