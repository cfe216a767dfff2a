// Package httpapi is the plane over HTTP: for people and programs under /v1,
// for agents under /v1/agent. It reads requests, says who may, calls the use
// cases (packages admission, control, registry) and shapes answers; it decides
// nothing itself.
//
// A request passes, in this order: its ids, its route, who it is, their limits,
// their right, its media type and size, the handler. Whatever goes wrong on the
// way is answered as a problem (package problem), and refusals are audited.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
)

// Authenticator says who makes a request; *auth.Authenticator does by the bearer
// credential (empty when there is none). On AWS the gateway's authorizer has
// done so before, and the one behind it reads from the context who it was. The
// error matches auth.ErrDenied or auth.ErrUnavailable.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (auth.Principal, error)
}

// Config is what the API stands on.
type Config struct {
	Store     *record.Store
	Admission *admission.Service
	Control   *control.Service
	Registry  *registry.Service
	Auth      Authenticator
	// AgentsOnly leaves out every route but the agents' and health: then Store,
	// Auth and Agent are all that is required.
	AgentsOnly bool
	// Limiter bounds what each principal asks; nil: the defaults of package auth.
	Limiter *auth.Limiter
	// Events reads the streams; nil: one over the store's ledger and clusters.
	Events *event.Reader
	// Alerts keeps rules, alerts and silences; nil: one over the store.
	Alerts *react.Service
	// Receivers keeps who is told of alerts; nil: one over the store.
	Receivers *notify.Service
	// Agent carries out the agents' calls; nil leaves their routes out.
	Agent AgentAPI
	// Queue is what agents poll through the plane; with nil those routes say that
	// agents poll their queue by themselves (on AWS: SQS).
	Queue queue.Receiver
	// QueueAccess tells how agents reach a cluster's queue by themselves, for the
	// answers that carry their token; nil where they poll through the plane.
	QueueAccess func(ctx context.Context, queue string) (QueueAccess, error)
	// Bury puts a message aside; nil leaves that route out.
	Bury func(ctx context.Context, queue string, m queue.Message, reason string) error

	Version string
	// MaxWait bounds every wait: 60 s on one machine (the default), 25 s on AWS.
	MaxWait time.Duration
	// BodyTimeout is how long a client may take to send a body; 0: 30 s.
	BodyTimeout time.Duration
	Logger      *slog.Logger
	// Metrics is told what the API does and is what /metrics shows; without it there
	// is no such route.
	Metrics Metrics
	// AuditFirst has the record of a refused call written before its answer is
	// returned, not soon after: for a process that may be frozen once it has
	// answered. It costs each refused call one commit.
	AuditFirst bool
	// Ready tells why the process cannot serve yet, or nil.
	Ready func(ctx context.Context) error
	// HistoryBegins is the time before which ended operations were removed; the
	// zero time: nothing was.
	HistoryBegins func(ctx context.Context) time.Time

	documents bool // it is made for the OpenAPI document
}

// API is the handler. Close it to have the last audit records written.
type API struct {
	cfg     Config
	mux     *http.ServeMux
	huma    huma.API
	routes  map[string]*route // by the mux's pattern
	metrics Metrics
	audit   *auditor
	log     *slog.Logger

	streaming streaming
	tests     chan struct{} // those of rules that are under way
}

// New makes the handler.
func New(cfg Config) (*API, error) {
	if cfg.AgentsOnly {
		return NewForAgents(cfg)
	}
	if cfg.Store == nil || cfg.Admission == nil || cfg.Control == nil || cfg.Registry == nil || cfg.Auth == nil {
		return nil, errors.New("httpapi: Store, Admission, Control, Registry and Auth are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Events == nil {
		cfg.Events = &event.Reader{Ledger: cfg.Store.Ledger, Now: cfg.Store.Now, Streams: streamsOf(cfg.Store)}
	}
	if cfg.Alerts == nil {
		cfg.Alerts = &react.Service{Store: cfg.Store}
	}
	if cfg.Receivers == nil {
		cfg.Receivers = &notify.Service{Store: cfg.Store, Logger: cfg.Logger}
	}
	return build(cfg, (*API).userRoutes)
}

// NewForAgents makes the handler of AgentsOnly. A program that calls this alone
// links nothing of the other routes.
func NewForAgents(cfg Config) (*API, error) {
	cfg.AgentsOnly = true
	if cfg.Store == nil || cfg.Auth == nil || cfg.Agent == nil {
		return nil, errors.New("httpapi: Store, Auth and Agent are required")
	}
	return build(cfg, nil)
}

// build makes the handler, with the routes of people and programs if they are
// given.
func build(cfg Config, users func(*API)) (*API, error) {
	if cfg.Limiter == nil {
		cfg.Limiter = &auth.Limiter{}
	}
	if cfg.MaxWait <= 0 {
		cfg.MaxWait = time.Minute
	}
	if cfg.BodyTimeout <= 0 {
		cfg.BodyTimeout = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	a := newAPI(cfg, users)
	if a.metrics = cfg.Metrics; a.metrics == nil {
		a.metrics = unmeasured{}
	}
	a.audit = newAuditor(cfg.Store.Ledger, cfg.Logger, a.metrics.AuditDropped, cfg.AuditFirst)
	return a, nil
}

// newAPI registers the routes; OpenAPI needs no more.
func newAPI(cfg Config, users func(*API)) *API {
	a := &API{cfg: cfg, mux: http.NewServeMux(), routes: map[string]*route{}, log: cfg.Logger, streaming: newStreaming(), tests: make(chan struct{}, maxTests)}
	a.healthRoutes()
	if users != nil {
		users(a)
	}
	if cfg.Agent != nil {
		a.agentRoutes()
	}
	switch {
	case cfg.Queue != nil:
		a.queueRoutes()
	case cfg.Agent != nil:
		a.noQueueRoutes()
	}
	return a
}

// userRoutes are those of people and programs.
func (a *API) userRoutes() {
	schemas := huma.NewMapRegistry("#/components/schemas/", schemaName)
	if !a.cfg.documents {
		schemas = &undocumented{Registry: schemas}
	}
	a.huma = newHuma(a.mux, a.cfg.Version, schemas)
	a.operationRoutes()
	a.historyRoutes()
	a.changeRoutes()
	a.clusterRoutes()
	a.agentViewRoutes()
	a.inventoryRoutes()
	a.tokenRoutes()
	a.auditRoutes()
	a.deadLetterRoutes()
	a.eventRoutes()
	a.eventTypeRoutes()
	a.alertRoutes()
	a.silenceRoutes()
	a.receiverRoutes()
	a.ruleRoutes()
	a.docsRoutes()
	a.runbookRoutes()
}

// Close ends event streams, and writes the audit records that still wait; the
// context bounds it.
func (a *API) Close(ctx context.Context) error {
	a.EndStreams()
	return a.audit.close(ctx)
}

// streamsOf lists the streams that a reader of all reads.
func streamsOf(st *record.Store) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) { return event.Streams(ctx, st) }
}

func (a *API) historyBegins(ctx context.Context) *time.Time {
	if a.cfg.HistoryBegins == nil {
		return nil
	}
	t := a.cfg.HistoryBegins(ctx)
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
