package loop

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	testLease = 15 * time.Second
	testCall  = 10 * time.Second
	testToken = "opt_test-token"
)

// plane is a plane in memory: it keeps operations with the domain's own
// transitions, so its leases, generations and refusals are the real ones.
type plane struct {
	cluster string
	queue   *memQueue

	mu      sync.Mutex
	changed chan struct{}
	ops     map[string]*operation.Operation
	entries map[string][]operation.Entry
	heard   []protocol.Report // reports that came, resends too
	calls   map[string]int
	rules   []rule
	denied  bool
	away    bool
	// A process that sends its report number dieAt (1 is the first) dies of it:
	// nothing of it is heard any more.
	dieAt      int
	dieApplied bool
	dead       map[string]bool
	beats      []protocol.Heartbeat
	answer     protocol.HeartbeatAnswer
	parts      []protocol.InventoryRequest
	events     map[int64]protocol.Event
	through    int64
	preview    map[string]protocol.PreviewAnswer
	lenient    bool // the answer to a step's begin never refuses it
	untold     bool // assignments do not tell what attempts failed with
	buried     []string
}

// rule spoils the next calls of a path.
type rule struct {
	path  string
	times int
	// applied: the plane does what it was asked and the answer gets lost.
	applied bool
	status  int    // answer this instead, when set
	after   string // its Retry-After
}

func newPlane() *plane {
	p := &plane{
		cluster: id.Derive(id.Cluster, "test"), changed: make(chan struct{}),
		ops: map[string]*operation.Operation{}, entries: map[string][]operation.Entry{},
		calls: map[string]int{}, dead: map[string]bool{}, events: map[int64]protocol.Event{}, preview: map[string]protocol.PreviewAnswer{},
	}
	p.queue = newMemQueue(p)
	p.answer = protocol.HeartbeatAnswer{
		AgentID: id.Derive(id.Agent, "test"), Cluster: p.cluster,
		LeaseMS: testLease.Milliseconds(), CallDeadlineMS: testCall.Milliseconds(),
	}
	return p
}

func (p *plane) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait waits until ok holds under the plane's lock, or fails the test.
func (p *plane) wait(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		p.mu.Lock()
		good, changed := ok(), p.changed
		p.mu.Unlock()
		if good {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			p.mu.Lock()
			defer p.mu.Unlock()
			for op, es := range p.entries {
				for _, e := range es {
					t.Logf("%s %s %s %s->%s %s %s %s", op[:8], e.At.Format("05.000"), e.Kind, e.From, e.To, e.Step, e.Reason, e.Detail)
				}
			}
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

func (p *plane) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.notify()
}

func (p *plane) spoil(r rule) { p.locked(func() { p.rules = append(p.rules, r) }) }

// apply makes a transition.
func (p *plane) apply(op *operation.Operation, c operation.Change) error {
	s, entries, err := operation.Apply(&op.Spec, op.State, c, time.Now())
	if errors.Is(err, operation.ErrNoChange) {
		return nil
	}
	if err != nil {
		return err
	}
	op.State = s
	p.entries[s.ID] = append(p.entries[s.ID], entries...)
	p.notify()
	return nil
}

// add admits and dispatches an operation without ringing for it.
func (p *plane) add(name string, deadline time.Duration, steps ...operation.PlanStep) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	op := &operation.Operation{Spec: operation.Spec{
		ID: id.Derive(id.Operation, name), Request: operation.Request{Type: "node.drain", Reason: "test"},
		TargetID: id.Derive(id.Node, "n1"), TargetName: "node:n1", Cluster: p.cluster, Steps: steps,
		Resources: []string{id.Derive(id.Node, "n1")}, CorrelationID: "cor-" + name, CreatedAt: now,
	}}
	for i := range op.Spec.Steps {
		op.Spec.Steps[i].ID = id.Derive(id.Step, name, op.Spec.Steps[i].Name)
		op.Spec.Steps[i].Resources = op.Spec.Resources
	}
	s, entries, err := operation.Admit(&op.Spec, now.Add(deadline))
	if err != nil {
		panic(err)
	}
	op.State = s
	p.ops[s.ID], p.entries[s.ID] = op, entries
	if err := p.apply(op, operation.Dispatch{}); err != nil {
		panic(err)
	}
	return s.ID
}

// ring sends a doorbell.
func (p *plane) ring(op, kind string) {
	p.mu.Lock()
	generation := p.ops[op].State.Generation
	p.mu.Unlock()
	body, _ := json.Marshal(protocol.Doorbell{Version: 1, Kind: kind, Operation: op, Cluster: p.cluster, Generation: generation, SentAt: time.Now()})
	p.queue.send(body)
}

// submit admits an operation and rings for it.
func (p *plane) submit(name string, deadline time.Duration, steps ...operation.PlanStep) string {
	op := p.add(name, deadline, steps...)
	p.ring(op, protocol.KindOperation)
	return op
}

func (p *plane) cancel(t *testing.T, op string) {
	t.Helper()
	p.mu.Lock()
	err := p.apply(p.ops[op], operation.RequestCancel{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "test"})
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *plane) state(op string) operation.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ops[op].State.Clone()
}

