package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

// readerRounds is how many rounds of the property are run: each has races of its
// own, and takes a plane of its own.
const readerRounds = 6

// follower is one reader of the property test, as a program of a user's would be:
// it keeps nothing but its cursor, and begins anew whenever its call ends.
type follower struct {
	p      *plane
	base   func() string
	role   string
	query  url.Values
	wants  func(*event.Event) bool
	limits []int
	takes  []int // how many events it takes from a stream before it drops it
	stream bool
	cursor string
	seen   []event.Event
}

func (f *follower) get(ctx context.Context, accept string, q url.Values, lastID string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.base()+"/v1/events?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+f.p.bearer[f.role])
	req.Header.Set("Accept", accept)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	return http.DefaultClient.Do(req)
}

// list reads one page; over: there is no more now.
func (f *follower) list(ctx context.Context, limit int) (over bool, err error) {
	q := url.Values{"limit": {fmt.Sprint(limit)}}
	for k, v := range f.query {
		q[k] = v
	}
	if f.cursor != "" {
		q.Set("cursor", f.cursor)
	}
	res, err := f.get(ctx, mediaJSON, q, "")
	if err != nil {
		return false, nil // the server is being started again
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return false, nil
	}
	if res.StatusCode != 200 {
		return false, fmt.Errorf("%s: %s", res.Status, raw)
	}
	var page struct {
		Items      []event.Event
		NextCursor string `json:"next_cursor"`
		More       bool
	}
	if err := json.Unmarshal(raw, &page); err != nil {
		return false, err
	}
	if len(page.Items) > limit {
		return false, fmt.Errorf("%d events, the limit is %d", len(page.Items), limit)
	}
	f.seen, f.cursor = append(f.seen, page.Items...), page.NextCursor
	return len(page.Items) == 0 && !page.More, nil
}

// follow reads one stream until it ends, is cut, or enough was taken.
func (f *follower) follow(ctx context.Context, limit, take int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{"limit": {fmt.Sprint(limit)}, "wait": {"40ms"}}
	for k, v := range f.query {
		q[k] = v
	}
	res, err := f.get(ctx, mediaStream, q, f.cursor)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		raw, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s: %s", res.Status, raw)
	}
	s := &sse{r: bufio.NewReader(res.Body), id: f.cursor}
	for n := 0; n < take; {
		b, err := s.next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || err != nil && strings.Contains(err.Error(), "reset") {
			return nil // over, or cut by a restart
		}
		if err != nil {
			return err
		}
		f.cursor = s.id
		if !b.hasData {
			continue
		}
		var e event.Event
		if err := json.Unmarshal([]byte(b.data), &e); err != nil || b.event != "" {
			return fmt.Errorf("block %+v: %v", b, err)
		}
		f.seen = append(f.seen, e)
		n++
	}
	return nil
}

// run reads until everything was written and read.
func (f *follower) run(ctx context.Context, written <-chan struct{}) error {
	for n := 0; ; n++ {
		over := false
		select {
		case <-written:
			over = true
		default:
		}
		limit := f.limits[n%len(f.limits)]
		if f.stream {
			if err := f.follow(ctx, limit, f.takes[n%len(f.takes)]); err != nil {
				return err
			}
		}
		if !f.stream || over || n%5 == 4 { // a stream's id is a list's cursor
			end, err := f.list(ctx, limit)
			if err != nil || end && over {
				return err
			}
		}
	}
}

// TestReadersOverHTTP: while eight writers write, and the server is started again
// and again, four readers of the list and of the stream, each with pages and
// filters of its own, see every matching event once and in order.
func TestReadersOverHTTP(t *testing.T) {
	t.Parallel()
	rounds, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > readerRounds && !failed { // one that failed is run again, to make it small
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		readersOverHTTP(t, rt)
	})
}

