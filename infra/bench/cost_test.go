package bench

import (
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// counted is an HTTP transport that counts requests.
type counted struct {
	http.RoundTripper
	calls *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.calls.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// cost is what the process had spent at one moment: the engine's, the agent's
// and the clients' together.
type cost struct {
	cpu                            time.Duration // user and system
	mallocs, bytes                 uint64
	commits, syncs, rows, reads    int64
	conflicts, agentHTTP, userHTTP int64
	written                        int64 // bytes for the disk
}

// written reads how many bytes the process has written to files (proc(5),
// /proc/pid/io, write_bytes: what went to the disk or is to go there); 0 where
// the system does not tell.
func written() int64 {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

func (r *rig) cost(tb testing.TB) cost {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := r.engine.Store.Ledger.(*sqlite.DB).Stats()
	return cost{cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano()), mallocs: m.Mallocs, bytes: m.TotalAlloc,
		commits: s.Commits, syncs: s.Batches, rows: s.Writes, reads: s.Reads, conflicts: s.Conflicts,
		agentHTTP: r.agentCalls.Load(), userHTTP: r.userCalls.Load(), written: written()}
}

// report prints what n operations cost each, since the earlier moment.
func (now cost) report(b *testing.B, was cost, n int) {
	per := func(v int64) float64 { return float64(v) / float64(n) }
	b.ReportMetric(per((now.cpu - was.cpu).Microseconds()), "cpu-us/op")
	b.ReportMetric(per(int64(now.mallocs-was.mallocs)), "mallocs/op")
	b.ReportMetric(per(int64(now.bytes-was.bytes))/1024, "alloc-KB/op")
	b.ReportMetric(per(now.commits-was.commits), "commits/op")
	b.ReportMetric(per(now.syncs-was.syncs), "syncs/op")
	b.ReportMetric(per(now.rows-was.rows), "rows/op")
	b.ReportMetric(per(now.written-was.written)/1024, "disk-KB/op")
	b.ReportMetric(per(now.reads-was.reads), "file-reads/op")
	b.ReportMetric(per(now.conflicts-was.conflicts), "conflicts/op")
	b.ReportMetric(per(now.agentHTTP-was.agentHTTP), "agent-calls/op")
	b.ReportMetric(per(now.userHTTP-was.userHTTP), "user-calls/op")
}
