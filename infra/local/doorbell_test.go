package local

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// meddler stands between relay and the queue and keeps what went through.
type meddler struct {
	queue.Sender
	meddle func(m *meddler, name string, ms []queue.Outgoing) error

	mu    sync.Mutex
	seen  map[string][][]byte // bodies by queue
	held  []letter
	first time.Time // when the first was sent
}

type letter struct {
	queue string
	m     queue.Outgoing
}

func (m *meddler) Send(ctx context.Context, name string, ms ...queue.Outgoing) error {
	m.mu.Lock()
	if m.seen == nil {
		m.seen = map[string][][]byte{}
	}
	for _, o := range ms {
		m.seen[name] = append(m.seen[name], o.Body)
	}
	m.mu.Unlock()
	return m.meddle(m, name, ms)
}

// TestDoorbells meddles with every doorbell, one way at a time: each operation
// is carried out all the same, once.
func TestDoorbells(t *testing.T) {
	pass := func(m *meddler, name string, ms []queue.Outgoing) error {
		return m.Sender.Send(context.Background(), name, ms...)
	}
	for _, tc := range []struct {
		name   string
		meddle func(m *meddler, name string, ms []queue.Outgoing) error
	}{
		{"ten times", func(m *meddler, name string, ms []queue.Outgoing) error {
			for range 10 {
				if err := pass(m, name, ms); err != nil {
					return err
				}
			}
			return nil
		}},
		{"late", func(m *meddler, name string, ms []queue.Outgoing) error {
			for i := range ms {
				ms[i].Delay = time.Duration(1+rand.IntN(2)) * time.Second
			}
			return pass(m, name, ms)
		}},
		{"first ones lost", func(m *meddler, name string, ms []queue.Outgoing) error {
			m.mu.Lock()
			n := 0
			for _, b := range m.seen[name] {
				if operationOf(b) == operationOf(ms[0].Body) {
					n++
				}
			}
			m.mu.Unlock()
			if n == 1 {
				return nil
			}
			return pass(m, name, ms)
		}},
		{"out of order", func(m *meddler, name string, ms []queue.Outgoing) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, o := range ms {
				m.held = append(m.held, letter{name, o})
			}
			if len(m.held) < 4 {
				return nil
			}
			for i := len(m.held) - 1; i >= 0; i-- {
				if err := m.Sender.Send(context.Background(), m.held[i].queue, m.held[i].m); err != nil {
					return err
				}
			}
			m.held = nil
			return nil
		}},
		{"refused for a while", func(m *meddler, name string, ms []queue.Outgoing) error {
			m.mu.Lock()
			if m.first.IsZero() {
				m.first = time.Now()
			}
			out := time.Since(m.first) < 1500*time.Millisecond
			m.mu.Unlock()
			if out {
				return queue.ErrUnavailable
			}
			return pass(m, name, ms)
		}},
		{"accepted and yet an error", func(m *meddler, name string, ms []queue.Outgoing) error {
			if err := pass(m, name, ms); err != nil {
				return err
			}
			if rand.IntN(2) == 0 {
				return queue.ErrUnavailable
			}
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, t.TempDir(), func(e *Engine) {
				e.Relay.Queue = &meddler{Sender: e.queue, meddle: tc.meddle}
			})
			s.once(s.ask(10))
			if l := s.letters(); len(l) > 0 {
				t.Errorf("dead letters: %+v", l)
			}
		})
	}
}

func operationOf(body []byte) string {
	var d protocol.Doorbell
	_ = json.Unmarshal(body, &d)
	return d.Operation
}

