package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/operation"
)

// BenchmarkReaderCatchUp: how fast a reader who begins at the first of a million
// events comes to the last, over HTTP, by the list and by the stream.
func BenchmarkReaderCatchUp(b *testing.B) {
	n := count(b, "OPSPLANE_BENCH_EVENTS", 1_000_000)
	r := start(b)
	ctx := context.Background()
	cluster, err := r.engine.Store.ClusterByName(ctx, "bench")
	if err != nil {
		b.Fatal(err)
	}
	const batch = 2000
	for at := 0; at < n; at += batch {
		evs := make([]event.Event, min(batch, n-at))
		for i := range evs {
			evs[i], err = event.New("device.xid", cluster.ID, event.Subject{Kind: "device", ID: fmt.Sprintf("dev_%d", (at+i)%4096), Name: "GPU"}, time.Now(), operation.Plane,
				event.XIDDetail{Node: "gpu-node-04", XID: 48 + i%7, Class: "ecc", Count: 1}, strconv.Itoa(at+i))
			if err != nil {
				b.Fatal(err)
			}
		}
		if _, err := event.Append(ctx, r.engine.Store.Ledger, cluster.ID, evs, nil); err != nil {
			b.Fatal(err)
		}
	}
	get := func(accept, cursor string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/v1/events?type=device.*&limit=200&cluster="+cluster.ID+"&cursor="+cursor, nil)
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+r.token)
		req.Header.Set("Accept", accept)
		res, err := r.client.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatalf("%+v, %v", res, err)
		}
		return res
	}
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			res := get("text/event-stream", "")
			sc := bufio.NewScanner(res.Body)
			sc.Buffer(nil, 1<<20)
			seen := 0
			for seen < n && sc.Scan() {
				if bytes.HasPrefix(sc.Bytes(), []byte("data: ")) {
					seen++
				}
			}
			_ = res.Body.Close() // the stream goes on
			if seen != n {
				b.Fatalf("%d events of %d, %v", seen, n, sc.Err())
			}
		}
		b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "events/s")
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			seen, cursor := 0, ""
			for more := true; more; {
				res := get("application/json", cursor)
				var page struct {
					Items      []json.RawMessage
					NextCursor string `json:"next_cursor"`
					More       bool
				}
				if err := json.NewDecoder(res.Body).Decode(&page); err != nil {
					b.Fatal(err)
				}
				_ = res.Body.Close() // read to its end
				seen, cursor, more = seen+len(page.Items), page.NextCursor, page.More
			}
			if seen != n {
				b.Fatalf("%d events of %d", seen, n)
			}
		}
		b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "events/s")
	})
}
