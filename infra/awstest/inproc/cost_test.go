//go:build awstest

package inproc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/infra/awstest/bill"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// bar is what a million operations of six transitions may cost, with every
// guarantee on.
const bar = 40.0

// TestCost counts what AWS would charge for operations of six transitions and
// prices a million of them. It says what was on: every event on the bus, the
// journal, the audit record, wake-ups, logs at info.
func TestCost(t *testing.T) {
	const operations, atOnce = 60, 6
	d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "cost"})
	targets := d.targets(t, "/v1/deployments", operations)
	settle(t, d)
	d.Operations.Reset()
	logged := d.LogBytes()
	ids := make([]string, operations)
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range operations {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ids[i] = d.create(t, "deployment.roll", targets[i])
			d.ends(t, ids[i], operation.Succeeded)
		})
	}
	wg.Wait()
	settle(t, d)
	units := d.Operations.Units()
	units[bill.LogGB] += float64(d.LogBytes()-logged) / (1 << 30)
	events, entries := 0, 0
	for _, id := range ids {
		js, err := d.Plane.Store.Journal(context.Background(), id, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		entries += len(js)
		for _, e := range js {
			if _, ok := event.FromEntry(&operation.Spec{ID: id}, e); ok {
				events++
			}
		}
	}
	total := 0.0
	var out strings.Builder
	fmt.Fprintf(&out, "\n%d operations, %d at a time; each: %.1f journal entries, %.1f events, %.0f bytes of logs\n",
		operations, atOnce, float64(entries)/operations, float64(events)/operations, units[bill.LogGB]*(1<<30)/operations)
	for _, k := range bill.Kinds {
		n := units[k] / operations
		usd := bill.ListPrices[k].Of(n * 1e6)
		total += usd
		fmt.Fprintf(&out, "  %-32s %10.4g an operation  US$ %6.2f a million\n", k, n, usd)
	}
	fmt.Fprintf(&out, "  %-32s %10s               US$ %6.2f a million (bar %.0f)\n", "all", "", total, bar)
	calls := d.Operations.Calls()
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		fmt.Fprintf(&out, "    %-32s %6.2f calls an operation\n", name, float64(calls[name])/operations)
	}
	items := d.Operations.Items()
	for _, kind := range slices.Sorted(maps.Keys(items)) {
		fmt.Fprintf(&out, "    %-32s %6.2f units an operation\n", kind, items[kind]/operations)
	}
	t.Log(out.String())
	if total > bar {
		t.Errorf("a million operations cost US$ %.2f, the bar is %.0f", total, bar)
	}
}

// settle waits until nothing more is published.
func settle(t *testing.T, d *Deployment) {
	t.Helper()
	for last := -1; ; {
		n := 0
		for _, c := range d.Operations.Calls() {
			n += c
		}
		if n == last {
			return
		}
		last = n
		time.Sleep(2 * time.Second)
	}
}

// targets waits for the inventory and returns ids of it.
func (d *Deployment) targets(t *testing.T, path string, n int) []string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var page struct {
			Items []struct {
				ID string `json:"id"`
			} `json:"items"`
		}
		if code := d.Call(t, http.MethodGet, path+fmt.Sprintf("?limit=%d", n), nil, &page); code == http.StatusOK && len(page.Items) == n {
			out := make([]string, n)
			for i, it := range page.Items {
				out[i] = it.ID
			}
			return out
		}
	}
	t.Fatalf("%s never showed %d objects", path, n)
	return nil
}

func (d *Deployment) create(t *testing.T, typ, target string) string {
	t.Helper()
	var op struct {
		ID string `json:"id"`
	}
	code, b := d.try(t, http.MethodPost, "/v1/operations", "key-"+target, map[string]any{"type": typ, "target": target, "reason": "what does it cost"})
	if err := json.Unmarshal(b, &op); err != nil || code != http.StatusAccepted {
		t.Errorf("create answered %d %s: %v", code, b, err)
	}
	return op.ID
}

// ends waits for an operation's end by the ledger, which costs the deployment
// nothing.
func (d *Deployment) ends(t *testing.T, id string, phase operation.Phase) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		op, err := d.Watch.Load(context.Background(), id)
		if err != nil {
			continue
		}
		if op.State.Phase.Terminal() {
			if op.State.Phase != phase {
				t.Errorf("operation %s is %s, want %s: %+v", id, op.State.Phase, phase, op.State.Result)
			}
			return
		}
	}
	t.Errorf("operation %s did not end", id)
}
