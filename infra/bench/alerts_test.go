package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
)

// thousandRules makes 1,000 rules, but for one, over the catalogue's types such as a site might
// write: by subject, with a condition, counted. Each event type is looked at by some
// 25 of them; few match.
func (r *rig) thousandRules(b *testing.B) {
	b.Helper()
	types := slices.DeleteFunc(event.Catalogue(), func(a event.About) bool { return len(a.Type) > 6 && a.Type[:6] == "alert." })
	for i := range 999 {
		rule := alert.Rule{Name: fmt.Sprint("r", i), On: []string{types[i%len(types)].Type}, GroupBy: map[string]string{"subject": "event.subject.id"},
			When:  fmt.Sprintf(`event.severity != "info" && event.subject.name.startsWith("n%d") && event.detail.?reason.orValue("") != "maintenance"`, i%100),
			Count: 1 + i%3, Window: alert.Duration(10 * time.Minute), ResolveAfter: alert.Duration(time.Hour)}
		if i%10 == 0 {
			rule.When, rule.Count = "", 3 // counts whatever comes
		}
		if _, err := r.engine.Alerts.CreateRule(context.Background(), local.PlaneCall(), rule); err != nil {
			b.Fatal(err)
		}
	}
}

// reporter is an agent that reports events.
type reporter struct {
	rig     *rig
	cluster string
	agent   string
	n       int64
}

func (r *rig) reporter(b *testing.B) *reporter {
	b.Helper()
	ctx := context.Background()
	c, err := r.engine.Store.ClusterByName(ctx, "bench")
	if err != nil {
		b.Fatal(err)
	}
	a, err := r.engine.Agents.Heartbeat(ctx, c.ID, protocol.Heartbeat{Name: "reporter", Boot: "b"})
	if err != nil {
		b.Fatal(err)
	}
	return &reporter{rig: r, cluster: c.ID, agent: a.AgentID}
}

// report reports n events of 200 nodes and their devices.
func (p *reporter) report(n int) error {
	types := []string{"node.ready", "node.not_ready", "device.xid", "device.degraded", "device.recovered", "deployment.oom", "deployment.available", "node.cordoned"}
	evs := make([]protocol.Event, n)
	for i := range evs {
		p.n++
		typ := types[p.n%int64(len(types))]
		kind := typ[:slices.Index([]byte(typ), '.')]
		name := fmt.Sprint("n", p.n*7%200)
		evs[i] = protocol.Event{N: p.n, Type: typ, Subject: protocol.Subject{Kind: kind, UID: name, Name: name}, At: time.Now(),
			Detail: json.RawMessage(`{"reason":"KubeletNotReady","count":2,"node":"gpu-node-04"}`)}
	}
	a, err := p.rig.engine.Agents.Events(context.Background(), p.cluster, protocol.EventsRequest{AgentID: p.agent, Boot: "b", Events: evs})
	if err == nil && len(a.Refused) > 0 {
		err = fmt.Errorf("refused: %+v", a.Refused[0])
	}
	return err
}

// judged waits until the engine has judged so many events more than before.
func (r *rig) judged(b *testing.B, want int64) {
	b.Helper()
	for end := time.Now().Add(10 * time.Minute); r.engine.Reactor.Metrics.Read().Judged < want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the reactor does not come to the end")
		}
	}
}

