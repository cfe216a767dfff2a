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
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
)

// bar is what a million operations of six transitions may cost, with every
// guarantee on, in US dollars.
const bar = 40.0

// TestCost counts what AWS would charge for operations and prices a million of
// them at list price. Every guarantee is on: an idempotency key and an audit
// record for each, its journal, each event in its stream and on the bus,
// wake-ups, logs at info.
func TestCost(t *testing.T) {
	const atOnce, together, alone = 10, 70, 12
	d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "cost"})
	targets := d.targets(t, "/v1/deployments", 104)
	slow := slices.DeleteFunc(slices.Clone(targets), func(o object) bool { return !strings.Contains(o.Name, "slow") })
	targets = slices.DeleteFunc(targets, func(o object) bool { return strings.Contains(o.Name, "slow") })
	d.settle(t)

	busy := d.priced(t, fmt.Sprintf("%d rolls, %d at a time", together, atOnce), targets[:together], atOnce)
	t.Logf("lean, with no event on the bus and logs of warnings alone: US$ %.2f a million", busy.usd-busy.kinds[bill.BusEvent]-busy.kinds[bill.LogGB])
	for _, a := range bill.Alternatives {
		t.Logf("beside it, six transitions and nothing around them: %s US$ %.2f a million (%s; %s)", a.Name, a.USD, a.How, a.Source)
	}
	if busy.usd > bar {
		t.Errorf("a million operations cost US$ %.2f, the bar is %.0f", busy.usd, bar)
	}
	d.priced(t, fmt.Sprintf("%d rolls, one after the other", alone), targets[together:together+alone], 1)
	d.running(t, slow)
	d.idling(t)
	d.forgetting(t)
}

// BenchmarkRequests tells what operations ask of AWS: requests of each service,
// DynamoDB's units, and the price of a million, so that a regression shows.
func BenchmarkRequests(b *testing.B) {
	const atOnce, together = 10, 70
	d := Start(b, Options{Scenario: "testdata/cost.yaml", Cluster: "cost"})
	targets := slices.DeleteFunc(d.targets(b, "/v1/deployments", 104), func(o object) bool { return strings.Contains(o.Name, "slow") })
	d.settle(b)
	for b.Loop() {
		p := d.priced(b, "rolls", targets[:together], atOnce)
		requests := map[string]int{}
		for name, n := range d.Operations.Calls() {
			service, _, _ := strings.Cut(name, " ")
			requests[service] += n
		}
		for service, n := range requests {
			b.ReportMetric(float64(n)/together, service+"-requests/op")
		}
		units := d.Operations.Units()
		b.ReportMetric(units[bill.DynamoWrite]/together, "write-units/op")
		b.ReportMetric(units[bill.DynamoRead]/together, "read-units/op")
		b.ReportMetric(units[bill.HTTPRequest]/together, "HTTP-requests/op")
		b.ReportMetric(units[bill.Invocation]/together, "invocations/op")
		b.ReportMetric(p.usd, "US$/million")
	}
}

// price is what a million of something cost.
type price struct {
	usd   float64
	kinds map[bill.Kind]float64
}

// priced runs operations on the targets and prices a million like them.
func (d *Deployment) priced(t testing.TB, what string, targets []object, atOnce int) price {
	t.Helper()
	d.Operations.Reset()
	logged := d.LogBytes()
	ids := make([]string, len(targets))
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, target := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ids[i] = d.create(t, "deployment.roll", target.ID)
			d.ends(t, ids[i], operation.Succeeded)
		})
	}
	wg.Wait()
	d.settle(t)
	units := d.Operations.Units()
	units[bill.LogGB] += float64(d.LogBytes()-logged) / (1 << 30)
	entries, events := d.told(t, ids)
	n := float64(len(ids))
	var out strings.Builder
	fmt.Fprintf(&out, "\n%s; each: %.1f journal entries, %.1f events, %.0f bytes of logs\n", what, entries/n, events/n, units[bill.LogGB]*(1<<30)/n)
	p := table(&out, units, n)
	d.parts(&out, n)
	t.Log(out.String())
	return p
}

// parts prints what the units are made of.
func (d *Deployment) parts(out *strings.Builder, n float64) {
	items, calls := d.Operations.Items(), d.Operations.Calls()
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		fmt.Fprintf(out, "    %-36s %6.2f calls\n", name, float64(calls[name])/n)
	}
	for _, kind := range slices.Sorted(maps.Keys(items)) {
		fmt.Fprintf(out, "    %-36s %6.2f units\n", kind, items[kind]/n)
	}
}

