package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func benchDB(b *testing.B) *DB {
	b.Helper()
	db, err := Open(context.Background(), Options{Path: filepath.Join(b.TempDir(), "ledger.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return db
}

// report adds what the benchmark's time and counts make a second.
func report(b *testing.B, db *DB) {
	b.Helper()
	s := db.Stats()
	seconds := b.Elapsed().Seconds()
	b.ReportMetric(float64(s.Commits)/seconds, "commits/s")
	b.ReportMetric(float64(s.Writes)/seconds, "rows/s")
	b.ReportMetric(float64(s.Commits)/float64(max(s.Batches, 1)), "commits/batch")
}

// operation is the shape of a small commit: a record in two indexes, due and
// fed, two journal entries and a lock.
func operation(n int64, version int64) []ledger.Write {
	id := fmt.Sprintf("op_%016x", n)
	data := make([]byte, 600)
	return []ledger.Write{
		{Item: ledger.Item{
			Key:  ledger.Key{PK: "operation#" + id, SK: "record"},
			Data: data, Due: time.UnixMilli(1_800_000_000_000 + n),
			Index: map[ledger.Index]ledger.Key{
				ledger.List: {PK: "operations", SK: id},
				ledger.Live: {PK: "operations", SK: id},
			},
		}, Expect: version, Feed: true},
		{Item: ledger.Item{Key: ledger.Key{PK: "operation#" + id, SK: fmt.Sprintf("journal#%08d", 2*version)}, Data: data[:200]}},
		{Item: ledger.Item{Key: ledger.Key{PK: "operation#" + id, SK: fmt.Sprintf("journal#%08d", 2*version+1)}, Data: data[:200]}},
		{Item: ledger.Item{Key: ledger.Key{PK: "lock#node", SK: id}, Data: data[:100]}, Expect: version},
	}
}

func benchmarkCommit(b *testing.B, perItem int64) {
	db := benchDB(b)
	var next atomic.Int64
	b.SetParallelism(128)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var id, version int64
		for pb.Next() {
			if version == 0 {
				id = next.Add(1)
			}
			if err := db.Commit(context.Background(), operation(id, version)...); err != nil {
				b.Error(err)
				return
			}
			version = (version + 1) % perItem
		}
	})
	b.StopTimer()
	report(b, db)
}

// BenchmarkCommit is many callers, each with commits of 4 writes.
func BenchmarkCommit(b *testing.B) {
	b.Run("create", func(b *testing.B) { benchmarkCommit(b, 1) })
	b.Run("advance", func(b *testing.B) { benchmarkCommit(b, 6) })
}

// BenchmarkCommitAlone is one caller: the wait of a sync.
func BenchmarkCommitAlone(b *testing.B) {
	db := benchDB(b)
	n := int64(0)
	for b.Loop() {
		n++
		if err := db.Commit(context.Background(), operation(n, 0)...); err != nil {
			b.Fatal(err)
		}
	}
	report(b, db)
}

func filled(b *testing.B, n int64) *DB {
	b.Helper()
	db := benchDB(b)
	for i := range n {
		if err := db.Commit(context.Background(), operation(i, 0)...); err != nil {
			b.Fatal(err)
		}
	}
	return db
}

func BenchmarkGet(b *testing.B) {
	db := filled(b, 2000)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for n := 0; pb.Next(); n++ {
			k := ledger.Key{PK: fmt.Sprintf("operation#op_%016x", n%2000), SK: "record"}
			if _, err := db.Get(context.Background(), k); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkQueryPage(b *testing.B) {
	db := filled(b, 2000)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		q := ledger.Query{Index: ledger.List, PK: "operations", Reverse: true, Limit: 50}
		for pb.Next() {
			page, err := db.Query(context.Background(), q)
			if err != nil || len(page.Items) == 0 {
				b.Error(len(page.Items), err)
				return
			}
			q.After = page.Next
		}
	})
}
