package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/httpapi"
	"github.com/opsplane/opsplane/shared/httpapi/prom"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// newAPI puts the HTTP API over the services.
func (e *Engine) newAPI() (*httpapi.API, error) {
	authn := &auth.Authenticator{Tokens: e.Tokens}
	if e.oidc != nil {
		authn.OIDC = e.oidc
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e.register(reg)
	reg.MustRegister(&workload{store: e.Store, depth: e.queue.Depth, oldest: e.Receivers.OldestWaiting}, eventMetrics{e}, notifyMetrics{e})
	metrics, err := prom.New(reg)
	if err != nil {
		return nil, err
	}
	return httpapi.New(httpapi.Config{
		Store: e.Store, Admission: e.Admission, Control: e.Control, Registry: e.Registry, Auth: authn,
		Limiter:   &auth.Limiter{Rate: e.opts.RequestsPerSecond, Waits: e.opts.Waits},
		Receivers: e.Receivers,
		Agent:     e.Agents, Queue: e.queue, Bury: e.queue.Bury,
		Version: Version, MaxWait: time.Minute, Logger: e.opts.Logger, Metrics: metrics,
		Ready: e.ready,
		HistoryBegins: func(ctx context.Context) time.Time {
			t, err := e.Store.HistoryBegins(ctx)
			if err != nil {
				e.opts.Logger.Warn("cannot read where history begins", "err", err)
			}
			return t
		},
	})
}

// ready tells why the engine cannot serve: its ledger does not answer or refuses
// writes, or its sweep or reactor is silent.
func (e *Engine) ready(ctx context.Context) error {
	if _, err := e.Store.HistoryBegins(ctx); err != nil {
		return err
	}
	if err := e.writable.refuses(ctx); err != nil {
		why := ledgersqlite.Why(err)
		if errors.Is(err, errHangs) {
			why = "it does not answer"
		}
		return &httpapi.NotReadyError{Reason: "the ledger refuses writes: " + cmp.Or(why, "it is not available"), Err: err}
	}
	if q := e.silent(time.Now()); len(q) > 0 {
		return &httpapi.NotReadyError{Reason: fmt.Sprintf("the %s has been silent for %s", q[0].part, q[0].since)}
	}
	return nil
}

// register adds the engine's own metrics.
func (e *Engine) register(reg *prometheus.Registry) {
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "opsplane", Name: name, Help: help}, f))
	}
	counter := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "opsplane", Name: name, Help: help}, f))
	}
	counter("ledger_commits_total", "Commits that the ledger took.", func() float64 { return float64(e.ledger.Stats().Commits) })
	counter("ledger_batches_total", "Groups of commits that shared one sync.", func() float64 { return float64(e.ledger.Stats().Batches) })
	counter("ledger_conflicts_total", "Commits that lost a race.", func() float64 { return float64(e.ledger.Stats().Conflicts) })
	counter("ledger_failures_total", "Groups of commits that failed.", func() float64 { return float64(e.ledger.Stats().Failures) })
	gauge("ledger_bytes", "Size of the ledger's file.", func() float64 { return float64(e.ledger.Stats().FileBytes) })
	gauge("ledger_wal_bytes", "Size of the ledger's write-ahead log.", func() float64 { return float64(e.ledger.Stats().WALBytes) })
	gauge("sweep_age_seconds", "Time since the sweep's last good pass.", func() float64 {
		return time.Since(time.UnixMilli(e.swept.Load())).Seconds()
	})
	gauge("sweep_lateness_seconds", "How late the oldest due item is.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		d, err := e.Sweep.Lateness(ctx)
		if err != nil {
			return -1
		}
		return d.Seconds()
	})
}
