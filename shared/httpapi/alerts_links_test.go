package httpapi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestLinksOfAnAlert: they lead to the node that the device is on and to the evidence,
// which comes first however much the stream had before.
func TestLinksOfAnAlert(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.node(p.cluster, "gpu-17")
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
	device := event.Subject{Kind: "device", ID: fleet.DeviceID(p.cluster.ID, "GPU-1"), Name: "GPU-1"}
	n := 0
	put := func(happened, received time.Time, typ string, s event.Subject, detail any) string {
		t.Helper()
		n++
		e, err := event.New(typ, p.cluster.ID, s, happened, operation.Plane, detail, fmt.Sprint(n))
		must(t, err)
		e.ReceivedAt = received
		_, err = event.Append(t.Context(), p.db, p.cluster.ID, []event.Event{e}, nil)
		must(t, err)
		return e.ID
	}
	p.judge() // begins here
	for i := range 300 {
		put(at.Add(time.Duration(i)), at.Add(time.Duration(i)), "device.recovered", device, nil)
	}
	at = at.Add(10 * time.Minute)
	first := put(at, at.Add(20*time.Minute), "device.xid", device, m{"xid": 79, "class": "hardware", "node": "gpu-17", "node_uid": "uid-" + p.cluster.Name + "gpu-17"}) // told late
	put(at.Add(21*time.Minute), at.Add(21*time.Minute), "node.ready", event.Subject{Kind: "node", ID: id.Derive(id.Node, "other"), Name: "other"}, nil)
	p.judge()
	read := func(rule string) (node, events string) {
		t.Helper()
		list := p.do("viewer", "GET", "/v1/alerts?rule="+rule, nil).want(200).items()
		if len(list) != 1 {
			t.Fatalf("%d alerts of %s", len(list), rule)
		}
		links := list[0]["links"].(map[string]any)
		node, _ = links["node"].(string)
		return node, links["events"].(string)
	}
	leads := func(events string, want ...string) {
		t.Helper()
		a := p.do("viewer", "GET", events, nil).want(200)
		items := a.items()
		if len(items) < len(want) {
			t.Fatalf("%s leads to %s", events, a.raw)
		}
		for i, w := range want {
			if items[i]["id"] != w {
				t.Errorf("event %d of %s is %v, want %s", i, events, items[i]["id"], w)
			}
		}
	}
	node, events := read("fatal-xid")
	if got := p.do("viewer", "GET", node, nil).want(200); got.j["name"] != "gpu-17" {
		t.Errorf("%q leads to %s", node, got.raw)
	}
	leads(events, first)

	// Of an event that tells the name alone, and of evidence about several subjects.
	at = at.Add(25 * time.Minute)
	p.do("admin", "POST", "/v1/rules", m{"name": "both", "on": []string{"x.bad", "x.worse"}, "count": 2, "window": "10m"}).want(201)
	p.judge()
	one := put(at, at, "x.bad", device, m{"node": "gpu-17"})
	put(at, at, "node.ready", event.Subject{Kind: "node", ID: id.Derive(id.Node, "other"), Name: "other"}, nil)
	other := device
	other.ID, other.Name = fleet.DeviceID(p.cluster.ID, "GPU-2"), "GPU-2"
	two := put(at.Add(time.Second), at.Add(time.Second), "x.worse", other, m{"node": "gpu-17"})
	p.judge()
	node, events = read("both")
	if got := p.do("viewer", "GET", node, nil).want(200).items(); len(got) != 1 || got[0]["name"] != "gpu-17" {
		t.Errorf("%q leads to %v", node, got)
	}
	leads(events, one, two)

	// What is told of it has the node, too.
	var told struct {
		Node string `json:"node"`
	}
	for _, e := range p.do("viewer", "GET", "/v1/events?type=alert.firing&cluster="+p.cluster.ID, nil).want(200).items() {
		b, err := json.Marshal(e["detail"])
		must(t, err)
		if must(t, json.Unmarshal(b, &told)); told.Node != "gpu-17" {
			t.Errorf("told of %s", b)
		}
	}
}
