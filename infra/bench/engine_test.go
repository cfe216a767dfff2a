package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// rig is an engine on a loopback port with one agent of the bench cluster,
// whose simulated steps take no time: what is measured is everything else.
type rig struct {
	engine *local.Engine
	url    string
	token  string
	data   string
	client *http.Client

	agentCalls, userCalls atomic.Int64

	stop func() // ends engine and agent; may be called twice
}

func start(tb testing.TB) *rig {
	tb.Helper()
	local.TuneMemory() // as opsplane up does
	ctx, cancel := context.WithCancel(context.Background())
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	data := tb.TempDir()
	e, err := local.New(ctx, local.Options{Data: data, Addr: "127.0.0.1:0", Logger: quiet, RequestsPerSecond: 1e6, Waits: 10_000})
	if err != nil {
		tb.Fatal(err)
	}
	l, err := e.Listen(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	token, _, err := e.AdminToken(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Run(ctx, l) })
	r := &rig{engine: e, url: "http://" + l.Addr().String(), token: token, data: data}
	transport := func(calls *atomic.Int64) http.RoundTripper {
		return counted{&http.Transport{MaxIdleConnsPerHost: 2048, DialContext: (&net.Dialer{}).DialContext}, calls}
	}
	r.client = &http.Client{Transport: transport(&r.userCalls)}
	c, err := e.Registry.Create(ctx, local.PlaneCall(), "bench")
	if err != nil {
		tb.Fatal(err)
	}
	x, err := sim.Open(sim.Options{Scenario: "bench.yaml", StateDir: tb.TempDir(), Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	agent, err := loop.New(loop.Config{PlaneURL: r.url, Token: c.Secret, Name: "bench-0", Version: "bench", Executor: x, Concurrency: 1024, Logger: quiet,
		HTTPClient: &http.Client{Transport: transport(&r.agentCalls)}})
	if err != nil {
		tb.Fatal(err)
	}
	wg.Go(func() { _ = agent.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		_ = x.Close()
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(r.stop)
	for range 200 {
		if len(r.objects(tb, operation.KindDeployment)) == 1000 {
			return r
		}
		time.Sleep(50 * time.Millisecond)
	}
	tb.Fatal("the bench cluster's inventory did not arrive")
	return nil
}

func (r *rig) objects(tb testing.TB, kind string) []fleet.Object {
	tb.Helper()
	out, err := record.All[fleet.Object](context.Background(), r.engine.Store.Ledger, ledger.Query{Index: ledger.List, PK: record.InventoryList(kind)})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// call makes one API call and decodes its answer.
func (r *rig) call(method, path string, body any, into any) (int, error) {
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, r.url+path, rd)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err
	}
	if into != nil && resp.StatusCode < 300 {
		return resp.StatusCode, json.Unmarshal(b, into)
	}
	return resp.StatusCode, nil
}

type operationView struct {
	ID    string          `json:"id"`
	Phase operation.Phase `json:"phase"`
}

func (r *rig) create(typ, target string) (operationView, int, error) {
	var op operationView
	code, err := r.call("POST", "/v1/operations", map[string]any{"type": typ, "target": target, "reason": "bench"}, &op)
	return op, code, err
}

// quantiles prints p50 and p99 of durations as metrics in milliseconds.
func quantiles(b *testing.B, name string, ds []time.Duration) {
	if len(ds) == 0 {
		b.Fatalf("%s: nothing was measured", name)
	}
	slices.Sort(ds)
	at := func(q float64) float64 { return float64(ds[int(q*float64(len(ds)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.50), name+"-p50-ms")
	b.ReportMetric(at(0.99), name+"-p99-ms")
}

// BenchmarkCreateToClaimed: one operation at a time, from the request being sent
// to the claim's commit. Bar: p50 under 20 ms, p99 under 100 ms.
func BenchmarkCreateToClaimed(b *testing.B) {
	r := start(b)
	nodes := r.objects(b, operation.KindNode)
	const n = 300
	var ds []time.Duration
	for b.Loop() {
		for i := range n {
			sent := time.Now()
			op, code, err := r.create("node.cordon", nodes[i%len(nodes)].ID)
			if err != nil || code != 202 {
				b.Fatal(code, err)
			}
			done := r.await(b, op.ID)
			ds = append(ds, done.State.Assignments[0].From.Sub(sent))
		}
	}
	quantiles(b, "claimed", ds)
}

// await waits for an operation's end.
func (r *rig) await(tb testing.TB, id string) operation.Operation {
	tb.Helper()
	end := time.Now().Add(time.Minute)
	for time.Now().Before(end) {
		op, err := r.engine.Store.Load(context.Background(), id)
		if err != nil {
			tb.Fatal(err)
		}
		if op.State.Phase.Terminal() {
			if op.State.Phase != operation.Succeeded {
				tb.Fatalf("operation %s is %s: %+v", id, op.State.Phase, op.State.Result)
			}
			return op
		}
		time.Sleep(time.Millisecond)
	}
	tb.Fatalf("operation %s did not end", id)
	return operation.Operation{}
}

// BenchmarkOperations: rolls of four steps over HTTP, each to its proven end,
// durable. Clients learn of the end from the event stream, as a program would
// that has many operations under way. Bar: 1,000 a second on 2 cores.
func BenchmarkOperations(b *testing.B) {
	r := start(b)
	deployments := r.objects(b, operation.KindDeployment)
	ends := newEnds(r)
	n := count(b, "OPSPLANE_BENCH_OPERATIONS", 20_000)
	for b.Loop() {
		before, began := r.cost(b), time.Now()
		var wg sync.WaitGroup
		next := make(chan int)
		errs := make(chan error, len(deployments))
		for w := range len(deployments) {
			wg.Go(func() {
				for range next {
					op, code, err := r.create("deployment.roll", deployments[w].ID)
					if err == nil && code != http.StatusAccepted {
						err = fmt.Errorf("create answered %d", code)
					}
					if err == nil {
						err = ends.wait(op.ID)
					}
					if err != nil {
						select {
						case errs <- err:
						default:
						}
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		wg.Wait()
		select {
		case err := <-errs:
			b.Fatal(err)
		default:
		}
		b.ReportMetric(float64(n)/time.Since(began).Seconds(), "operations/s")
		r.cost(b).report(b, before, n)
	}
}

// ends follows the event stream for operations' ends.
type ends struct {
	mu      sync.Mutex
	waiting map[string]chan string
	ended   map[string]string
}

func newEnds(r *rig) *ends {
	e := &ends{waiting: map[string]chan string{}, ended: map[string]string{}}
	go func() {
		cursor := ""
		for {
			var page struct {
				Items []struct {
					Type      string `json:"type"`
					Operation string `json:"operation_id"`
				} `json:"items"`
				Next string `json:"next_cursor"`
			}
			path := "/v1/events?cluster=bench&type=operation.succeeded&limit=200&wait=10s"
			if cursor != "" {
				path += "&cursor=" + url.QueryEscape(cursor)
			}
			if code, err := r.call("GET", path, nil, &page); err != nil || code != http.StatusOK {
				return
			}
			cursor = page.Next
			e.mu.Lock()
			for _, ev := range page.Items {
				if c, ok := e.waiting[ev.Operation]; ok {
					c <- ev.Type
					delete(e.waiting, ev.Operation)
				} else {
					e.ended[ev.Operation] = ev.Type
				}
			}
			e.mu.Unlock()
		}
	}()
	return e
}

func (e *ends) wait(id string) error {
	e.mu.Lock()
	if _, ok := e.ended[id]; ok {
		delete(e.ended, id)
		e.mu.Unlock()
		return nil
	}
	c := make(chan string, 1)
	e.waiting[id] = c
	e.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("operation %s did not succeed within a minute", id)
	}
}
