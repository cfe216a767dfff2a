package local

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/react"
)

// eventMetrics tells of events and alerts when the metrics are read.
type eventMetrics struct{ e *Engine }

// eventCounter is one count under a name that stays.
type eventCounter struct {
	desc  *prometheus.Desc
	value func(e *Engine, s *react.Stats) int64
}

var eventCounters = []eventCounter{
	{describe("events_in_total", "Events of agents that were taken."), func(e *Engine, _ *react.Stats) int64 { return e.Agents.Intake.Taken.Load() }},
	{describe("events_resent_total", "Events of agents that had been taken before."), func(e *Engine, _ *react.Stats) int64 { return e.Agents.Intake.Resent.Load() }},
	{describe("events_refused_total", "Events of agents that were not taken for what they are."), func(e *Engine, _ *react.Stats) int64 { return e.Agents.Intake.Refused.Load() }},
	{describe("event_gaps_total", "Stretches of agents' events that were lost on the way."), func(e *Engine, _ *react.Stats) int64 { return e.Agents.Intake.Gaps.Load() }},
	{describe("events_missing_total", "Events of agents that were lost on the way."), func(e *Engine, _ *react.Stats) int64 { return e.Agents.Intake.Missing.Load() }},
	{describe("events_judged_total", "Events, the plane's own too, that the rules have judged."), func(_ *Engine, s *react.Stats) int64 { return s.Judged }},
	{describe("events_late_total", "Judged events that were told more than 5 minutes after they happened."), func(_ *Engine, s *react.Stats) int64 { return s.Late }},
	{describe("events_unjudged_total", "Events that passed retention before they were judged."), func(_ *Engine, s *react.Stats) int64 { return s.Lost }},
	{describe("rule_matches_total", "Events that matched a rule."), func(_ *Engine, s *react.Stats) int64 { return s.Matched }},
	{describe("rule_evaluations_total", "Expressions of rules that were evaluated."), func(_ *Engine, s *react.Stats) int64 { return s.Evaluated }},
	{describe("rule_errors_total", "Expressions that could not be evaluated, and so did not hold."), func(_ *Engine, s *react.Stats) int64 { return s.Errors }},
	{describe("rule_cost_total", "What metered expressions cost, in CEL's units."), func(_ *Engine, s *react.Stats) int64 { return s.Cost }},
	{describe("rule_groups_folded_total", "Groups over a rule's limit in a stream."), func(_ *Engine, s *react.Stats) int64 { return s.Folded }},
	{describe("rule_timers_total", "Timers of rules that came due."), func(_ *Engine, s *react.Stats) int64 { return s.Timers }},
	{describe("reactor_retries_total", "Passes of the reactor that lost a race."), func(_ *Engine, s *react.Stats) int64 { return s.Retries }},
}

// toldTypes are there from the start, so that a rate has a zero to begin with.
var toldTypes = []string{alert.TypePending, alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved, alert.TypeFolded}

var (
	toldDesc    = describe("alerts_told_total", "Transitions of alerts, by the type of their event.", "type")
	latencyDesc = describe("alert_latency_seconds", "From an event's happening to the alert that it set off being kept.")
	pulseDesc   = describe("reactor_age_seconds", "Time since the reactor was last seen alive.")
	behindDesc  = describe("reactor_streams_behind", "Streams that could not be judged.")
)

// Describe implements prometheus.Collector.
func (c eventMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, x := range eventCounters {
		out <- x.desc
	}
	for _, d := range []*prometheus.Desc{toldDesc, latencyDesc, pulseDesc, behindDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c eventMetrics) Collect(out chan<- prometheus.Metric) {
	s := c.e.Reactor.Metrics.Read()
	for _, x := range eventCounters {
		out <- prometheus.MustNewConstMetric(x.desc, prometheus.CounterValue, float64(x.value(c.e, &s)))
	}
	for _, typ := range toldTypes {
		out <- prometheus.MustNewConstMetric(toldDesc, prometheus.CounterValue, float64(s.Told[typ]), typ)
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
