package bench

import (
	"context"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// count is how many of something a benchmark works on: the environment's say, or
// the default.
func count(b *testing.B, env string, normal int) int {
	s := os.Getenv(env)
	if s == "" {
		return normal
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// finished writes a finished cordon the way admission, claim and report do, but
// in one commit: only what is stored counts here.
func finished(st *record.Store, node fleet.Object, at time.Time) []ledger.Write {
	def, _ := operation.Lookup("node.cordon")
	opID := id.New(id.Operation, at)
	t := node.Target()
	locks, steps, resources := operation.BuildPlan(def, opID, t, []byte("{}"))
	op := operation.Operation{Spec: operation.Spec{ID: opID, Request: operation.Request{Type: def.Type, Target: t.ID, Reason: "stored", Payload: []byte("{}")},
		ContractVersion: operation.ContractVersion, TargetID: t.ID, TargetName: "node:" + t.Name, TargetUID: t.UID, Cluster: t.Cluster, Resources: resources,
		Locks: locks, Steps: steps, Actor: operation.Actor{ID: "bench", Kind: "token"}, RequestID: opID, CorrelationID: opID, CreatedAt: at}}
	state, entries, err := operation.Admit(&op.Spec, at.Add(time.Hour))
	if err != nil {
		panic(err)
	}
	var all []operation.Entry
	all = append(all, entries...)
	step := func(c operation.Change) {
		next, es, err := operation.Apply(&op.Spec, state, c, at)
		if err != nil {
			panic(err)
		}
		state, all = next, append(all, es...)
	}
	step(operation.Dispatch{})
	step(operation.Claim{Agent: "agt", Boot: "b", Until: at.Add(time.Minute)})
	var reports []operation.StepReport
	for _, s := range steps {
		reports = append(reports, operation.StepReport{StepID: s.ID, Phase: operation.StepSucceeded, Outcome: operation.OutcomeDone})
	}
	step(operation.Report{Agent: "agt", Generation: 1, N: 1, Steps: reports, Final: &operation.Final{Outcome: operation.FinalSucceeded, Message: "done"}})
	op.State = state
	ws := st.CreateWrites(&op, all)
	for i := range ws {
		ws[i].Feed = false
	}
	return ws
}

// BenchmarkStored: with a million operations stored, how long lists and reads
// take, how fast the engine starts, what it keeps in memory and on disk.
func BenchmarkStored(b *testing.B) {
	n := count(b, "OPSPLANE_BENCH_STORED", 1_000_000)
	r := start(b)
	nodes := r.objects(b, operation.KindNode)
	st := r.engine.Store
	began := time.Now().Add(-90 * 24 * time.Hour)
	var wg sync.WaitGroup
	work := make(chan int, 1024)
	for range 64 {
		wg.Go(func() {
			for i := range work {
				at := began.Add(time.Duration(i) * 7 * time.Second).UTC().Truncate(time.Millisecond)
				if err := st.Ledger.Commit(context.Background(), finished(st, nodes[i%len(nodes)], at)...); err != nil {
					panic(err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	var page struct {
		Items      []operationView `json:"items"`
		NextCursor string          `json:"next_cursor"`
	}
	if code, err := r.call("GET", "/v1/operations?limit=200", nil, &page); err != nil || code != http.StatusOK || len(page.Items) == 0 {
		b.Fatal(code, err)
	}
	for b.Loop() {
		measure := func(name string, count int, f func(i int) string) {
			ds := make([]time.Duration, count)
			for i := range ds {
				path := f(i)
				t := time.Now()
				if code, err := r.call("GET", path, nil, nil); err != nil || code != http.StatusOK {
					b.Fatal(path, code, err)
				}
				ds[i] = time.Since(t)
			}
			quantiles(b, name, ds)
		}
		measure("get", 1000, func(i int) string { return "/v1/operations/" + page.Items[i%len(page.Items)].ID })
		measure("list", 300, func(int) string { return "/v1/operations?limit=50" })
		measure("list-target", 300, func(i int) string { return "/v1/operations?limit=50&target=" + nodes[i%len(nodes)].ID })
		measure("list-active", 300, func(int) string { return "/v1/operations?limit=50&active=true" })
	}
	r.stop()
	page.Items = nil
	if info, err := os.Stat(local.LedgerPath(r.data)); err == nil {
		b.ReportMetric(float64(info.Size())/float64(n), "disk-bytes/op")
	}
	opened := time.Now()
	e, err := local.New(context.Background(), local.Options{Data: r.data, Addr: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(opened).Milliseconds()), "start-ms")
	var ms runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&ms)
	b.ReportMetric(float64(ms.HeapInuse)/(1<<20), "heap-MB")
	if err := e.Close(); err != nil {
		b.Error(err)
	}
}
