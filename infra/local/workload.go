package local

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Bounds of what one scrape reads.
const (
	workloadMost = 5000            // live operations, and dead letters
	workloadFor  = 5 * time.Second // how long an answer is given again
	workloadTime = 2 * time.Second
)

// workload measures operations, queues, agents, dead letters and what waits to be told, when the metrics
// are read. What cannot be read is left out of that answer.
type workload struct {
	store *record.Store
	depth func(ctx context.Context, queue string) (int, error)
	// oldest is how long each receiver has been waited for (notify.Service.OldestWaiting).
	oldest func(ctx context.Context) (map[string]time.Duration, error)

	mu   sync.Mutex
	at   time.Time
	last []prometheus.Metric
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("opsplane_"+name, help, labels, nil)
}

var (
	liveDesc   = describe("operations_live", "Operations that have not ended, by phase; 5,000 are counted.", "phase")
	depthDesc  = describe("queue_depth", "Doorbells that wait in a cluster's queue.", "cluster")
	onlineDesc = describe("agents_online", "Agents of a cluster that were heard of lately.", "cluster")
	deadDesc   = describe("dead_letters", "Messages that were put aside and not sent again; 5,000 are looked at.")
	oldestDesc = describe("notify_oldest_waiting_seconds", "How long the message has waited that has waited longest for a receiver to take it, 0: none waits; 20 of each receiver are looked at, and what an Alertmanager took before and is told again does not count.", "receiver")
)

// Describe implements prometheus.Collector.
func (w *workload) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{liveDesc, depthDesc, onlineDesc, deadDesc, oldestDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (w *workload) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil || time.Since(w.at) > workloadFor {
		ctx, cancel := context.WithTimeout(context.Background(), workloadTime)
		defer cancel()
		w.last, w.at = nil, time.Now()
		_ = errors.Join(w.operations(ctx), w.clusters(ctx), w.deadLetters(ctx), w.waiting(ctx)) // the ledger's own metrics tell
	}
	for _, m := range w.last {
		out <- m
	}
}

func (w *workload) gauge(d *prometheus.Desc, v float64, labels ...string) {
	w.last = append(w.last, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
}

func (w *workload) waiting(ctx context.Context) error {
	oldest, err := w.oldest(ctx)
	if err != nil {
		return err
	}
	for receiver, d := range oldest {
		w.gauge(oldestDesc, d.Seconds(), receiver)
	}
	return nil
}

func (w *workload) operations(ctx context.Context) error {
	counts := map[operation.Phase]int{}
	sp := record.Span{Limit: 200}
	for n := 0; n < workloadMost; {
		found, more, err := w.store.Operations(ctx, record.OperationsBy{Live: true}, sp)
		if err != nil {
			return err
		}
		for _, f := range found {
			counts[f.State.Phase]++
			sp.After = f.Sort
		}
		if n += len(found); !more || len(found) == 0 {
			break
		}
	}
	for _, p := range operation.Phases {
		if !p.Terminal() {
			w.gauge(liveDesc, float64(counts[p]), string(p))
		}
	}
	return nil
}

func (w *workload) clusters(ctx context.Context) error {
	clusters, err := w.store.Clusters(ctx)
	if err != nil {
		return err
	}
	agents, err := w.store.AllAgents(ctx)
	if err != nil {
		return err
	}
	online := map[string]int{}
	for _, g := range agents {
		if g.Online(w.store.Now(), w.store.Timing.AgentSilent) {
			online[g.Cluster]++
		}
	}
	for _, c := range clusters {
		w.gauge(onlineDesc, float64(online[c.ID]), c.Name)
		n, err := w.depth(ctx, c.Queue)
		if err != nil {
			return err
		}
		w.gauge(depthDesc, float64(n), c.Name)
	}
	return nil
}

func (w *workload) deadLetters(ctx context.Context) error {
	dead, sp := 0, record.Span{Limit: 200, Reverse: true}
	for n := 0; n < workloadMost; {
		letters, more, err := w.store.DeadLetters(ctx, sp)
		if err != nil {
			return err
		}
		for _, d := range letters {
			if d.Redriven == nil {
				dead++
			}
			sp.After = record.TimeSort(d.At, d.ID)
		}
		if n += len(letters); !more || len(letters) == 0 {
			break
		}
	}
	w.gauge(deadDesc, float64(dead))
	return nil
}
