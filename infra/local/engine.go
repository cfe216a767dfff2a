package local

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/bus/inproc"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/httpapi"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/planrun"
	queuesqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
)

// The files of a data folder.
const (
	ledgerFile = "opsplane.db" // everything that counts
	queueFile  = "queue.db"    // doorbells: rung again when it is lost
	adminToken = "admin.token"
)

// LedgerPath is the ledger's file in a data folder.
func LedgerPath(data string) string { return filepath.Join(data, ledgerFile) }

// Engine is an open data folder with the services over it. New opens it, Run
// serves it, Close gives it back.
type Engine struct {
	Store     *record.Store
	Admission *admission.Service
	Control   *control.Service
	Registry  *registry.Service
	Agents    *agentapi.Service
	Relay     *relay.Relay
	Sweep     *sweep.Sweep
	Plans     *planrun.Runner
	Reactor   *react.Reactor
	Alerts    *react.Service
	Receivers *notify.Service
	Tokens    *auth.Store
	Bus       *inproc.Bus

	opts   Options
	ledger *ledgersqlite.DB
	queue  *queuesqlite.DB
	api    *httpapi.API
	oidc   *auth.Verifier
	tls    *tls.Config  // nil: plain HTTP
	swept  atomic.Int64 // Unix milliseconds of the sweep's last good pass
	judges *judges      // of streams
	behind behind       // streams that could not be judged
	untold behind       // streams that could not be told
	lanes  lanes        // of receivers, that are due
	pulse  pulse        // of the reactor

	writable *writable // whether the ledger takes writes
}

// New opens the data folder, making it on first use.
func New(ctx context.Context, o Options) (_ *Engine, err error) {
	o.defaults()
	e := &Engine{opts: o, judges: newJudges()}
	if e.tls, err = o.tls(); err != nil {
		return nil, err
	}
	if o.OIDC != nil {
		if e.oidc, err = auth.NewVerifier(*o.OIDC); err != nil {
			return nil, fmt.Errorf("configure OIDC: %w", err)
		}
	}
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	defer func() {
		if err != nil {
			_ = e.closeFiles()
		}
	}()
	if err := cutOff(o.Data); err != nil {
		return nil, err
	}
	if e.ledger, err = ledgersqlite.Open(ctx, ledgersqlite.Options{Path: LedgerPath(o.Data), Now: o.Now, Logger: o.Logger}); err != nil {
		return nil, err
	}
	if e.queue, err = queuesqlite.Open(ctx, queuesqlite.Options{Path: filepath.Join(o.Data, queueFile)}); err != nil {
		return nil, err
	}
	e.writable = newWritable(e.ledger)
	e.Store = &record.Store{Ledger: e.ledger, Now: o.Now, Timing: o.Timing}
	e.Bus = inproc.New(inproc.Options{})
	e.Tokens = auth.NewStore(e.ledger, o.Now)
	e.Relay = &relay.Relay{Store: e.Store, Queue: e.queue, Bus: e.Bus, Logger: o.Logger}
	e.Agents = &agentapi.Service{Store: e.Store, Queue: e.queue, Logger: o.Logger, Reoffer: e.Relay.Reoffer}
	e.Admission = &admission.Service{Store: e.Store, Preview: e.Agents.Preview}
	e.Control = &control.Service{Store: e.Store}
	e.Registry = &registry.Service{Store: e.Store, Tokens: e.Tokens, Queues: e.queue}
	e.Sweep = &sweep.Sweep{Store: e.Store, Relay: e.Relay, Queue: e.queue, Logger: o.Logger}
	e.Reactor = &react.Reactor{Store: e.Store, Logger: o.Logger}
	e.Alerts = &react.Service{Store: e.Store}
	e.Sweep.React = e.reactDue
	e.Receivers = &notify.Service{Store: e.Store, Logger: o.Logger, Allow: o.WebhookAllow, Base: o.PublicURL}
	e.Sweep.Notify = e.notifyDue
	e.Plans = &planrun.Runner{Store: e.Store, Admission: e.Admission}
	e.swept.Store(time.Now().UnixMilli())
	e.reactorLives()
	if err := e.ensureQueues(ctx); err != nil {
		return nil, err
	}
	if e.api, err = e.newAPI(); err != nil {
		return nil, err
	}
	return e, nil
}

// ensureQueues makes the queues that should exist: the queue's file may be a
// fresh one.
func (e *Engine) ensureQueues(ctx context.Context) error {
	if err := e.queue.Ensure(ctx, relay.PlaneQueue); err != nil {
		return fmt.Errorf("make the plane's queue: %w", err)
	}
	return e.Sweep.EnsureQueues(ctx)
}

