package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// sent is one request that a client made under a key of its own.
type sent struct {
	key      string
	req      request
	id       string // of the operation, when it was accepted
	accepted bool
	refused  int // the status of the refusal
	unsure   int // tries whose answer never came
	cancel   int // the status of the cancel, 0 when there was none
}

// load is the clients and what they were told.
type load struct {
	c       *client
	targets targets

	mu       sync.Mutex
	sent     []*sent
	problems []string
}

type targets struct{ nodes, devices, deployments []thing }

func (l *load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 50 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// request draws what to ask for. Deadlines are short, so that everything ends
// soon after the load does.
func (l *load) request(r *rand.Rand, reason string) request {
	q := request{Reason: reason, Deadline: in(time.Duration(1500+r.IntN(9000)) * time.Millisecond)}
	node := func() string { return pick(r, l.targets.nodes).ID }
	switch n := r.IntN(100); {
	case n < 32:
		q.Type, q.Target = "node.cordon", node()
	case n < 64:
		q.Type, q.Target, q.Payload = "node.uncordon", node(), map[string]any{"take_over": true}
	case n < 78:
		q.Type, q.Target = "node.drain", node()
		q.Payload = map[string]any{"on_cancel": pick(r, []string{"leave", "restore"}), "grace_period_seconds": 1}
	case n < 88:
		q.Type, q.Target, q.Payload = "device.reset", pick(r, l.targets.devices).ID, map[string]any{"drain": r.IntN(3) > 0}
	case n < 94:
		q.Type, q.Target = "deployment.roll", pick(r, l.targets.deployments).ID
	default:
		q.Type, q.Target = "plan", "fleet"
		var children []request
		for i := range 2 + r.IntN(4) {
			children = append(children, request{Type: pick(r, []string{"node.cordon", "node.uncordon"}), Target: node(), Reason: fmt.Sprintf("%s child %d", reason, i)})
		}
		q.Payload = map[string]any{"children": children, "max_in_flight": 2, "max_failures": len(children)}
	}
	return q
}

// run is one client: it asks, retries under the same key while no answer comes,
// cancels some, and asks some again. It ends with ctx, but never between a try
// and its answer.
func (l *load) run(ctx context.Context, seed uint64, n int) {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := 0; ctx.Err() == nil; i++ {
		s := &sent{key: fmt.Sprintf("k-%d-%d-%d", seed, n, i)}
		s.req = l.request(r, "load "+s.key)
		cancels, again, gap := r.IntN(100) < 18, r.IntN(100) < 10, time.Duration(r.IntN(60))*time.Millisecond
		cancelAfter := time.Duration(r.IntN(4)) * time.Duration(r.IntN(150)) * time.Millisecond
		a := l.insist(s, http.MethodPost, "/v1/operations", s.req, s.key)
		switch {
		case a.status == http.StatusAccepted || a.status == http.StatusOK:
			var o op
			if err := json.Unmarshal(a.body, &o); err != nil || o.ID == "" {
				l.problem("request %s: %s", s.key, a)
			}
			s.id, s.accepted = o.ID, true
			if a.status == http.StatusOK && (s.unsure == 0 || a.header.Get("Idempotency-Replayed") != "true") {
				l.problem("request %s was answered as a replay (%q) after %d unanswered tries", s.key, a.header.Get("Idempotency-Replayed"), s.unsure)
			}
		case a.status == http.StatusConflict || a.status == http.StatusUnprocessableEntity && s.unsure > 0: // its deadline has passed meanwhile
			s.refused = a.status
		default:
			l.problem("request %s (%s): %s", s.key, s.req.Type, a)
			s.refused = max(a.status, 1)
		}
		l.mu.Lock()
		l.sent = append(l.sent, s)
		l.mu.Unlock()
		if s.accepted && again {
			l.replay(s)
		}
		if s.accepted && cancels {
			pause(ctx, cancelAfter)
			c := l.insist(&sent{}, http.MethodDelete, "/v1/operations/"+s.id, nil, "")
			s.cancel = c.status
			switch {
			case c.status == http.StatusOK, c.status == http.StatusAccepted, c.status == http.StatusNoContent:
			case c.status == http.StatusConflict && c.code() == "not_cancelable":
			default:
				l.problem("cancel of %s: %s", s.id, c)
			}
		}
		pause(ctx, gap)
	}
}

// replay asks once more under the same key.
func (l *load) replay(s *sent) {
	a := l.insist(&sent{}, http.MethodPost, "/v1/operations", s.req, s.key)
	var o op
	_ = json.Unmarshal(a.body, &o)
	if a.status != http.StatusOK || o.ID != s.id || a.header.Get("Idempotency-Replayed") != "true" {
		l.problem("replay of %s, which is %s: %s", s.key, s.id, a)
	}
}

// insist sends until an answer comes that is not about the plane's own trouble.
func (l *load) insist(s *sent, method, path string, body any, key string) answer {
	end := time.Now().Add(time.Minute)
	for {
		a := l.c.call(method, path, body, key)
		if a.status != 0 && a.status != http.StatusServiceUnavailable && a.code() != "idempotency_in_flight" {
			return a
		}
		s.unsure++
		if time.Now().After(end) {
			l.problem("no answer to %s %s for a minute: %s", method, path, a)
			return a
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
