// Package inproc runs the deployed system in one process over a local AWS: the
// same handlers as the functions, called as API Gateway, Lambda's event source
// mappings and EventBridge would, each function over clients of its own.
//
// Being in one process it can do what no emulator does: count what AWS would
// charge for (package bill), and hurt the functions at any point: events that
// come twice, late, reordered or never, an invocation killed between two calls,
// throttled requests, answers that are lost (see Faults).
package inproc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/infra/awstest/bill"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
)

// Options say what runs.
type Options struct {
	// Scenario is the simulated cluster's; a file or the name of a builtin one.
	Scenario string
	// Cluster is its name.
	Cluster string
	// Tick is how often the scheduled rule fires; 0: each minute.
	Tick time.Duration
	// Faults hurt what is under way; nil: none.
	Faults *Faults
}

// Deployment is the running system.
type Deployment struct {
	URL     string
	Token   string // an administrator's
	Cluster registry.NewCluster
	// SimState is the folder of the simulated cluster.
	SimState string
	// Operations is what operations cost, Idle what is paid without any:
	// heartbeats, inventory, polls that found nothing, ticks.
	Operations, Idle *bill.Meter
	// Alerts is what judging events by the alert rules costs.
	Alerts *bill.Meter
	// Plane is one more client of the deployment, metered with the operations.
	Plane *cloud.Plane
	// Watch reads the ledger without being metered.
	Watch *record.Store
	// Redelivered counts stream batches that came again.
	Redelivered atomic.Int64

	t      testing.TB
	opts   Options
	name   string
	plain  aws.Config
	client *http.Client
	log    *logCounter
}