// table prints units as the price of a million of n things.
func table(out *strings.Builder, units map[bill.Kind]float64, n float64) price {
	p := price{kinds: map[bill.Kind]float64{}}
	for _, k := range bill.Kinds {
		p.kinds[k] = bill.ListPrices[k].Of(units[k] / n * 1e6)
		p.usd += p.kinds[k]
		fmt.Fprintf(out, "  %-34s %10.4g each  US$ %6.2f a million\n", k, units[k]/n, p.kinds[k])
	}
	fmt.Fprintf(out, "  %-34s %10s       US$ %6.2f a million\n", "all", "", p.usd)
	return p
}

// told counts the journal entries and events of operations.
func (d *Deployment) told(t testing.TB, ids []string) (entries, events float64) {
	t.Helper()
	for _, id := range ids {
		js, err := d.Watch.Journal(context.Background(), id, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		entries += float64(len(js))
		for _, e := range js {
			if _, ok := event.FromEntry(&operation.Spec{ID: id}, e); ok {
				events++
			}
		}
	}
	return entries, events
}

// running prices what each minute of a running operation adds: renewals, and the
// sweep's looks at its lease.
func (d *Deployment) running(t testing.TB, targets []object) {
	t.Helper()
	const watched = 30 * time.Second
	for _, target := range targets {
		d.create(t, "deployment.roll", target.ID)
	}
	time.Sleep(3 * time.Second) // they have begun
	d.Operations.Reset()
	time.Sleep(watched)
	var out strings.Builder
	fmt.Fprintf(&out, "\na minute of a running operation, %d at a time\n", len(targets))
	n := float64(len(targets)) * watched.Minutes()
	p := table(&out, d.Operations.Units(), n)
	d.parts(&out, n)
	t.Logf("%sten minutes of it: US$ %.2f a million operations", out.String(), 10*p.usd)
}

// forgetting prices what deletes an operation once it is past its age, with its
// events; what carries a time to live DynamoDB deletes for nothing.
func (d *Deployment) forgetting(t testing.TB) {
	t.Helper()
	from := d.Plane.Store
	st := &record.Store{Ledger: from.Ledger, Timing: from.Timing, IndexLag: from.IndexLag,
		Now: func() time.Time { return time.Now().Add(retention.Default.Operations + time.Hour) }}
	d.Operations.Reset()
	n, err := retention.Pass(t.Context(), st, retention.Default)
	if err != nil || n == 0 {
		t.Fatalf("%d operations deleted: %v", n, err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\n%d operations deleted at the end of their time\n", n)
	table(&out, d.Operations.Units(), float64(n))
	d.parts(&out, float64(n))
	t.Log(out.String())
}

// idling prices a month without operations: one agent's heartbeats and polls, and
// the plane's ticks and pollers.
func (d *Deployment) idling(t testing.TB) {
	t.Helper()
	const month = 30 * 24 * 60 // minutes
	units := d.Idle.Units()
	beats := units[bill.HTTPRequest] // heartbeats, and an inventory or two
	if beats == 0 {
		t.Fatal("no heartbeat was counted")
	}
	perBeat := 0.0
	for k, n := range units {
		if k != bill.SQSRequest {
			perBeat += bill.ListPrices[k].Of(n / beats)
		}
	}
	perMinute := time.Minute.Minutes() / (operation.AWS.AgentSilent / 3).Minutes()
	poll := bill.ListPrices[bill.SQSRequest].Of(60 / queue.MaxWait.Seconds())
	t.Logf("idle, a month: an agent US$ %.3f (a heartbeat %.2g, %.0f a minute; long polls %.2g a minute), the plane's two queues US$ %.3f "+
		"(Lambda keeps five long polls open on each: AWS Lambda Developer Guide, \"Using Lambda with Amazon SQS\")",
		month*(perMinute*perBeat+poll), perBeat, perMinute, poll, 2*5*month*poll)
}

// settle waits until nothing more is published.
func (d *Deployment) settle(t testing.TB) {
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

// object is something of the inventory.
type object struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// targets waits for the inventory and returns n objects of it.
func (d *Deployment) targets(t testing.TB, path string, n int) []object {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var page struct {
			Items []object `json:"items"`
		}
		if code := d.Call(t, http.MethodGet, path+fmt.Sprintf("?limit=%d", n), nil, &page); code == http.StatusOK && len(page.Items) == n {
			return page.Items
		}
	}
	t.Fatalf("%s never showed %d objects", path, n)
	return nil
}

func (d *Deployment) create(t testing.TB, typ, target string) string {
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
func (d *Deployment) ends(t testing.TB, id string, phase operation.Phase) {
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
