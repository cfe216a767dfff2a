package react

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// thousandRules keeps 1,000 rules over the catalogue's types, such as a site
// might write: by subject, by detail, counted, and with a way to resolve. Each
// event type is looked at by some 25 of them; few match.
func (b *bench) thousandRules() {
	b.t.Helper()
	types := event.Catalogue()
	types = slices.DeleteFunc(types, func(a event.About) bool { return len(a.Type) > 6 && a.Type[:6] == "alert." })
	var writes []ledger.Write
	for i := range 1000 {
		r := alert.Rule{Name: fmt.Sprint("r", i), On: []string{types[i%len(types)].Type}, GroupBy: map[string]string{"subject": "event.subject.id"},
			When: fmt.Sprintf(`event.severity != "info" && event.subject.name.startsWith("n%d") && event.detail.?reason.orValue("") != "maintenance"`, i%100),
			// An hour of quiet keeps alerts from coming and going within the bench.
			Count: 1 + i%3, Window: alert.Duration(10 * time.Minute), ResolveAfter: alert.Duration(time.Hour)}
		if i%10 == 0 { // a rule in ten that counts whatever comes
			r.When, r.Count = "", 3
		}
		st := stored{ID: alert.ShippedID(r.Name), Rule: r, Version: 1}
		if _, err := alert.Compile(r, st.ID, 1); err != nil {
			b.t.Fatal(err)
		}
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}})
		if len(writes) == 90 || i == 999 {
			if err := b.service.change(context.Background(), func() ([]ledger.Write, error) { return writes, nil }); err != nil {
				b.t.Fatal(err)
			}
			writes = nil
		}
	}
}

// fleetEvents are n events of a fleet of 200 nodes, of the types that agents tell.
func (b *bench) fleetEvents(n int) []event.Event {
	types := []string{"node.ready", "node.not_ready", "device.xid", "device.degraded", "device.recovered", "deployment.oom", "deployment.available", "node.cordoned"}
	evs := make([]event.Event, n)
	for i := range evs {
		k := b.n
		evs[i] = b.fact(types[k%len(types)], fmt.Sprint("n", k*7%200), map[string]any{"reason": "KubeletNotReady", "count": k % 5, "node": "gpu-node-04"})
		evs[i].Severity = event.SeverityOf(evs[i].Type)
	}
	return evs
}

// cpu is how much processor time the process has taken, whoever else was at work.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIngestAndJudge appends batches of 100 events to a stream, durably, and
// judges them by 1,000 rules and those that ship. Run with -cpu 1.
func BenchmarkIngestAndJudge(b *testing.B) {
	p := setup(b)
	p.thousandRules()
	p.put(p.fleetEvents(100)...)
	p.follow() // rules are compiled once
	before := p.reactor.Metrics.Read()
	n, spent := 0, cpu(b)
	b.ReportAllocs()
	for b.Loop() {
		p.advance(10 * time.Millisecond)
		p.put(p.fleetEvents(100)...)
		p.follow()
		n += 100
	}
	b.ReportMetric(float64((cpu(b)-spent).Microseconds())/float64(n), "cpu-µs/event")
	m := p.reactor.Metrics.Read()
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(m.Matched-before.Matched)/float64(n), "matches/event")
	b.ReportMetric(float64(m.Evaluated-before.Evaluated)/float64(n), "expressions/event")
	if m.Judged-before.Judged != int64(n) {
		b.Fatalf("judged %d of %d events", m.Judged-before.Judged, n)
	}
}
