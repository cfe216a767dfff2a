package loop

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// The agent tells how long the plane and the queue have been silent, and both
// are heard again.
func TestStatus(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.start()
		s := b.agent.Status()
		if s.Heard >= 0 || s.QueueHeard >= 0 || s.Leases != 0 || s.Stopping {
			t.Errorf("before the first answer: %+v", s)
		}
		b.plane.wait(t, time.Minute, "heartbeats", func() bool { return len(b.plane.beats) > 1 })
		if s = b.agent.Status(); s.AgentID != b.plane.answer.AgentID || s.Cluster != b.plane.cluster || s.Heard > 6*time.Second || s.Heard < 0 || s.QueueError != "" {
			t.Errorf("in order: %+v", s)
		}
		b.plane.locked(func() { b.plane.away = true })
		time.Sleep(time.Minute) // the bubble's time
		s = b.agent.Status()
		if s.Heard < 50*time.Second || s.Heard > 70*time.Second || s.HeartbeatEvery != heartbeatEvery || len(s.Stuck) != 0 {
			t.Errorf("plane away for a minute: %+v", s)
		}
		if b.agent.Metrics().PlaneErrors.Load() == 0 {
			t.Error("no call is counted as failed")
		}
		b.plane.locked(func() { b.plane.away = false })
		time.Sleep(20 * time.Second)
		if s = b.agent.Status(); s.Heard > 6*time.Second {
			t.Errorf("plane back: %+v", s)
		}
	})
}

// hangs is an executor whose capabilities cannot be had while blocked is open.
type hangs struct {
	*script
	blocked chan struct{}
}

func (h hangs) Capabilities() []protocol.Capability {
	<-h.blocked
	return h.script.Capabilities()
}

// A loop that does not come round is told of: here the heartbeat's, which asks
// an executor that does not answer for its capabilities.
func TestStuckLoopIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		h := hangs{b.exec, make(chan struct{})}
		b.cfg.Executor = h
		b.start()
		time.Sleep(20 * time.Second)
		if s := b.agent.Status(); len(s.Stuck) != 0 {
			t.Errorf("after 20 s: %q", s.Stuck)
		}
		time.Sleep(time.Minute)
		if s := b.agent.Status(); !slices.Contains(s.Stuck, "heartbeat") {
			t.Errorf("after 80 s: %q", s.Stuck)
		}
		close(h.blocked)
		time.Sleep(time.Second)
		if s := b.agent.Status(); len(s.Stuck) != 0 {
			t.Errorf("going on: %q", s.Stuck)
		}
	})
}

// deaf is a queue that does not answer while broken.
type deaf struct {
	*memQueue
	broken atomic.Bool
}

func (d *deaf) Receive(ctx context.Context, name string, most int, wait, visibility time.Duration) ([]queue.Message, error) {
	if d.broken.Load() {
		return nil, errors.New("dial: refused, password=hunter2")
	}
	return d.memQueue.Receive(ctx, name, most, min(wait, time.Second), visibility)
}

// The queue away: told in the status and counted, and work goes on afterwards.
func TestQueueAwayIsToldAndResumed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		q := &deaf{memQueue: b.plane.queue}
		b.cfg.Queue = q
		b.start()
		time.Sleep(10 * time.Second)
		q.broken.Store(true)
		time.Sleep(5 * time.Minute)
		s, m := b.agent.Status(), b.agent.Metrics()
		if !strings.Contains(s.QueueError, "refused") || strings.Contains(s.QueueError, "hunter2") || s.QueueHeard < 4*time.Minute || s.Heard > 10*time.Second {
			t.Errorf("queue away: %+v", s)
		}
		tries := m.QueueErrors.Load()
		if tries < 30 || tries > 90 { // a wait of 5 s between, give or take a fifth
			t.Errorf("%d tries in 5 minutes", tries)
		}
		polls := m.QueuePolls.Load()
		q.broken.Store(false)
		op := b.plane.submit("after", time.Hour, drainPlan()...)
		if e := b.plane.ended(t, op, time.Minute); e.Phase != operation.Succeeded {
			t.Errorf("ended %s", e.Phase)
		}
		if s = b.agent.Status(); s.QueueError != "" || s.QueueHeard > 10*time.Second {
			t.Errorf("queue back: %+v", s)
		}
		if m.QueuePolls.Load() == polls {
			t.Error("no poll is counted")
		}
	})
}

func TestTally(t *testing.T) {
	t.Parallel()
	var tally Tally
	for i := range 40 {
		tally.Add(string(rune('a' + i)))
	}
	labels, total := 0, int64(0)
	tally.Each(func(label string, n int64) {
		labels++
		total += n
		if label == "other" && n != 40-tallyMost {
			t.Errorf("other: %d", n)
		}
	})
	if labels != tallyMost+1 || total != 40 {
		t.Errorf("%d labels, %d in all", labels, total)
	}
}

// What the agent did is in its counters, by outcome and by category.
func TestCounters(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		tries := 0
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if tries++; tries == 1 {
				_, end := task.Begin("evict", "pod")
				end("throttled", "")
				return executor.Outcome{Class: operation.OutcomeTransient, Detail: "busy"}
			}
			return b.exec.effect(ctx, task)
		}
		b.plane.answer.Reporter = true
		b.exec.fleet = protocol.Inventory{Nodes: []protocol.Node{{UID: "n1", Name: "n1"}}, Devices: []protocol.Device{{UID: "d1"}}}
		b.start()
		op := b.plane.submit("counted", time.Hour, drainPlan()...)
		b.plane.ended(t, op, time.Minute)
		b.exec.deltas <- executor.Delta{Events: []protocol.Event{{Type: "node.joined"}, {Type: "node.not_ready"}}}
		b.plane.wait(t, time.Minute, "both events", func() bool { return b.plane.through == 2 })
		synctest.Wait() // the plane has them; now the agent has read so too
		if err := b.halt(); err != nil {
			t.Fatal(err)
		}
		m := b.agent.Metrics()
		got := map[string]int64{"objects": m.Objects.Load(), "snapshots": m.Snapshots.Load(), "events": m.EventsSent.Load(), "lost": m.EventsLost.Load()}
		m.Ended.Each(func(l string, n int64) { got["ended "+l] = n })
		m.Steps.Each(func(l string, n int64) { got["step "+l] = n })
		m.Effects.Each(func(l string, n int64) { got["effect "+l] = n })
		want := map[string]int64{"objects": 2, "snapshots": 1, "events": 2, "lost": 0, "ended succeeded": 1,
			"step done": 4, "step transient": 1, "effect ok": 2, "effect throttled": 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// A token that is replaced while the agent runs is sent from then on, on the
// queue's calls too.
func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	var token atomic.Value
	token.Store("opt_first")
	seen := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	a, err := New(Config{PlaneURL: server.URL, Token: "opt_first", TokenNow: func() string { return token.Load().(string) }, Name: "a", Version: "1", Executor: &script{}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := a.sources.of(protocol.HeartbeatAnswer{Cluster: "clu_1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"opt_first", "opt_second"} {
		token.Store(want)
		if err := a.heartbeat(t.Context(), false); err == nil {
			t.Error("the heartbeat was answered")
		}
		if _, err := src.Receive(t.Context(), src.name, 1, 0, time.Minute); err == nil {
			t.Error("the queue answered")
		}
		for range 2 {
			if got := <-seen; got != "Bearer "+want {
				t.Errorf("sent %q, want %q", got, want)
			}
		}
	}
}