// Start makes the table, the queues and the bus, and runs the functions over
// them until the test ends.
func Start(t testing.TB, o Options) *Deployment {
	t.Helper()
	if os.Getenv(awsclient.EndpointEnv) == "" {
		t.Fatalf("%s is not set: start the local AWS first (make test-aws does)", awsclient.EndpointEnv)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	suffix := make([]byte, 5)
	_, _ = rand.Read(suffix) // it never fails (crypto/rand)
	d := &Deployment{t: t, opts: o, name: "opsplane-" + hex.EncodeToString(suffix), Operations: bill.NewMeter(), client: &http.Client{}, log: &logCounter{}}
	d.Idle, d.Alerts = d.Operations.Beside(), d.Operations.Beside()
	if d.opts.Tick == 0 {
		d.opts.Tick = time.Minute
	}
	var err error
	d.plain, err = awsclient.Load(ctx)
	d.no(err)
	d.no(dynamo.Create(ctx, dynamodb.NewFromConfig(d.plain), d.name))
	_, err = eventbridge.NewFromConfig(d.plain).CreateEventBus(ctx, &eventbridge.CreateEventBusInput{Name: &d.name})
	d.no(err)
	d.Plane = d.function("", d.Operations) // what it writes is known to the meter
	d.Watch = d.watch()
	for _, q := range []string{sqs.Dead, relay.PlaneQueue, sweep.WakeQueue} {
		d.no(d.Plane.Queue.Ensure(ctx, q))
	}
	_, d.Token, err = d.Plane.Tokens().Create(ctx, auth.TokenSpec{Name: "test", Role: auth.Admin, Force: true, CreatedBy: "test"})
	d.no(err)
	d.Cluster, err = d.Plane.Registry().Create(ctx, adminCall(), o.Cluster)
	d.no(err)

	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	api := httptest.NewServer(d.gateway())
	t.Cleanup(api.Close)
	d.URL = api.URL
	run := func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	run(d.relay())
	run(d.react())
	run(d.wakes())
	run(d.plans())
	d.agent(ctx, &wg)
	return d
}

func (d *Deployment) no(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// function opens the plane as one function's process does, with the meter and
// the faults in its clients.
func (d *Deployment) function(name string, m *bill.Meter) *cloud.Plane {
	d.t.Helper()
	a := d.plain.Copy()
	a.HTTPClient = m.Client(a.HTTPClient)
	if name != "" && d.opts.Faults != nil {
		a.HTTPClient = d.opts.Faults.client(a.HTTPClient)
	}
	c := cloud.Config{Stage: "test", Table: d.name, QueuePrefix: d.name + "-", Bus: d.name, LogLevel: slog.LevelInfo}
	c.Logger = slog.New(slog.NewJSONHandler(d.log, &slog.HandlerOptions{Level: c.LogLevel})).With("stage", "test", "function", name)
	p, err := cloud.New(c, a)
	d.no(err)
	p.Metrics = cloud.NewMetrics(d.log, c)
	return p
}

func (d *Deployment) watch() *record.Store {
	d.t.Helper()
	db, err := dynamo.New(dynamo.Options{Client: dynamodb.NewFromConfig(d.plain), Table: d.name, Sharded: record.BusyPartitions(), Logger: slog.New(slog.DiscardHandler)})
	d.no(err)
	return &record.Store{Ledger: db, Now: time.Now, Timing: operation.AWS}
}

// LogBytes is how much the functions have logged.
func (d *Deployment) LogBytes() int64 { return d.log.n.Load() }

// logCounter counts what is logged; with OPSPLANE_TEST_LOG set it shows it.
type logCounter struct{ n atomic.Int64 }

func (l *logCounter) Write(b []byte) (int, error) {
	l.n.Add(int64(len(b)))
	if os.Getenv("OPSPLANE_TEST_LOG") != "" {
		_, _ = os.Stderr.Write(b)
	}
	return len(b), nil
}

// agent runs an agent of the cluster with the simulated executor, polling SQS by
// itself.
func (d *Deployment) agent(ctx context.Context, wg *sync.WaitGroup) {
	d.t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	d.SimState = filepath.Join(d.t.TempDir(), "sim")
	x, err := sim.Open(sim.Options{Scenario: d.opts.Scenario, StateDir: d.SimState, Logger: quiet})
	d.no(err)
	a := d.plain.Copy()
	client := awssqs.NewFromConfig(a)
	agent, err := loop.New(loop.Config{PlaneURL: d.URL, Token: d.Cluster.Secret, Name: "agent-0", Version: "test", Executor: x, Concurrency: 256, Logger: quiet,
		OpenQueue: func(url string) (queue.Receiver, error) {
			return &doorbells{Receiver: sqs.NewReceiver(client, url), d: d}, nil
		}})
	d.no(err)
	wg.Go(func() {
		_ = agent.Run(ctx) // it ends with the test
		_ = x.Close()
	})
}

// doorbells counts what the agent asks of SQS, and lets the faults have theirs.
type doorbells struct {
	queue.Receiver
	d *Deployment
}

func (q *doorbells) Receive(ctx context.Context, name string, max int, wait, visibility time.Duration) ([]queue.Message, error) {
	ms, err := q.Receiver.Receive(ctx, name, max, wait, visibility)
	if len(ms) == 0 {
		q.d.Idle.Add(bill.SQSRequest, 1)
		return ms, err
	}
	q.d.Operations.Add(bill.SQSRequest, 1)
	return q.d.opts.Faults.messages("doorbells", ms), err
}

func (q *doorbells) Delete(ctx context.Context, name string, receipts ...string) error {
	q.d.Operations.Add(bill.SQSRequest, 1)
	return q.Receiver.Delete(ctx, name, receipts...)
}

func (q *doorbells) Extend(ctx context.Context, name, receipt string, by time.Duration) error {
	q.d.Operations.Add(bill.SQSRequest, 1)
	return q.Receiver.Extend(ctx, name, receipt, by)
}

// streamFeed reads the table's stream as a mapping does, which costs nothing.
func (d *Deployment) streamFeed() *dynamo.Feed {
	f, err := dynamo.NewFeed(dynamo.FeedOptions{Client: dynamodb.NewFromConfig(d.plain), Streams: dynamodbstreams.NewFromConfig(d.plain), Table: d.name, Poll: 250 * time.Millisecond})
	d.no(err)
	return f
}
