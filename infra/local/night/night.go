package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/protocol"
)

//go:embed north.yaml
var north []byte

//go:embed south.yaml
var south []byte

//go:embed overrides.yaml
var overrides []byte

// play runs the night with the program in the folder, tells what happens as it
// does, and returns what was told of each alert, sorted.
func play(ctx context.Context, program, dir string, out io.Writer) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	n := &night{program: program, dir: dir, out: out, began: time.Now(), clusters: map[string]cluster{}, open: map[string]string{}, told: map[string][]string{}}
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(failure)
			if !ok {
				panic(p)
			}
			if err = failed.err; n.waits != "" {
				err = fmt.Errorf("wait for %s: %w", n.waits, err)
			}
		}
	}()
	defer n.end()
	n.start(ctx)
	n.override(ctx)
	for _, c := range []struct {
		name     string
		scenario []byte
	}{{"north", north}, {"south", south}} {
		n.register(ctx, c.name)
		must(os.WriteFile(filepath.Join(dir, c.name+".yaml"), c.scenario, 0o600))
		n.agent(ctx, c.name)
	}
	n.register(ctx, "west")

	// What people and programs ask for that night.
	n.found(ctx, "north", "slow")
	held := n.ask(ctx, "node.drain", "node:held", 13*time.Second)
	slow := n.ask(ctx, "node.drain", "node:slow", 0)
	n.found(ctx, "south", "far")
	far := n.ask(ctx, "node.drain", "node:far", 0)
	n.phase(ctx, far, "running")
	n.kill("south")
	n.bury(ctx, "south", n.ask(ctx, "node.cordon", "node:lost", 0))

	busy := n.device(ctx, "busy", 0)
	for _, retries := range []int{3, 2} {
		op := n.ask(ctx, "device.reset", "device:"+busy, 0)
		n.phase(ctx, op, "failed")
		for range retries {
			n.call(ctx, http.MethodPost, "/v1/operations/"+op+"/retry", map[string]any{"reason": "again"}, nil)
			n.phase(ctx, op, "failed")
		}
	}
	for range 3 {
		n.phase(ctx, n.ask(ctx, "node.drain", "node:gpu-3", 0), "succeeded")
	}
	n.west(ctx)

	n.wait(ctx, "operation-stuck", "slow", "firing")
	n.wait(ctx, "operation-timed-out", "held", "firing")
	n.phase(ctx, held, "timed_out")
	n.wait(ctx, "fatal-xid", n.device(ctx, "gpu-0", 1), "firing")
	for range 3 {
		n.phase(ctx, n.ask(ctx, "device.reset", "device:"+n.device(ctx, "gpu-0", 1), 0), "succeeded")
	}
	n.wait(ctx, "operation-reconciling", "far", "firing")
	n.wait(ctx, "agent-silent", "south", "firing")
	n.agent(ctx, "south")
	n.wait(ctx, "agent-silent", "south", "resolved")
	n.wait(ctx, "operation-reconciling", "far", "resolved")
	n.wait(ctx, "operation-stuck", "far", "firing")
	n.wait(ctx, "node-not-ready-in-operation", "slow", "resolved")
	for _, op := range []string{far, slow} {
		n.call(ctx, http.MethodDelete, "/v1/operations/"+op, nil, nil)
	}

	// The end: everything has come to where it stays.
	for _, x := range [][2]string{{"operation-stuck", "slow"}, {"operation-stuck", "far"}, {"operation-stuck", "held"}, {"retry-storm", busy},
		{"deployment-oom-loop", "night/loader"}, {"dead-letters", ""}, {"stream-gap", ""}, {"gpus-unallocatable", "kept"}, {"agent-clock-skewed", ""}, {"device-degraded", n.device(ctx, "gpu-1", 1)},
		{"device-degraded", n.device(ctx, "gpu-0", 0)}, {"device-degraded", n.device(ctx, "gpu-2", 1)}, {"fatal-xid", n.device(ctx, "gpu-0", 1)}} {
		n.wait(ctx, x[0], x[1], "resolved")
	}
	n.wait(ctx, "device-degraded", n.device(ctx, "gpu-2", 0), "flapping")
	n.wait(ctx, "node-drained-again", "gpu-3", "firing")
	n.wait(ctx, "device-reset-again", n.device(ctx, "gpu-0", 1), "firing")
	return n.lines(), nil
}

// override shortens the shipped rules' times.
func (n *night) override(ctx context.Context) {
	var all yaml.MapSlice
	must(yaml.Unmarshal(overrides, &all))
	for _, o := range all {
		n.call(ctx, http.MethodPut, fmt.Sprintf("/v1/rules/%s/override", o.Key), o.Value, nil)
	}
}

// bury takes the doorbell of an operation from a cluster's queue and puts it aside,
// as an agent does that does not understand it.
func (n *night) bury(ctx context.Context, name, op string) {
	n.until(ctx, "the doorbell of "+op, func() bool {
		var got struct{ Messages []map[string]any }
		n.as(ctx, name, "/v1/agent/queue/receive", map[string]any{"max": 10, "wait_ms": 500, "visibility_ms": 500}, &got)
		for _, m := range got.Messages {
			if body, ok := m["body"].(string); ok && strings.Contains(body, op) {
				m["reason"] = "nobody understands it"
				n.as(ctx, name, "/v1/agent/queue/bury", m, nil)
				return true
			}
		}
		return false
	})
}

// west is an agent with a wrong clock, which loses events on the way, and whose node
// keeps GPUs back for a while: this program, over the agents' API.
func (n *night) west(ctx context.Context) {
	beat := func(skew time.Duration) (a protocol.HeartbeatAnswer) {
		n.as(ctx, "west", "/v1/agent/heartbeat", protocol.Heartbeat{Name: "west-0", Boot: "boot_1", Version: "v1", SentAt: time.Now().Add(skew), Capacity: 1}, &a)
		return a
	}
	beat(time.Hour)
	agent := beat(time.Hour).AgentID
	recovered := func(num int64) protocol.Event {
		return protocol.Event{N: num, Type: "component.recovered", At: time.Now(), Subject: protocol.Subject{Kind: "component", UID: "west-operator", Name: "operator"}}
	}
	tell := func(events ...protocol.Event) {
		n.as(ctx, "west", "/v1/agent/events", protocol.EventsRequest{AgentID: agent, Boot: "boot_1", Events: events}, nil)
	}
	gpus := func(num int64, typ string, allocatable int64) protocol.Event {
		detail, err := json.Marshal(event.GPUsDetail{Resources: []event.GPUResource{{Resource: "nvidia.com/gpu", Capacity: 8, Allocatable: allocatable}}})
		must(err)
		return protocol.Event{N: num, Type: typ, At: time.Now(), Subject: protocol.Subject{Kind: "node", UID: "uid-of-kept", Name: "kept"}, Detail: detail}
	}
	tell(recovered(1), recovered(5), gpus(6, "node.gpus_unallocatable", 6))
	n.wait(ctx, "gpus-unallocatable", "kept", "firing")
	tell(gpus(7, "node.gpus_allocatable", 8))
	n.wait(ctx, "agent-clock-skewed", "", "firing")
	beat(0)
	beat(0)
	n.as(ctx, "west", "/v1/agent/heartbeat", protocol.Heartbeat{Name: "west-0", Boot: "boot_1", Version: "v1", SentAt: time.Now(), Stopping: true}, nil)
}