func (p *plane) ended(t *testing.T, op string, within time.Duration) operation.State {
	t.Helper()
	p.wait(t, within, "the end of the operation", func() bool { return p.ops[op].State.Phase.Terminal() })
	return p.state(op)
}

// sweep does what the plane's sweep does, until ctx ends.
func (p *plane) sweep(ctx context.Context) {
	for pause(ctx, 500*time.Millisecond) {
		var rings []string
		p.mu.Lock()
		for _, op := range p.ops {
			s := &op.State
			now := time.Now()
			over := s.Lease == nil || now.After(s.Lease.Until.Add(testCall))
			switch {
			case s.Phase.Terminal():
			case over && now.After(s.Deadline):
				_ = p.apply(op, operation.Expire{})
			case s.Lease != nil && over:
				_ = p.apply(op, operation.LoseLease{})
				rings = append(rings, s.ID)
			case s.Lease == nil && now.After(operation.OneMachine.RingDue(s)):
				_ = p.apply(op, operation.Ring{})
				rings = append(rings, s.ID)
			}
		}
		p.mu.Unlock()
		for _, op := range rings {
			p.ring(op, protocol.KindOperation)
		}
	}
}

// ServeHTTP applies the rules and answers.
func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	p.calls[r.URL.Path]++
	away, denied := p.away, p.denied || r.Header.Get("Authorization") != "Bearer "+testToken
	var now rule
	for i := range p.rules {
		if p.rules[i].path == r.URL.Path && p.rules[i].times > 0 {
			p.rules[i].times--
			now = p.rules[i]
			break
		}
	}
	p.mu.Unlock()
	var who struct{ Boot string }
	_ = json.Unmarshal(body, &who)
	p.mu.Lock()
	dead := p.dead[who.Boot]
	if r.URL.Path == "/v1/agent/reports" && p.dieAt > 0 {
		if p.dieAt--; p.dieAt == 0 {
			p.dead[who.Boot] = true
			dead, now.applied, now.path = !p.dieApplied, true, r.URL.Path
			p.notify()
		}
	}
	p.mu.Unlock()
	switch {
	case dead || away || now.path != "" && !now.applied && now.status == 0:
		panic(http.ErrAbortHandler)
	case denied:
		http.Error(w, `{"error_code":"unauthenticated","detail":"no such token"}`, http.StatusUnauthorized)
		return
	case now.status != 0:
		w.Header().Set("Retry-After", now.after)
		http.Error(w, `{"error_code":"x"}`, now.status)
		return
	}
	rec := httptest.NewRecorder()
	p.serve(rec, r.URL.Path, body)
	if now.applied {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

func (p *plane) serve(w http.ResponseWriter, path string, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.notify()
	var out any
	switch path {
	case "/v1/agent/heartbeat":
		var in protocol.Heartbeat
		_ = json.Unmarshal(body, &in)
		p.beats = append(p.beats, in)
		p.answer.ServerTime = time.Now()
		out = p.answer
		p.answer.FullInventory = false
	case "/v1/agent/claims":
		var in protocol.ClaimRequest
		_ = json.Unmarshal(body, &in)
		answer := protocol.ClaimAnswer{}
		for _, c := range in.Claims {
			answer.Results = append(answer.Results, p.claim(in, c))
		}
		out = answer
	case "/v1/agent/renewals":
		var in protocol.RenewRequest
		_ = json.Unmarshal(body, &in)
		answer := protocol.RenewAnswer{}
		for _, e := range in.Renewals {
			answer.Results = append(answer.Results, p.renew(in, e))
		}
		out = answer
	case "/v1/agent/reports":
		var in protocol.ReportRequest
		_ = json.Unmarshal(body, &in)
		answer := protocol.ReportAnswer{}
		for _, r := range in.Reports {
			answer.Results = append(answer.Results, p.report(in, r))
		}
		out = answer
	case "/v1/agent/inventory":
		var in protocol.InventoryRequest
		_ = json.Unmarshal(body, &in)
		p.parts = append(p.parts, in)
		out = protocol.InventoryAnswer{Reporter: p.answer.Reporter}
	case "/v1/agent/events":
		var in protocol.EventsRequest
		_ = json.Unmarshal(body, &in)
		for _, e := range in.Events {
			p.events[e.N] = e
			p.through = max(p.through, e.N)
		}
		out = protocol.EventsAnswer{Through: p.through, Refused: []protocol.RefusedEvent{}}
	default:
		p.servePreview(w, path, body)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (p *plane) servePreview(w http.ResponseWriter, path string, body []byte) {
	const prefix = "/v1/agent/previews/"
	if len(path) <= len(prefix) || path[:len(prefix)] != prefix {
		http.NotFound(w, nil)
		return
	}
	name := path[len(prefix):]
	if len(body) == 0 {
		_ = json.NewEncoder(w).Encode(protocol.PreviewRequest{ID: name, Type: "node.drain"})
		return
	}
	var in protocol.PreviewAnswer
	_ = json.Unmarshal(body, &in)
	p.preview[name] = in
}
