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

// BenchmarkCatchUp is one reader who reads a stream of a million events from its
// beginning to its head, as a follower does: pages of 200, each event with its
// cursor.
func BenchmarkCatchUp(b *testing.B) {
	const total = 1_000_000
	db := openDB(b)
	evs := facts(2000)
	for range total / len(evs) {
		put(b, db, "clu_a", len(evs), evs...)
	}
	r := &Reader{Ledger: db, Streams: list("clu_a")}
	for name, q := range map[string]Query{"one stream": {Cluster: "clu_a", Limit: MaxLimit}, "all streams": {Limit: MaxLimit}, "filtered": {Cluster: "clu_a", Limit: MaxLimit, Types: []string{"device.*"}}} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				f, err := r.Follow(context.Background(), q)
				if err != nil {
					b.Fatal(err)
				}
				for more := true; more; {
					var steps []Step
					if steps, more, err = f.Next(context.Background(), 0); err != nil {
						b.Fatal(err)
					}
					n += len(steps)
				}
			}
			if name != "filtered" && n != b.N*total {
				b.Fatalf("%d events of %d", n, total)
			}
			b.ReportMetric(float64(b.N*total)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
