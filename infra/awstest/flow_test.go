//go:build awstest

package awstest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/operation"
)

// entry is one entry of a journal.
type entry struct {
	Kind string          `json:"kind"`
	To   operation.Phase `json:"to"`
}

// ways are the phases that an operation went through.
func (p *plane) way(id string) (out []operation.Phase) {
	p.tb.Helper()
	for _, e := range list[entry](p, "/v1/operations/"+id+"/journal") {
		if e.Kind == "transition" {
			out = append(out, e.To)
		}
	}
	return out
}

// TestWholeFlow: created, rung for, claimed by the agent off its SQS queue, run,
// succeeded, and told of in the event stream.
func TestWholeFlow(t *testing.T) {
	t.Parallel()
	wholeFlow(t, deployed(t))
}

func wholeFlow(t *testing.T, p *plane, agentFlags ...string) {
	c := p.register("flow")
	p.agent(c, world(t, 2, false), agentFlags...)
	n := p.nodes(c.ID, 2)[0]
	o := p.create(request{Type: "node.drain", Target: n.ID, Reason: "firmware update"})
	done := p.finish(o.ID, 40*time.Second)
	if done.Phase != operation.Succeeded || len(done.Assignments) != 1 {
		t.Fatalf("the drain ended as %s after %d assignments: %+v", done.Phase, len(done.Assignments), done.Result)
	}
	want := []operation.Phase{operation.Pending, operation.Dispatched, operation.Running, operation.Succeeded}
	if d := cmp.Diff(want, p.way(o.ID)); d != "" {
		t.Error(d)
	}
	if got := get[struct {
		Schedulable bool `json:"schedulable"`
	}](p, "/v1/nodes/"+n.ID); got.Schedulable {
		t.Error("the node was drained and is schedulable")
	}
	eventually(t, 20*time.Second, "events of each transition", func() bool {
		have := map[string]int{}
		for _, e := range list[struct {
			Type string `json:"type"`
		}](p, "/v1/events?subject="+n.ID) {
			have[e.Type]++
		}
		for _, phase := range []string{"pending", "dispatched", "running", "succeeded"} {
			if have["operation."+phase] > 1 {
				t.Fatalf("%d events of operation.%s", have["operation."+phase], phase)
			}
		}
		return have["operation.succeeded"] == 1 && have["operation.running"] == 1
	})
	if a := p.call(http.MethodDelete, "/v1/operations/"+o.ID, nil); a.Status != http.StatusNoContent {
		t.Errorf("DELETE of what has ended: %d %s", a.Status, a.Body)
	}
}

// TestInContainers drives the API and the authorizer in containers of sam local;
// what the stream and the queues set off runs as deployed.
func TestInContainers(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	p.URL = env(t, "OPSPLANE_SAM_LOCAL_URL")
	if a := p.as("").call(http.MethodGet, "/v1/operations", nil); a.Status != http.StatusUnauthorized {
		t.Errorf("no header: %d %s", a.Status, a.Body)
	}
	// The functions name the queue by this machine's address on the containers'
	// network, which is not loopback.
	wholeFlow(t, p, "--insecure")
}

// TestIdempotentReplay: one key makes one operation, whoever asks how often.
func TestIdempotentReplay(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	c := p.register("replay")
	p.agent(c, world(t, 1, true))
	n := p.nodes(c.ID, 1)[0]
	body, key := request{Type: "node.drain", Target: n.ID, Reason: "once"}, unique("key")
	first := p.call(http.MethodPost, "/v1/operations", body, "Idempotency-Key", key)
	again := p.call(http.MethodPost, "/v1/operations", body, "Idempotency-Key", key)
	var a, b op
	if err := first.Into(&a); err != nil {
		t.Fatal(err)
	}
	if err := again.Into(&b); err != nil {
		t.Fatal(err)
	}
	if first.Status != http.StatusAccepted || a.ID == "" || a.ID != b.ID || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("first %d %s, again %d %s %v", first.Status, a.ID, again.Status, b.ID, again.Header)
	}
	body.Reason = "twice"
	if other := p.call(http.MethodPost, "/v1/operations", body, "Idempotency-Key", key); other.Status != http.StatusUnprocessableEntity || code(other) != "idempotency_key_reused" {
		t.Errorf("another body under the key: %d %s", other.Status, other.Body)
	}
}

// TestConflictAndCancel: a second operation on a node learns who holds it; once
// that one is cancelled the node is free.
func TestConflictAndCancel(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	c := p.register("conflict")
	p.agent(c, world(t, 1, true))
	n := p.nodes(c.ID, 1)[0]
	holder := p.create(request{Type: "node.drain", Target: n.ID, Reason: "first"})
	p.until(holder.ID, 30*time.Second, "running", func(o op) bool { return o.Phase == operation.Running })
	second := p.call(http.MethodPost, "/v1/operations", request{Type: "node.drain", Target: n.ID, Reason: "second"})
	if second.Status != http.StatusConflict || code(second) != "operation_conflict" || !strings.Contains(string(second.Body), holder.ID) {
		t.Fatalf("a second drain: %d %s", second.Status, second.Body)
	}
	if a := p.call(http.MethodDelete, "/v1/operations/"+holder.ID, nil); a.Status != http.StatusAccepted {
		t.Fatalf("cancel of a running drain: %d %s", a.Status, a.Body)
	}
	if o := p.finish(holder.ID, 60*time.Second); o.Phase != operation.Cancelled {
		t.Fatalf("the cancelled drain ended as %s", o.Phase)
	}
	next := p.create(request{Type: "node.cordon", Target: n.ID, Reason: "third"})
	if o := p.finish(next.ID, 30*time.Second); o.Phase != operation.Succeeded {
		t.Errorf("what followed ended as %s: %+v", o.Phase, o.Result)
	}
}

// TestCancelOfWhatWaits: what nobody has claimed is cancelled at once.
func TestCancelOfWhatWaits(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	n := p.idleNodes("waits", 1)[0]
	o := p.create(request{Type: "node.cordon", Target: n.ID, Reason: "nobody is there"})
	a := p.call(http.MethodDelete, "/v1/operations/"+o.ID, nil)
	if a.Status != http.StatusOK {
		t.Fatalf("cancel: %d %s", a.Status, a.Body)
	}
	if way := p.way(o.ID); way[len(way)-1] != operation.Cancelled || slices.Contains(way, operation.Running) {
		t.Errorf("it went through %v", way)
	}
}

// idleNodes are nodes of a cluster whose agent told of them and left.
func (p *plane) idleNodes(name string, n int) []node {
	p.tb.Helper()
	_, nodes := p.idleCluster(name, n)
	return nodes
}

func (p *plane) idleCluster(name string, n int) (rig.Cluster, []node) {
	p.tb.Helper()
	c := p.register(name)
	stop := p.agent(c, world(p.tb, n, false))
	nodes := p.nodes(c.ID, n)
	stop()
	return c, nodes
}
