package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

const (
	defaultConcurrency = 64
	defaultStopGrace   = 20 * time.Second
	maxConcurrency     = 10_000
)

// Config is what an agent is made of.
type Config struct {
	PlaneURL string // http(s)://host[:port], without a credential
	Token    string // an agent token of its cluster
	// TokenNow is asked for the token at each call, so that one can be replaced
	// while the agent runs; nil: Token.
	TokenNow func() string
	CAFile   string // PEM, in addition to the system's; optional
	Name     string // stable across restarts, unique in the cluster
	Version  string

	Executor executor.Executor
	// Queue is where doorbells come from, whatever the plane says; nil: where the
	// plane's heartbeats say.
	Queue queue.Receiver
	// OpenQueue opens the queue that a heartbeat's answer names by its URL (SQS on
	// AWS), anew when the URL changes. Its receivers say ErrQueueRefused and
	// queue.ErrNoQueue. nil: only the plane's own long poll.
	OpenQueue func(url string) (queue.Receiver, error)
	// Concurrency is how many operations are carried out at a time; 0: 64.
	Concurrency int
	// StateDir keeps reports that the plane has not taken; "": memory only.
	StateDir string
	// StopGrace bounds how long running steps may finish at a stop; 0: 20 s.
	StopGrace time.Duration
	Logger    *slog.Logger

	// HTTPClient replaces the one made from CAFile.
	HTTPClient *http.Client
	// Now is the wall clock; nil: time.Now.
	Now func() time.Time
	// Mono only runs forward and counts time in which the process was stopped;
	// nil: the machine's.
	Mono func() time.Duration
}

// Agent carries a cluster's operations out.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	api     *api
	sources *sources
	now     func() time.Time
	mono    func() time.Duration
	boot    string
	metrics *Metrics
	vitals  vitals

	session   *session
	slots     *slots
	runs      *runs
	aside     *aside // handed over to other agents
	reach     *reach
	claims    *claimer
	outgoing  *lane[*outbox]
	kept      *keep
	inventory *inventory
	events    *events
	renewal   chan struct{}
	previews  chan struct{}
	stopping  chan struct{} // closed when the agent takes nothing on any more
	started   sync.Once
}

