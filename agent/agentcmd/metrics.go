package agentcmd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/opsplane/opsplane/agent/loop"
)

// newRegistry has the agent's metrics, its executor's and the process's own.
func newRegistry(o options, agent *loop.Agent, h *health, more []prometheus.Collector) (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "opsplane_agent_info", Help: "1; the labels say what runs here.",
		ConstLabels: prometheus.Labels{"version": Version(), "executor": o.executor, "agent_name": o.name}})
	info.Set(1)
	all := append([]prometheus.Collector{info, &collector{agent: agent, health: h},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}, more...)
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return reg, nil
}

// metric is one of the agent's own, under a name that stays.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(m *loop.Metrics, s loop.Status) float64
}

func counter(name, help string, of func(m *loop.Metrics) int64) metric {
	return metric{prometheus.NewDesc("opsplane_agent_"+name, help, nil, nil), prometheus.CounterValue,
		func(m *loop.Metrics, _ loop.Status) float64 { return float64(of(m)) }}
}

func gauge(name, help string, of func(s loop.Status) float64) metric {
	return metric{prometheus.NewDesc("opsplane_agent_"+name, help, nil, nil), prometheus.GaugeValue,
		func(_ *loop.Metrics, s loop.Status) float64 { return of(s) }}
}

var plain = []metric{
	counter("doorbells_total", "Messages received from the queue.", func(m *loop.Metrics) int64 { return m.Doorbells.Load() }),
	counter("doorbells_refused_total", "Messages that were no doorbell for this agent.", func(m *loop.Metrics) int64 { return m.BadDoorbells.Load() }),
	counter("queue_polls_total", "Receives that the queue answered.", func(m *loop.Metrics) int64 { return m.QueuePolls.Load() }),
	counter("queue_errors_total", "Receives that the queue did not answer.", func(m *loop.Metrics) int64 { return m.QueueErrors.Load() }),
	counter("plane_calls_total", "Calls to the plane's API.", func(m *loop.Metrics) int64 { return m.PlaneCalls.Load() }),
	counter("plane_errors_total", "Calls to the plane's API without a good answer.", func(m *loop.Metrics) int64 { return m.PlaneErrors.Load() }),
	counter("heartbeats_total", "Heartbeats that the plane answered.", func(m *loop.Metrics) int64 { return m.Heartbeats.Load() }),
	counter("claims_total", "Operations asked for.", func(m *loop.Metrics) int64 { return m.Claims.Load() }),
	counter("claims_granted_total", "Operations taken on.", func(m *loop.Metrics) int64 { return m.Granted.Load() }),
	counter("reports_total", "Reports that the plane took.", func(m *loop.Metrics) int64 { return m.Reports.Load() }),
	counter("reports_resent_total", "Reports sent again because their call was not answered.", func(m *loop.Metrics) int64 { return m.ReportsFailed.Load() }),
	counter("reports_kept_total", "Final reports kept past their lease.", func(m *loop.Metrics) int64 { return m.Kept.Load() }),
	counter("reports_late_total", "Kept reports handed over as late.", func(m *loop.Metrics) int64 { return m.Late.Load() }),
	counter("leases_lost_total", "Leases that ended before the operation's end was told.", func(m *loop.Metrics) int64 { return m.LeasesLost.Load() }),
	counter("fenced_total", "Effects that the agent's own fence refused.", func(m *loop.Metrics) int64 { return m.Fenced.Load() }),
	counter("inventory_objects_total", "Inventory objects that the plane took.", func(m *loop.Metrics) int64 { return m.Objects.Load() }),
	counter("inventory_snapshots_total", "Whole inventories that the plane took.", func(m *loop.Metrics) int64 { return m.Snapshots.Load() }),
	counter("events_total", "Events that the plane took.", func(m *loop.Metrics) int64 { return m.EventsSent.Load() }),
	counter("events_lost_total", "Events that were refused, or dropped by a full buffer.", func(m *loop.Metrics) int64 { return m.EventsLost.Load() }),
	counter("previews_total", "Previews made.", func(m *loop.Metrics) int64 { return m.Previews.Load() }),
	gauge("leases", "Operations held now.", func(s loop.Status) float64 { return float64(s.Leases) }),
	gauge("capacity", "Operations carried out at a time.", func(s loop.Status) float64 { return float64(s.Capacity) }),
	gauge("reporter", "1 while this agent reports the cluster's inventory.", func(s loop.Status) float64 { return one(s.Reporter) }),
	gauge("plane_up", "1 while the plane answers heartbeats.", func(s loop.Status) float64 { return one(planePart(s).OK) }),
	gauge("plane_heard_seconds", "Seconds since the plane answered a heartbeat, -1 before the first.", func(s loop.Status) float64 { return seconds(s.Heard) }),
	gauge("queue_up", "1 while the queue answers.", func(s loop.Status) float64 { return one(queuePart(s).OK) }),
	gauge("queue_heard_seconds", "Seconds since the queue answered, -1 before the first.", func(s loop.Status) float64 { return seconds(s.QueueHeard) }),
	gauge("loops_stuck", "Loops that did not come round.", func(s loop.Status) float64 { return float64(len(s.Stuck)) }),
}

// Metrics with one label.
var (
	ended    = prometheus.NewDesc("opsplane_agent_runs_ended_total", "Assignments that came to their end, by outcome.", []string{"outcome"}, nil)
	steps    = prometheus.NewDesc("opsplane_agent_step_attempts_total", "Attempts of steps, by outcome.", []string{"outcome"}, nil)
	effects  = prometheus.NewDesc("opsplane_agent_effects_total", "Commands issued, by category of the answer.", []string{"category"}, nil)
	executes = prometheus.NewDesc("opsplane_agent_executor_up", "1 while the executor reaches what it acts on.", nil, nil)
)

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Seconds()
}

// collector reads the loop's counters when they are asked for.
type collector struct {
	agent  *loop.Agent
	health *health
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range plain {
		ch <- m.desc
	}
	for _, d := range []*prometheus.Desc{ended, steps, effects, executes} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	m, s := c.agent.Metrics(), c.agent.Status()
	for _, p := range plain {
		ch <- prometheus.MustNewConstMetric(p.desc, p.kind, p.value(m, s))
	}
	for desc, tally := range map[*prometheus.Desc]*loop.Tally{ended: &m.Ended, steps: &m.Steps, effects: &m.Effects} {
		tally.Each(func(label string, n int64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label)
		})
	}
	ch <- prometheus.MustNewConstMetric(executes, prometheus.GaugeValue, one(c.health.works() == nil))
}
