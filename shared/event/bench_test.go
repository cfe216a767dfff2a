package event

import (
	"context"
	"testing"
)

// BenchmarkAppend appends batches of 100 events, each with its commit.
func BenchmarkAppend(b *testing.B) {
	db := openDB(b)
	evs := facts(100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Append(context.Background(), db, "clu_a", evs, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(evs))/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkRead reads pages of 200 events of one stream.
func BenchmarkRead(b *testing.B) {
	db := openDB(b)
	put(b, db, "clu_a", 100, facts(10_000)...)
	r := &Reader{Ledger: db}
	q := Query{Cluster: "clu_a", Limit: 200}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		p, err := r.Read(context.Background(), q)
		if err != nil {
			b.Fatal(err)
		}
		n += len(p.Events)
		if q.Cursor = p.NextCursor; !p.More {
			q.Cursor = ""
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
