package bench

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite"
)

type stepArgs struct {
	Step int `json:"step"`
}

func (stepArgs) Kind() string { return "step" }

type stepWorker struct {
	river.WorkerDefaults[stepArgs]
	done chan struct{}
}

func (w *stepWorker) Work(context.Context, *river.Job[stepArgs]) error {
	w.done <- struct{}{}
	return nil
}

// BenchmarkRiver: one-step jobs through river with its SQLite driver, durable,
// on the same machine in the same run. A job here has no plan, lease, journal,
// lock, event or HTTP.
func BenchmarkRiver(b *testing.B) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "river.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(10000)")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	driver := riversqlite.New(db)
	m, err := rivermigrate.New(driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	const n = 2_000
	w := &stepWorker{done: make(chan struct{}, n)}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver, &river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 200}}, Workers: workers,
		FetchCooldown: 5 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Stop(ctx) }()
	for b.Loop() {
		began := time.Now()
		for i := range n {
			if _, err := client.Insert(ctx, stepArgs{i}, nil); err != nil {
				b.Fatal(err)
			}
		}
		for range n {
			<-w.done
		}
		b.ReportMetric(n/time.Since(began).Seconds(), "jobs/s")
	}
}