// Handler is the engine's HTTP API.
func (e *Engine) Handler() http.Handler { return e.api }

// Clusters lists the clusters.
func (e *Engine) Clusters(ctx context.Context) ([]fleet.Cluster, error) { return e.Store.Clusters(ctx) }

// AdminToken returns the first administrator's token, from the data folder's
// file or made anew when there is none; fresh tells which.
func (e *Engine) AdminToken(ctx context.Context) (token string, fresh bool, err error) {
	path := filepath.Join(e.opts.Data, adminToken)
	if b, err := os.ReadFile(path); err == nil {
		if token := string(trim(b)); token != "" {
			if _, err := e.Tokens.Authenticate(ctx, token); err == nil {
				return token, false, nil
			}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", false, fmt.Errorf("read admin token: %w", err)
	}
	any, _, err := e.Tokens.List(ctx, "", 1)
	if err != nil {
		return "", false, err
	}
	if len(any) > 0 {
		return "", false, nil // there are tokens; this folder's was revoked or taken away
	}
	_, token, write, err := e.Tokens.CreateWrite(auth.TokenSpec{Name: "first administrator", Role: auth.Admin, Force: true, CreatedBy: "opsplane up"})
	if err != nil {
		return "", false, err
	}
	// The file comes first: killed between the two, the next start finds a token
	// that counts for nothing and makes another, not one that nobody knows.
	if err := writeSecret(path, token); err != nil {
		return "", false, err
	}
	if err := e.ledger.Commit(ctx, write); err != nil {
		return "", false, fmt.Errorf("create admin token: %w", err)
	}
	return token, true, nil
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == '\r' || b[len(b)-1] == ' ') {
		b = b[:len(b)-1]
	}
	return b
}

// writeSecret writes a file that only its owner reads.
func writeSecret(path, secret string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Listen opens the engine's address.
func (e *Engine) Listen(ctx context.Context) (net.Listener, error) { return Listen(ctx, e.opts) }

// Listen opens the address, refusing one that would carry tokens in the clear,
// and a TLS pair that cannot be used. It makes nothing on disk.
func Listen(ctx context.Context, o Options) (net.Listener, error) {
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", o.Addr, err)
	}
	pair, err := o.tls()
	if err != nil {
		return nil, err
	}
	if pair == nil && !o.Insecure && !loopback(host) {
		return nil, fmt.Errorf("address %q is not loopback: give --tls-cert and --tls-key, or --insecure to send tokens in the clear", o.Addr)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Run serves the listener and runs the workers until ctx ends, then finishes
// what is under way.
func (e *Engine) Run(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	start := func(f func(context.Context)) { wg.Go(func() { f(work) }) }
	start(func(ctx context.Context) { e.follow(ctx, "dispatch", 0, nil, e.dispatch) })
	start(func(ctx context.Context) { e.follow(ctx, "publish", publishLinger, nil, e.publish) })
	start(func(ctx context.Context) { e.follow(ctx, "react", 0, e.feedLives, e.react) })
	start(e.reactLoop)
	start(func(ctx context.Context) { e.follow(ctx, "notify", 0, nil, e.notify) })
	// Receivers are given the time to answer that open requests to the server have.
	start(func(work context.Context) {
		work, end := context.WithCancel(work)
		defer end()
		defer context.AfterFunc(ctx, end)()
		e.notifyLoop(work)
	})
	start(e.sweepLoop)
	start(e.watchdog)
	start(e.retentionLoop)
	start(e.planLoop)
	srv := httpapi.Server(e.api, e.opts.Addr)
	srv.TLSConfig = e.tls
	served := make(chan error, 1)
	go func() {
		if e.tls != nil {
			served <- srv.ServeTLS(l, "", "") // its configuration has the pair
			return
		}
		served <- srv.Serve(l)
	}()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		if err = srv.Shutdown(drain); errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close() // long polls that did not notice
		}
		cancel()
		<-served
	}
	stop()
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// Close gives the data folder back.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(e.api.Close(ctx), e.Bus.Close(ctx), e.closeFiles())
}

func (e *Engine) closeFiles() error {
	var err error
	if e.queue != nil {
		err = e.queue.Close()
	}
	if e.ledger != nil {
		err = errors.Join(err, e.ledger.Close())
	}
	return err
}

// PlaneCall is a call that the engine makes itself.
func PlaneCall() admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Plane, Rule: "the engine itself"}, Method: "LOCAL", Path: "opsplane up"}
}
