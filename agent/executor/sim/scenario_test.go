package sim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

func TestBuiltinsLoad(t *testing.T) {
	t.Parallel()
	names := Builtins()
	for _, want := range []string{"bench", "demo/alpha", "demo/beta", "demo/gamma", "zoo"} {
		if !contains(names, want) {
			t.Errorf("no builtin %s in %v", want, names)
		}
	}
	for _, name := range names {
		sc, err := LoadScenario(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := build(sc, time.Now()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScenarioErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"nodes: []":                                                           "cluster: is missing",
		"cluster: c\nspeed: 3":                                                "speed",
		"cluster: c\nnodes: [{nam: x}]":                                       "nam",
		"cluster: c\nspeeds: {stop: soon}":                                    "soon",
		"cluster: c\nspeeds: {stop: -1s}":                                     "-1s",
		"cluster: c\ntime_scale: 0":                                           "time_scale",
		"cluster: c\nnodes: [{name: a},{name: a}]":                            `nodes[1].name: "a" is there twice`,
		"cluster: c\nnodes: [{name: a, devices: [{index: 9}]}]":               "nodes[0].devices[0].index",
		"cluster: c\nnodes: [{name: a, devices: [{reset_refused: because}]}]": "nodes[0].devices[0].reset_refused",
		"cluster: c\nnodes: [{name: a, pods: [{name: web}]}]":                 "nodes[0].pods[0].name",
		"cluster: c\nnodes: [{name: a, pods: [{name: d/w, owner: Me}]}]":      "nodes[0].pods[0].owner",
		"cluster: c\npdbs: [{name: d/p, selector: {a: b}}]":                   "pdbs[0].min_available",
		"cluster: c\ncomponents: [{name: x, version: one}]":                   "components[0].version",
		"cluster: c\nscript: [{at: 3s, do: explode}]":                         "script[0].do",
		"cluster: c\ndeployments: [{name: d/x, nodes: [nope]}]":               "deployments[0].nodes",
	} {
		_, err := ParseScenario([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not name %q", text, err, want)
		}
	}
	if _, err := ParseScenario([]byte(`{"cluster":"c","nodes":[{"name":"a","gpus":2,"vanish_after":1.5}]}`)); err != nil {
		t.Errorf("JSON: %v", err)
	}
	if _, err := LoadScenario("no-such"); err == nil || !strings.Contains(err.Error(), "demo/alpha") {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestScript lets the world go on by itself, on a clock of its own.
func TestScript(t *testing.T) {
	path := written(t, `
cluster: s
time_scale: 2
nodes: [{name: a}, {name: b, gpus: 0}]
deployments: [{name: d/x, replicas: 1}]
script:
  - {at: 10s, do: device.degrade, node: a, gpu: 3, detail: "XID 63"}
  - {at: 20s, do: node.cordon, node: a, by: alice, detail: "bad fan"}
  - {at: 20s, do: deployment.oom, deployment: d/x}
  - {at: 25s, do: device.xid, node: a, gpu: 3, xid: 79}
  - {at: 30s, do: device.recover, node: a, gpu: 3}
  - {at: 40s, do: node.join, node: c}
  - {at: 50s, do: node.leave, node: b}
  - {at: 60s, do: node.unreachable, node: a}
  - {at: 70s, do: node.reachable, node: a}
  - {at: 80s, do: node.uncordon, node: a}
`)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(Options{Scenario: path, StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		var got []string
		for range 45 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		d, _, err := e.since(1)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range d.Events {
			got = append(got, ev.Type)
			if ev.Type == "device.xid" && !strings.Contains(string(ev.Detail), `"class":"hardware"`) {
				t.Errorf("of the XID is told %s", ev.Detail)
			}
			if ev.Type == "node.uncordoned" && !strings.HasPrefix(string(ev.Detail), `{"owner":"external","was":{"by":`) {
				t.Errorf("of the uncordon is told %s", ev.Detail)
			}
		}
		want := "device.degraded node.cordoned deployment.oom device.xid device.recovered node.joined node.left node.not_ready node.ready node.uncordoned"
		if strings.Join(got, " ") != want {
			t.Errorf("it happened: %v", got)
		}
	})
}

// TestOldWorldGoesOn: a drain that was begun before a restart ends after it.
func TestOldWorldGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, "zoo", dir)
	j := newJob("op_old", "node.drain", "node:plain", "", `{}`)
	for _, step := range []string{"preflight", "cordon", "evict"} {
		if o := r.Execute(t.Context(), j.task(step)); o.Class != operation.OutcomeDone {
			t.Fatal(o)
		}
	}
	r.Close()
	r = open(t, "zoo", dir)
	if step, o := r.takeOver(t.Context(), j.generation(2)); step != "" {
		t.Fatalf("at %s: %+v", step, o)
	}
	if n := accepted(r.effects(t), DidEvict); n != 2 {
		t.Errorf("%d evictions of 2 pods", n)
	}
	if end := r.Observe(t.Context(), &j.Assignment); !contains(end.Verified, "2 planned pods gone by UID") {
		t.Errorf("%+v", end)
	}
}

// BenchmarkDrain is a whole drain of an empty node in the exclusive world.
func BenchmarkDrain(b *testing.B) {
	e, err := Open(Options{Scenario: "bench", StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	r := &rig{e, ""}
	for i := 0; b.Loop(); i++ {
		typ := []string{"node.drain", "node.uncordon"}[i%2]
		if step, o := r.run(b.Context(), newJob("op_"+string(rune(i)), typ, "node:bench-node-000", "", `{}`)); step != "" {
			b.Fatal(step, o)
		}
	}
}