// TestStrangeDoorbells puts doorbells on a cluster's queue that are not, or no
// longer, for anything there.
func TestStrangeDoorbells(t *testing.T) {
	t.Parallel()
	m := &meddler{meddle: func(m *meddler, name string, ms []queue.Outgoing) error {
		return m.Sender.Send(context.Background(), name, ms...)
	}}
	s := newSite(t, t.TempDir(), func(e *Engine) {
		m.Sender = e.queue
		e.Relay.Queue = m
	})
	ctx := t.Context()
	elsewhere, err := s.Registry.Create(ctx, PlaneCall(), "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	done := s.ask(4)
	s.once(done)
	before := map[string]int64{}
	for _, op := range s.finish(done...) {
		before[op.Spec.ID] = op.Version
	}
	name := "cluster-" + s.cluster
	ring := func(bodies ...string) {
		t.Helper()
		for _, b := range bodies {
			if err := s.queue.Send(ctx, name, queue.Outgoing{Body: []byte(b)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	bell := func(d protocol.Doorbell) string {
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	yesterday := time.Now().Add(-24 * time.Hour)
	// Harmless and nothing to tell: they name something that is over, or unknown.
	for _, d := range done {
		ring(bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: d, Cluster: s.cluster, SentAt: yesterday}),
			bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: d, Cluster: s.cluster, Generation: 99, SentAt: yesterday}),
			bell(protocol.Doorbell{Version: 1, Kind: protocol.KindAttention, Operation: d, Cluster: s.cluster, SentAt: yesterday}))
	}
	for range 3 {
		ring(bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: id.New(id.Operation, time.Now()), Cluster: s.cluster}),
			bell(protocol.Doorbell{Version: 1, Kind: protocol.KindPreview, Preview: id.New(id.Preview, time.Now()), Cluster: s.cluster}))
	}
	m.mu.Lock()
	all := slices.Clone(m.seen[name])
	m.mu.Unlock()
	for _, b := range all { // every doorbell there ever was, once more
		ring(string(b))
	}
	// Put aside: nobody can read them, or they are for somebody else.
	aside := []string{
		"", "{", "null", "[]", "not JSON", "\u202e\ufffd", strings.Repeat("a", 60<<10),
		`{"version":1,"kind":"operation"}`,
		bell(protocol.Doorbell{Version: 2, Kind: protocol.KindOperation, Operation: done[0], Cluster: s.cluster}),
		bell(protocol.Doorbell{Version: 1, Kind: "explode", Operation: done[0], Cluster: s.cluster}),
		bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: "op_'; drop table items", Cluster: s.cluster}),
		bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: done[0], Generation: -1, Cluster: s.cluster}),
		bell(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: done[0], Cluster: elsewhere.Cluster.ID}),
	}
	if err := s.queue.Send(ctx, name, queue.Outgoing{Body: nil}); err == nil {
		t.Log("the queue takes an empty message")
	} else {
		aside = aside[1:]
	}
	ring(aside...)
	s.wait("the strange doorbells are put aside", time.Minute, func() bool { return len(s.letters()) >= len(aside) })
	s.wait("the queue is empty", time.Minute, func() bool {
		n, err := s.queue.Depth(ctx, name)
		return err == nil && n == 0
	})
	if got := len(s.letters()); got != len(aside) {
		t.Errorf("%d dead letters, want %d", got, len(aside))
	}
	after := map[string]int64{}
	for _, op := range s.finish(done...) {
		after[op.Spec.ID] = op.Version
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("operations that had ended were written to:\n%s", diff)
	}
	s.once(done)
	op, err := s.admit("node.uncordon", "node:node-00", nil) // and the next one goes
	if err != nil {
		t.Fatal(err)
	}
	s.once([]string{op.Spec.ID})
}

// TestDoorbellOfAnother puts one cluster's doorbell on another one's queue: it
// is put aside there, and its operation goes on where it belongs.
func TestDoorbellOfAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t, t.TempDir(), func(e *Engine) {
		e.Relay.Queue = &meddler{Sender: e.queue, meddle: func(m *meddler, name string, ms []queue.Outgoing) error {
			m.mu.Lock()
			n := len(m.seen[name])
			m.mu.Unlock()
			if n == 1 && name != "plane" { // the first goes to the wrong queue, and to the right one
				if err := m.Sender.Send(context.Background(), "cluster-elsewhere", ms...); err != nil {
					return err
				}
			}
			return m.Sender.Send(context.Background(), name, ms...)
		}}
		if err := e.queue.Ensure(t.Context(), "cluster-elsewhere"); err != nil {
			t.Fatal(err)
		}
	})
	op, err := s.admit("node.cordon", "node:node-03", nil)
	if err != nil {
		t.Fatal(err)
	}
	ms, err := s.queue.Receive(t.Context(), "cluster-elsewhere", 10, queue.MaxWait, time.Minute)
	if err != nil || len(ms) != 1 {
		t.Fatalf("%d messages, %v", len(ms), err)
	}
	if err := s.queue.Bury(t.Context(), "cluster-elsewhere", ms[0], "for another cluster"); err != nil {
		t.Fatal(err)
	}
	s.wait("it is a dead letter", time.Minute, func() bool { return len(s.letters()) == 1 })
	s.once([]string{op.Spec.ID})
}