func readersOverHTTP(t *testing.T, rt *rapid.T) {
	p := setup(t)
	streams := []string{p.cluster.ID, p.other.ID, event.PlaneStream}
	types := []string{"node.ready", "node.left", "device.xid", "x.y"}
	t0 := time.Now().UTC().Truncate(time.Second)
	serial := 0
	writers := make([][][]event.Event, 8)
	for w := range writers {
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			stream := rapid.SampledFrom(streams).Draw(rt, "stream")
			var batch []event.Event
			for range rapid.SampledFrom([]int{1, 1, 2, 7, 60}).Draw(rt, "size") {
				serial++
				cluster := stream
				if stream == event.PlaneStream {
					cluster = ""
				}
				e, err := event.New(types[serial%len(types)], cluster, event.Subject{Kind: "node", ID: id.Derive(id.Node, fmt.Sprint(serial%3)), Name: fmt.Sprint("n", serial%3)},
					t0.Add(time.Duration(serial)*time.Second), operation.Plane, map[string]int{"n": serial}, fmt.Sprint(serial))
				if err != nil {
					rt.Fatal(err)
				}
				batch = append(batch, e)
			}
			writers[w] = append(writers[w], batch)
		}
	}
	base, srv := p.listen()
	var at atomic.Pointer[string]
	at.Store(&base)
	readers := make([]*follower, 4)
	for i := range readers {
		f := &follower{p: p, base: func() string { return *at.Load() }, role: "viewer", query: url.Values{}, stream: i%2 == 0}
		f.limits = rapid.SliceOfN(rapid.SampledFrom([]int{1, 3, 10, 50, 200}), 1, 4).Draw(rt, "limits")
		f.limits = append(f.limits, 200)
		f.takes = rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 9, 1000}), 1, 4).Draw(rt, "takes")
		f.takes = append(f.takes, 1000)
		wants := []func(*event.Event) bool{func(e *event.Event) bool { return e.OperationID == "" && !strings.HasPrefix(e.Type, "cluster.") }}
		f.query["type"] = []string{"node.*,device.*,x.y"}
		if rapid.Bool().Draw(rt, "types") {
			f.query["type"] = []string{"device.*", "node.left"}
			wants = append(wants, func(e *event.Event) bool { return e.Type == "device.xid" || e.Type == "node.left" })
		}
		if rapid.Bool().Draw(rt, "severity") {
			f.query["severity"] = []string{"error,warning"}
			wants = append(wants, func(e *event.Event) bool { return e.Type != "node.ready" && e.Type != "x.y" })
		}
		switch rapid.SampledFrom([]string{"all", "one", "scoped"}).Draw(rt, "streams") {
		case "one":
			f.query.Set("cluster", p.other.Name)
			wants = append(wants, func(e *event.Event) bool { return e.Stream == p.other.ID })
		case "scoped":
			f.role = "scoped"
			wants = append(wants, func(e *event.Event) bool { return e.Stream == p.cluster.ID })
		}
		if rapid.Bool().Draw(rt, "subject") {
			f.query.Set("subject", "node:n1")
			wants = append(wants, func(e *event.Event) bool { return e.Subject.Name == "n1" })
		}
		if rapid.Bool().Draw(rt, "since") {
			since := t0.Add(time.Duration(rapid.IntRange(0, serial).Draw(rt, "from")) * time.Second)
			f.query.Set("since", since.Format(time.RFC3339))
			wants = append(wants, func(e *event.Event) bool { return !e.Timestamp.Before(since) })
		}
		f.wants = func(e *event.Event) bool {
			for _, w := range wants {
				if !w(e) {
					return false
				}
			}
			return true
		}
		readers[i] = f
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var writing, rest sync.WaitGroup
	var mu sync.Mutex
	var all []event.Event
	for _, batches := range writers {
		writing.Go(func() {
			for _, b := range batches {
				evs, err := event.Append(ctx, p.db, b[0].Stream, b, nil)
				if err != nil {
					rt.Errorf("append: %v", err)
					return
				}
				mu.Lock()
				all = append(all, evs...)
				mu.Unlock()
			}
		})
	}
	written := make(chan struct{})
	for _, f := range readers {
		rest.Go(func() {
			if err := f.run(ctx, written); err != nil {
				rt.Errorf("reader %+v: %v", f.query, err)
			}
		})
	}
	for n := range 4 {
		_ = srv.Close() // cuts what is under way
		base, next := p.listen()
		at.Store(&base)
		srv = next
		if n == 1 {
			writing.Wait()
		}
	}
	close(written)
	rest.Wait()
	for i, f := range readers {
		want, last := map[string]bool{}, map[string]int64{}
		for _, e := range all {
			if f.wants(&e) {
				want[e.ID] = true
			}
		}
		for _, e := range f.seen {
			if !want[e.ID] {
				rt.Fatalf("reader %d %v saw %s/%d, which is twice or not asked for", i, f.query, e.Stream, e.Sequence)
			}
			delete(want, e.ID)
			if e.Sequence <= last[e.Stream] {
				rt.Fatalf("reader %d saw %s/%d behind %d", i, e.Stream, e.Sequence, last[e.Stream])
			}
			last[e.Stream] = e.Sequence
		}
		if len(want) > 0 {
			rt.Fatalf("reader %d %v missed %d events of %d", i, f.query, len(want), len(all))
		}
	}
}
