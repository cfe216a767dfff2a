package cloud

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/awsclient/env"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/planrun"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
)

// Plane is an open deployment: its engines, whose SDK clients are made once, and
// the services over them. Each method makes its service anew; a main asks once,
// before it takes events.
type Plane struct {
	Config  Config
	Log     *slog.Logger
	Metrics *Metrics
	// Ledger is the engine, with the sweep's queue rung for what falls due soon.
	Ledger ledger.Ledger
	Store  *record.Store
	Queue  *sqs.Engine
	Waker  *sweep.Waker // what the ledger rings by

	db  ledger.Ledger // the engine as it is
	aws aws.Config
}

// Open makes the engines of the deployment that the environment names, with the
// environment's SDK configuration and nothing else's; logs carry the attributes too (NewLogger). It
// calls no service of AWS: the first invocation does.
func Open(_ context.Context, attrs ...func(context.Context) slog.Attr) (*Plane, error) {
	c, err := FromEnv()
	if err != nil {
		return nil, err
	}
	c.Logger = NewLogger(os.Stdout, c, attrs...)
	a, err := env.Load()
	if err != nil {
		return nil, err
	}
	return New(c, a)
}

// indexLag is more than a global secondary index is late by where it is not out
// of order altogether: "usually within a fraction of a second" (AWS: "Using
// Global Secondary Indexes in DynamoDB").
const indexLag = time.Minute

// wall is the clock of all that a process remembers from one invocation to the
// next: tokens, agents seen, wake-ups on their way. It goes without the process's
// own monotonic clock, which may stop while a function is frozen (Go's package
// time, "Monotonic Clocks"): what was read a moment ago would then stay so.
func wall() time.Time { return time.Now().Round(0) }

// New makes the engines with an SDK configuration of the caller's own.
func New(c Config, a aws.Config) (*Plane, error) {
	p := &Plane{Config: c, Log: c.Logger, Metrics: NewMetrics(os.Stdout, c), aws: a}
	p.Log = cmp.Or(p.Log, NewLogger(os.Stdout, c))
	db, err := dynamo.New(dynamo.Options{Client: dynamodb.NewFromConfig(p.aws), Table: c.Table, Sharded: record.BusyPartitions(), Logger: p.Log})
	if err != nil {
		return nil, err
	}
	p.db = db
	p.Queue = sqs.New(sqs.Options{Client: awssqs.NewFromConfig(p.aws), Prefix: c.QueuePrefix, Logger: p.Log})
	p.Waker = &sweep.Waker{Queue: p.Queue, Now: wall, Logger: p.Log}
	p.Ledger = sweep.Waking(db, p.Waker)
	p.Store = &record.Store{Ledger: p.Ledger, Now: wall, Timing: operation.AWS, IndexLag: indexLag}
	return p, nil
}

// Tokens keeps the API tokens. None falls due, so its writes ring nobody: who
// only authenticates needs no right to a queue.
func (p *Plane) Tokens() *auth.Store { return auth.NewStore(p.db, wall) }

// Authenticator accepts API tokens, and those of the configured issuer, which is
// first asked when a token of its own comes.
func (p *Plane) Authenticator() (*auth.Authenticator, error) {
	a := &auth.Authenticator{Tokens: p.Tokens()}
	if p.Config.OIDC != nil {
		v, err := auth.NewVerifier(*p.Config.OIDC)
		if err != nil {
			return nil, err
		}
		a.OIDC = v
	}
	return a, nil
}

// AWS is the SDK's configuration that the engines' clients are made with.
func (p *Plane) AWS() aws.Config { return p.aws }

// Admission admits operations; a dry run asks the cluster's agents.
func (p *Plane) Admission() *admission.Service {
	asks := &agentapi.Service{Store: p.Store, Queue: p.Queue, Logger: p.Log}
	return &admission.Service{Store: p.Store, Preview: asks.Preview}
}

// Control changes what was admitted.
func (p *Plane) Control() *control.Service { return &control.Service{Store: p.Store} }

// Registry keeps clusters and tokens.
func (p *Plane) Registry() *registry.Service {
	return &registry.Service{Store: p.Store, Tokens: p.Tokens(), Queues: p.Queue}
}

// Agents answers agents, and tells them where their cluster's queue is.
func (p *Plane) Agents() *agentapi.Service {
	ringer := &relay.Relay{Store: p.Store, Queue: p.Queue, Logger: p.Log} // it rings; it publishes nothing
	return &agentapi.Service{Store: p.Store, Queue: p.Queue, Logger: p.Log, Reoffer: ringer.Reoffer, QueueURL: p.queueURL, Received: p.received}
}

// received puts what has become of the events of a call.
func (p *Plane) received(ctx context.Context, cluster string, r agentapi.Received) {
	if err := p.Metrics.PutOf(cluster, Counted(r.Counts())...); err != nil {
		p.Log.WarnContext(ctx, "metrics not written", "err", err)
	}
}

// Relay dispatches and publishes, to the bus given too (package outward).
func (p *Plane) Relay(b bus.Publisher) *relay.Relay {
	return &relay.Relay{Store: p.Store, Queue: p.Queue, Bus: b, Logger: p.Log}
}

// Sweep looks after time, and rings and publishes by the relay given.
func (p *Plane) Sweep(r *relay.Relay) *sweep.Sweep {
	return &sweep.Sweep{Store: p.Store, Relay: r, Queue: p.Queue, Logger: p.Log, Waker: p.Waker}
}

// Plans runs plans. Their children ask no agents: a plan is no dry run.
func (p *Plane) Plans() *planrun.Runner {
	return &planrun.Runner{Store: p.Store, Admission: &admission.Service{Store: p.Store}}
}

// lookUp bounds one question to SQS for a queue's address.
const lookUp = 5 * time.Second

// queueURL is where a cluster's agents poll; empty when SQS cannot say now: the
// next heartbeat asks again.
func (p *Plane) queueURL(cluster string) string {
	ctx, cancel := context.WithTimeout(context.Background(), lookUp)
	defer cancel()
	url, err := p.Queue.QueueURL(ctx, fleet.QueueName(cluster))
	if err != nil {
		p.Log.Warn("the queue's address is not known", "cluster", cluster, "err", err)
	}
	return url
}

// QueueAccess is how a cluster's agents reach its queue: its address, its name in
// policies, and the IAM policy that they need.
func (p *Plane) QueueAccess(ctx context.Context, name string) (url, arn string, policy []byte, err error) {
	if url, err = p.Queue.QueueURL(ctx, name); err != nil {
		return "", "", nil, err
	}
	if arn, err = p.Queue.QueueARN(ctx, name); err != nil {
		return "", "", nil, err
	}
	return url, arn, sqs.AgentPolicy(arn), nil
}

// Ready tells why the deployment cannot serve: its table does not answer.
func (p *Plane) Ready(ctx context.Context) error {
	_, err := p.Store.HistoryBegins(ctx)
	return err
}

// HistoryBegins is the time before which ended operations were removed; zero
// when nothing was, or when it cannot be read now.
func (p *Plane) HistoryBegins(ctx context.Context) time.Time {
	t, err := p.Store.HistoryBegins(ctx)
	if err != nil {
		p.Log.WarnContext(ctx, "cannot read where history begins", "err", err)
	}
	return t
}