func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkEventsJudged: events a second that the engine takes in from an agent,
// durably, and judges by 1,000 rules and those that ship, on one core.
func BenchmarkEventsJudged(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := start(b)
	r.thousandRules(b)
	p := r.reporter(b)
	if err := p.report(100); err != nil { // the rules are compiled once
		b.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	n := count(b, "OPSPLANE_BENCH_JUDGED", 30_000)
	const batch = 200
	for b.Loop() {
		before, spent := r.engine.Reactor.Metrics.Read(), processor(b)
		began := time.Now()
		for range n / batch {
			if err := p.report(batch); err != nil {
				b.Fatal(err)
			}
		}
		r.judged(b, before.Judged+int64(n))
		took := time.Since(began)
		now := r.engine.Reactor.Metrics.Read()
		b.ReportMetric(float64(n)/took.Seconds(), "events/s")
		b.ReportMetric(float64((processor(b)-spent).Microseconds())/float64(n), "cpu-µs/event")
		b.ReportMetric(float64(now.Evaluated-before.Evaluated)/float64(n), "expressions/event")
		b.ReportMetric(float64(now.Matched-before.Matched)/float64(n), "matches/event")
	}
}

// BenchmarkHappenedToFiring: from an event's happening to the alert's event being
// there for a reader who waits, with 1,000 rules and nothing else to do.
func BenchmarkHappenedToFiring(b *testing.B) {
	r := start(b)
	r.thousandRules(b) // one less, and this one
	rule := alert.Rule{Name: "each", On: []string{"device.degraded"}, GroupBy: map[string]string{"d": "event.subject.name"}}
	if _, err := r.engine.Alerts.CreateRule(context.Background(), local.PlaneCall(), rule); err != nil {
		b.Fatal(err)
	}
	p := r.reporter(b)
	ctx := context.Background()
	reader := &event.Reader{Ledger: r.engine.Store.Ledger}
	q := event.Query{Cluster: p.cluster, Types: []string{alert.TypeFiring}, Limit: 200}
	drain := func(wait time.Duration) []event.Event {
		q.Wait = wait
		page, err := reader.Read(ctx, q)
		if err != nil {
			b.Fatal(err)
		}
		q.Cursor = page.NextCursor
		return page.Events
	}
	var took []time.Duration
	for b.Loop() {
		for i := range 500 {
			name := fmt.Sprint("gpu", b.N, "-", i)
			p.n++
			began := time.Now()
			_, err := r.engine.Agents.Events(ctx, p.cluster, protocol.EventsRequest{AgentID: p.agent, Boot: "b", Events: []protocol.Event{
				{N: p.n, Type: "device.degraded", Subject: protocol.Subject{Kind: "device", UID: name, Name: name}, At: began}}})
			if err != nil {
				b.Fatal(err)
			}
			for seen := false; !seen; {
				for _, e := range drain(10 * time.Second) {
					var a alert.Alert
					if err := json.Unmarshal(e.Detail, &a); err != nil {
						b.Fatal(err)
					}
					seen = seen || a.Rule == "each" && e.Subject.Name == a.Group["d"] && a.FiredAt != nil && !a.FiredAt.Before(began.Truncate(time.Millisecond))
				}
			}
			took = append(took, time.Since(began))
		}
	}
	quantiles(b, "happened-to-firing", took)
}

// BenchmarkBacktest: one rule over a million stored events.
func BenchmarkBacktest(b *testing.B) {
	n := count(b, "OPSPLANE_BENCH_EVENTS", 1_000_000)
	r := start(b)
	ctx := context.Background()
	const stream, batch = "clu_00000000000000000000000000", 2000
	for at := 0; at < n; at += batch {
		evs := make([]event.Event, min(batch, n-at))
		for i := range evs {
			var err error
			evs[i], err = event.New("device.xid", stream, event.Subject{Kind: "device", ID: fmt.Sprintf("dev_%d", (at+i)%4096), Name: "GPU"}, time.Now(), operation.Plane,
				event.XIDDetail{Node: "gpu-node-04", XID: 48 + i%7, Class: "hardware", Count: 1}, strconv.Itoa(at+i))
			if err != nil {
				b.Fatal(err)
			}
		}
		if _, err := event.Append(ctx, r.engine.Store.Ledger, stream, evs, func() ([]ledger.Write, error) {
			return []ledger.Write{{Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.FormerKey(stream), Data: []byte("{}")}}}, nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	rule := alert.Rule{Name: "try", On: []string{"device.xid"}, When: `event.detail.xid == 48 && event.detail.class == "hardware"`,
		GroupBy: map[string]string{"device": "event.subject.id"}, Count: 3, Window: alert.Duration(time.Hour)}
	for b.Loop() {
		got, err := r.engine.Alerts.Backtest(ctx, react.Backtest{Rule: rule, Streams: []string{stream}, Since: time.Now().Add(-time.Hour)})
		if err != nil || got.Judged != int64(n) || !got.Complete || len(got.Alerts) == 0 {
			b.Fatalf("%d judged, %d alerts, %v", got.Judged, len(got.Alerts), err)
		}
		b.ReportMetric(float64(got.Nanoseconds)/float64(n), "judging-ns/event")
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "events/s")
}
