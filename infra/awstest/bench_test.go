//go:build awstest

package awstest

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// BenchmarkOperations carries 100 operations of one step through the deployed
// functions, 8 callers at a time, and tells how many a second ended. The local
// AWS takes most of the time: the figure shows a regression, not what AWS does.
// What AWS charges for one is counted by package bill.
func BenchmarkOperations(b *testing.B) {
	const count, callers = 100, 8
	p := deployed(b)
	c := p.register("bench")
	p.agent(c, world(b, count, false))
	nodes := p.nodes(c.ID, count)
	for b.Loop() {
		began := time.Now()
		work := make(chan node, count)
		for _, n := range nodes {
			work <- n
		}
		close(work)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for n := range work {
					var o op
					a, err := p.Do(b.Context(), http.MethodPost, "/v1/operations", request{Type: "node.cordon", Target: n.ID, Reason: "bench"})
					if err == nil && a.Status == http.StatusAccepted {
						err = a.Into(&o)
					}
					for err == nil && !o.Phase.Terminal() {
						if a, err = p.Do(b.Context(), http.MethodGet, "/v1/operations/"+o.ID+"?wait=20s", nil, "If-None-Match", a.Header.Get("ETag")); err == nil {
							err = a.Into(&o)
						}
					}
					if err != nil || o.Phase != operation.Succeeded {
						b.Errorf("an operation ended as %q (%d, %v)", o.Phase, a.Status, err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(count/time.Since(began).Seconds(), "ops/s")
	}
}