// New returns an agent that Run starts. It reads what an earlier process left in
// StateDir.
func New(cfg Config) (*Agent, error) {
	switch {
	case cfg.Token == "":
		return nil, errors.New("new agent: a token is needed")
	case cfg.Name == "":
		return nil, errors.New("new agent: a name is needed")
	case cfg.Executor == nil:
		return nil, errors.New("new agent: an executor is needed")
	case cfg.Concurrency < 0 || cfg.Concurrency > maxConcurrency:
		return nil, fmt.Errorf("new agent: concurrency must be 1 to %d", maxConcurrency)
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = defaultConcurrency
	}
	if cfg.StopGrace <= 0 {
		cfg.StopGrace = defaultStopGrace
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Mono == nil {
		cfg.Mono = bootClock()
	}
	m := &Metrics{}
	api, err := newAPI(cfg, m)
	if err != nil {
		return nil, fmt.Errorf("new agent: %w", err)
	}
	kept, err := openKeep(cfg.StateDir, cfg.Now, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("new agent: %w", err)
	}
	a := &Agent{
		cfg: cfg, log: cfg.Logger, api: api, now: cfg.Now, mono: cfg.Mono,
		boot: id.New("boot", cfg.Now()), metrics: m,
		session: newSession(), slots: newSlots(cfg.Concurrency), runs: newRuns(), aside: newAside(), reach: newReach(),
		claims: newClaimer(), outgoing: newLane[*outbox](), kept: kept, inventory: newInventory(),
		renewal: make(chan struct{}, 1), previews: make(chan struct{}, 4), stopping: make(chan struct{}),
	}
	a.events = newEvents(a.metrics, a.now)
	if a.sources, err = newSources(cfg, api); err != nil {
		return nil, fmt.Errorf("new agent: %w", err)
	}
	return a, nil
}

// Run works until ctx ends, and then stops with grace: running steps come to a
// boundary or finish, what they have to tell is told or kept. It returns nil
// after a stop, and an UnauthorizedError when the plane refuses the token. An
// agent runs once.
func (a *Agent) Run(ctx context.Context) error {
	err := errors.New("run agent: it ran already")
	a.started.Do(func() { err = a.run(ctx) })
	return err
}

func (a *Agent) run(parent context.Context) error {
	ctx, stop := context.WithCancelCause(parent)
	defer stop(nil)
	// work outlives ctx until everything is told.
	work, endWork := context.WithCancelCause(context.WithoutCancel(parent))
	defer endWork(nil)

	var taking, working sync.WaitGroup
	working.Go(func() { // to the very end, or the plane would take it for dead
		if err := a.beat(work); err != nil {
			stop(err)
		}
	})
	if err := a.session.waitUp(ctx); err == nil {
		answer := a.session.get()
		a.log.Info("agent started", slog.String("agent", answer.AgentID),
			slog.String("cluster", answer.Cluster), slog.String("boot", a.boot), slog.String("version", a.cfg.Version))
		for range reportWorkers {
			working.Go(func() { a.report(work) })
		}
		for range claimWorkers {
			working.Go(func() { a.claim(work) })
		}
		working.Go(func() { a.watchReach(work) })
		working.Go(func() { a.renew(work) })
		working.Go(func() { a.sendEvents(work) })
		taking.Go(func() { a.reportFleet(ctx) })
		taking.Go(func() { a.redeliver(ctx) })
		taking.Go(func() { a.poll(ctx, work) })
	}

	<-ctx.Done()
	close(a.stopping)
	var unauthorized *UnauthorizedError
	if !errors.As(context.Cause(ctx), &unauthorized) {
		a.stopRuns(work, &taking)
	}
	endWork(errForced)
	taking.Wait()
	working.Wait()
	a.lastRuns()

	if unauthorized != nil {
		a.log.Error("the agent stops: the plane refuses its token", slog.Int("status", unauthorized.Status))
		return unauthorized
	}
	goodbye, cancel := context.WithTimeout(context.WithoutCancel(parent), 3*time.Second)
	defer cancel()
	if err := a.heartbeat(goodbye, true); err != nil {
		a.log.Warn("the last heartbeat was not answered", slog.Any("err", err))
	}
	a.log.Info("agent stopped")
	return nil
}

// stopRuns brings the runs to an end: first by asking, after the grace by force.
func (a *Agent) stopRuns(work context.Context, taking *sync.WaitGroup) {
	if n := a.runs.count(); n > 0 {
		a.log.Info("stopping", slog.Int("running", n))
	}
	for _, r := range a.runs.all() {
		r.requestStop()
	}
	grace, cancel := context.WithTimeout(work, a.cfg.StopGrace)
	defer cancel()
	taken := make(chan struct{})
	go func() { // a claim under way may still bring a run, which hands itself back
		taking.Wait()
		close(taken)
	}()
	select {
	case <-taken:
	case <-grace.Done():
	}
	if a.waitIdle(grace) {
		return
	}
	for _, r := range a.runs.all() {
		r.lease.force()
	}
	forced, cancel := context.WithTimeout(work, executeGrace+finalWithin)
	defer cancel()
	a.waitIdle(forced)
}

// lastRuns waits for runs whose reports the plane did not take: their leases
// ended with work, so all that is left to them is to save what they have.
func (a *Agent) lastRuns() {
	last, cancel := context.WithTimeout(context.Background(), executeGrace+finalWithin)
	defer cancel()
	if !a.waitIdle(last) {
		a.log.Error("runs did not end", slog.Int("running", a.runs.count()))
	}
}

// finalWithin is how long a final report may take at a stop.
const finalWithin = 3 * time.Second

// waitIdle waits until no run is left.
func (a *Agent) waitIdle(ctx context.Context) bool {
	for {
		a.runs.mu.Lock()
		n, gone := len(a.runs.held), a.runs.gone
		a.runs.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-gone:
		}
	}
}

// start begins to carry an assignment out. sent is when the claim was sent.
func (a *Agent) start(ctx context.Context, as *protocol.Assignment, sent time.Duration) {
	r, held, work := a.newRun(ctx, as, sent)
	if old := a.runs.add(r); old != nil {
		old.lease.lose(errLeaseLost) // the plane has a newer generation: this one
	}
	if closed(a.stopping) {
		r.requestStop()
	}
	go func() {
		defer a.slots.give(1)
		defer a.runs.remove(r)
		defer r.lease.release()
		r.main(held, work)
	}()
}
