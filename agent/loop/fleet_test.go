package loop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

func nodes(from, to int, revision int64) []protocol.Node {
	var out []protocol.Node
	for i := from; i < to; i++ {
		out = append(out, protocol.Node{UID: fmt.Sprint("n", i), Name: fmt.Sprint("node-", i), Revision: revision})
	}
	return out
}

func TestReporterSendsSnapshotThenDeltas(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.fleet = protocol.Inventory{Nodes: nodes(0, 1200, 1)}
		b.plane.answer.Reporter = true
		b.plane.spoil(rule{path: "/v1/agent/inventory", times: 1}) // the first try is cut
		b.start()
		last := func() bool { return len(b.plane.parts) > 0 && b.plane.parts[len(b.plane.parts)-1].Last }
		b.plane.wait(t, 30*time.Second, "a snapshot", last)
		b.plane.mu.Lock()
		count := 0
		for i, p := range b.plane.parts {
			if p.Part != i || p.Snapshot != b.plane.parts[0].Snapshot || p.Last != (i == 2) {
				t.Errorf("part %d: %d of %s, last %v", i, p.Part, p.Snapshot, p.Last)
			}
			count += len(p.Objects.Nodes)
		}
		if count != 1200 {
			t.Errorf("%d nodes", count)
		}
		b.plane.parts = nil
		b.plane.mu.Unlock()

		began := time.Now()
		for r := range int64(50) { // a burst is one call, with the newest of each
			b.exec.deltas <- executor.Delta{Objects: protocol.Inventory{Nodes: nodes(0, 3, r+2)}}
		}
		b.exec.deltas <- executor.Delta{Gone: []string{"node/n2"}}
		b.plane.wait(t, time.Second, "the deltas", func() bool {
			n := len(b.plane.parts)
			return n > 0 && slices.Contains(b.plane.parts[n-1].Gone, "node/n2")
		})
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("after %s", took)
		}
		b.plane.mu.Lock()
		if n := len(b.plane.parts); n > 2 {
			t.Errorf("%d calls for one burst", n)
		}
		lastPart := b.plane.parts[len(b.plane.parts)-1]
		for _, n := range lastPart.Objects.Nodes {
			if n.Revision != 51 {
				t.Errorf("node %s at revision %d", n.UID, n.Revision)
			}
		}
		b.plane.parts = nil
		b.plane.answer.FullInventory = true
		b.plane.mu.Unlock()
		b.plane.wait(t, 10*time.Second, "a snapshot when asked", last)

		b.plane.locked(func() { b.plane.answer.Reporter = false })
		time.Sleep(10 * time.Second) // a heartbeat takes the part away
		b.plane.locked(func() { b.plane.parts = nil })
		select {
		case b.exec.deltas <- executor.Delta{Objects: protocol.Inventory{Nodes: nodes(0, 1, 99)}}:
			t.Error("it still watches")
		case <-time.After(5 * time.Second):
		}
	})
}

func TestEventsAreNumberedAndResent(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.plane.answer.Reporter = true
		b.plane.spoil(rule{path: "/v1/agent/events", times: 2, applied: true})
		b.start()
		for i := range 50 {
			var d executor.Delta
			for j := range 30 {
				d.Events = append(d.Events, protocol.Event{Type: "node.not_ready", Subject: protocol.Subject{Kind: "node", UID: fmt.Sprint(30*i + j)},
					Detail: json.RawMessage(`{"why":"password=hunter2"}`)})
			}
			b.exec.deltas <- d
		}
		b.plane.wait(t, time.Minute, "all events", func() bool { return b.plane.through == 1500 })
		b.plane.mu.Lock()
		defer b.plane.mu.Unlock()
		for n := int64(1); n <= 1500; n++ {
			e, ok := b.plane.events[n]
			if !ok || e.Subject.UID != fmt.Sprint(n-1) {
				t.Fatalf("event %d: %v %+v", n, ok, e)
			}
			if strings.Contains(string(e.Detail), "hunter2") {
				t.Fatalf("a secret left: %s", e.Detail)
			}
		}
	})
}

func TestEventsOverflow(t *testing.T) {
	t.Parallel()
	m := &Metrics{}
	e := newEvents(m, time.Now)
	for range eventsMost + 50 {
		e.add([]protocol.Event{{Type: "x", Detail: json.RawMessage(`{`)}})
	}
	b := e.batch()
	if len(b) != protocol.MaxEvents || b[0].N != 51 || m.EventsLost.Load() != 50 {
		t.Errorf("%d from %d, %d lost", len(b), b[0].N, m.EventsLost.Load())
	}
	if string(b[0].Detail) != `{"omitted":"not JSON"}` {
		t.Errorf("detail %s", b[0].Detail)
	}
	e.through(b[len(b)-1].N)
	if b = e.batch(); b[0].N != 551 {
		t.Errorf("next is %d", b[0].N)
	}
	e.add([]protocol.Event{{Detail: json.RawMessage(`"` + strings.Repeat("x", protocol.MaxEventBytes) + `"`)}})
	if e.waiting[len(e.waiting)-1].N != eventsMost+51 {
		t.Error("numbers are not in a row")
	}
}

func TestPreview(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.start()
		name := id.Derive(id.Preview, "p")
		body, _ := json.Marshal(protocol.Doorbell{Version: 1, Kind: protocol.KindPreview, Preview: name, Cluster: b.plane.cluster})
		b.plane.queue.send(body)
		b.plane.wait(t, 10*time.Second, "the answer", func() bool { _, ok := b.plane.preview[name]; return ok })
		b.plane.wait(t, 10*time.Second, "the doorbell deleted", func() bool { return b.plane.queue.left() == 0 })
		want := []protocol.Blocker{{Code: "pdb", Detail: "token=[redacted]"}}
		if diff := cmp.Diff(want, b.plane.preview[name].Blockers); diff != "" {
			t.Error(diff)
		}
	})
}

// TestSnapshotSaysWhatIsUnread: with its last part, so that the plane keeps what it knows of
// it; and all is told once more when it is read.
func TestSnapshotSaysWhatIsUnread(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.fleet = protocol.Inventory{Nodes: nodes(0, 600, 1), Unread: []string{"LeaderWorkerSet"}}
		b.plane.answer.Reporter = true
		b.start()
		last := func() bool { return len(b.plane.parts) > 0 && b.plane.parts[len(b.plane.parts)-1].Last }
		b.plane.wait(t, 30*time.Second, "a snapshot", last)
		b.plane.locked(func() {
			for i, p := range b.plane.parts {
				if (len(p.Objects.Unread) == 1) != p.Last {
					t.Errorf("part %d of %d says %q", i, len(b.plane.parts), p.Objects.Unread)
				}
			}
			if b.plane.parts = nil; t.Failed() {
				t.FailNow()
			}
		})
		b.exec.deltas <- executor.Delta{Whole: true}
		b.plane.wait(t, 10*time.Second, "another snapshot", last)
	})
}
