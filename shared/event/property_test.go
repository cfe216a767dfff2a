package event

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/ledger"
)

// The property needs few rounds, each with its own races; -rapid.checks asks for
// more.
func init() {
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
}

// readerPlan is a plan for one reader of the property test.
type readerPlan struct {
	query  Query
	limits []int
	wait   bool
	// follow: it reads as a stream does, and goes on from one of the events of a
	// page, not always the last.
	follow bool
}

// read reads one page.
func (p *readerPlan) read(ctx context.Context, r *Reader, q Query, page int) (Page, error) {
	if !p.follow {
		return r.Read(ctx, q)
	}
	f, err := r.Follow(ctx, q)
	if err != nil {
		return Page{}, err
	}
	var out Page
	steps, more, err := f.Next(ctx, q.Wait)
	if err != nil {
		return Page{}, err
	}
	if out.More = more; len(steps) == 0 {
		out.NextCursor, err = f.Cursor(ctx)
		return out, err
	}
	take := 1 + page%len(steps)
	out.More = more || take < len(steps)
	for _, s := range steps[:take] {
		out.Events, out.NextCursor = append(out.Events, s.Event), s.Cursor
	}
	return out, nil
}

// TestReadersSeeEachEventOnce: while writers write to several streams, some of
// them against each other, readers that are made anew from their cursor for each
// page see each matching event exactly once, in order within each stream.
func TestReadersSeeEachEventOnce(t *testing.T) {
	t.Parallel()
	readersSeeEachEventOnce(t, openDB(t), math.MaxInt)
}

// readersSeeEachEventOnce is the property on an engine, for a number of rounds.
func readersSeeEachEventOnce(t *testing.T, db ledger.Ledger, rounds int64) {
	var round atomic.Int64
	var failed atomic.Bool
	types := []string{"node.ready", "node.left", "device.degraded", "x.y"}
	rapid.Check(t, func(rt *rapid.T) {
		n := round.Add(1)
		if n > rounds && !failed.Load() { // one that failed is run again, to make it small
			return
		}
		defer func() { failed.Store(failed.Load() || rt.Failed()) }()
		streams := []string{}
		for i := range rapid.IntRange(1, 4).Draw(rt, "streams") {
			streams = append(streams, fmt.Sprintf("clu_%d_%d", n, i))
		}
		type batch struct {
			stream string
			events []Event
		}
		writers := make([][]batch, rapid.IntRange(1, 3).Draw(rt, "writers"))
		serial := 0
		for w := range writers {
			for range rapid.IntRange(0, 4).Draw(rt, "batches") {
				b := batch{stream: rapid.SampledFrom(streams).Draw(rt, "stream")}
				for range rapid.SampledFrom([]int{1, 1, 2, 7, 30, 210}).Draw(rt, "size") {
					serial++
					e := fact(types[serial%len(types)], fmt.Sprintf("n%d", serial%3), serial)
					e.Severity = Severities[serial%len(Severities)]
					b.events = append(b.events, e)
				}
				writers[w] = append(writers[w], b)
			}
		}
		plans := make([]readerPlan, rapid.IntRange(1, 3).Draw(rt, "readers"))
		for i := range plans {
			p := &plans[i]
			p.limits = rapid.SliceOfN(rapid.SampledFrom([]int{1, 3, 10, 50, 200}), 1, 4).Draw(rt, "limits")
			if serial > 100 {
				p.limits = append(p.limits, 200)
			}
			p.wait, p.follow = rapid.Bool().Draw(rt, "wait"), rapid.Bool().Draw(rt, "follow")
			q := &p.query
			if rapid.Bool().Draw(rt, "one stream") {
				q.Cluster = rapid.SampledFrom(streams).Draw(rt, "cluster")
			} else if rapid.Bool().Draw(rt, "named streams") {
				q.Streams = streams
			}
			q.Types = rapid.SampledFrom([][]string{nil, {"node.*"}, {"x.y"}, {"device.", "node.left"}}).Draw(rt, "types")
			q.Severities = rapid.SampledFrom([][]string{nil, nil, {Error, Critical}, {Info}}).Draw(rt, "severities")
			q.Subject = rapid.SampledFrom([]string{"", "", "node:n1"}).Draw(rt, "subject")
			if rapid.Bool().Draw(rt, "since") {
				q.Since = t0.Add(time.Duration(rapid.IntRange(0, serial+1).Draw(rt, "from")) * time.Second)
			}
		}

		ctx := context.Background()
		var writing, reading sync.WaitGroup
		var mu sync.Mutex
		written := map[string][]Event{} // by id of the stream, in no order
		for _, batches := range writers {
			writing.Go(func() {
				for _, b := range batches {
					evs, err := Append(ctx, db, b.stream, b.events, nil)
					if err != nil {
						rt.Errorf("append: %v", err)
						return
					}
					mu.Lock()
					written[b.stream] = append(written[b.stream], evs...)
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		seen := make([][]Event, len(plans))
		for i, p := range plans {
			reading.Go(func() {
				q := p.query
				for page := 0; ; page++ {
					over := false
					select {
					case <-done:
						over = true
					default:
					}
					// A reader of its own for each page: nothing but the cursor goes on.
					r := &Reader{Ledger: db, Streams: list(streams...), Poll: 5 * time.Millisecond}
					q.Limit = p.limits[page%len(p.limits)]
					if q.Wait = 0; p.wait && !over {
						q.Wait = 20 * time.Millisecond
					}
					got, err := p.read(ctx, r, q, page)
					if err != nil {
						rt.Errorf("read %+v: %v", q, err)
						return
					}
					seen[i] = append(seen[i], got.Events...)
					if len(got.Events) > q.Limit {
						rt.Errorf("page of %d events, the limit is %d", len(got.Events), q.Limit)
					}
					q.Cursor = got.NextCursor
					if over && !got.More {
						return
					}
				}
			})
		}
		writing.Wait()
		close(done)
		reading.Wait()

		for _, s := range streams {
			places := map[int64]bool{}
			for _, e := range written[s] {
				places[e.Sequence] = true
			}
			for seq := int64(1); seq <= int64(len(written[s])); seq++ {
				if !places[seq] {
					rt.Fatalf("stream %s has a hole at %d of %d", s, seq, len(written[s]))
				}
			}
		}
		for i, p := range plans {
			q, err := p.query.normalize()
			if err != nil {
				rt.Fatal(err)
			}
			want, last, ids := map[string]bool{}, map[string]int64{}, map[string]bool{}
			for s, evs := range written {
				for _, e := range evs {
					if (len(q.Streams) == 0 || slices.Contains(q.Streams, s)) && q.matches(&Head{}, &e) {
						want[e.ID] = true
					}
				}
			}
			for _, e := range seen[i] {
				if !want[e.ID] || ids[e.ID] {
					rt.Fatalf("reader %d saw %s/%d, which is twice or not asked for", i, e.Stream, e.Sequence)
				}
				ids[e.ID] = true
				if e.Sequence <= last[e.Stream] {
					rt.Fatalf("reader %d saw %s/%d behind %d", i, e.Stream, e.Sequence, last[e.Stream])
				}
				last[e.Stream] = e.Sequence
			}
			if len(ids) != len(want) {
				rt.Fatalf("reader %d %+v saw %d events of %d", i, q, len(ids), len(want))
			}
		}
	})
}
