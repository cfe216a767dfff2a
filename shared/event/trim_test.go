package event

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

func runs(t *testing.T, l ledger.Reader, stream string) []ledger.Item {
	t.Helper()
	p, err := l.Query(context.Background(), ledger.Query{PK: record.StreamPK(stream), From: "ev#", To: "ev$"})
	if err != nil {
		t.Fatal(err)
	}
	return p.Items
}

func TestTrim(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	put(t, db, "clu_a", 10, facts(500)...)
	r := &Reader{Ledger: db}
	p, err := r.Read(ctx, Query{Cluster: "clu_a", Limit: 5})
	if err != nil || p.Low != 1 {
		t.Fatalf("low %d, %v", p.Low, err)
	}
	old := p.NextCursor

	for _, tt := range []struct {
		before       int
		low          int64
		gone, remain int
	}{
		{0, 1, 0, 50},      // nothing is so old
		{9, 1, 0, 50},      // the run's last is from then
		{10, 11, 1, 49},    // one run is wholly older
		{255, 251, 24, 25}, // that run stays, with older ones in it
		{255, 251, 0, 25},
		{500, 501, 25, 0}, // all of them
	} {
		head, n, err := Trim(ctx, db, "clu_a", t0.Add(time.Duration(tt.before)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if left := len(runs(t, db, "clu_a")); head.Low != tt.low || n != tt.gone || left != tt.remain {
			t.Errorf("before %d s: low %d, %d gone, %d left, want %+v", tt.before, head.Low, n, left, tt)
		}
		_, err = r.Read(ctx, Query{Cluster: "clu_a", Cursor: old})
		var expired *ExpiredError
		switch {
		case tt.low <= 6 && err != nil:
			t.Errorf("before %d s: %v", tt.before, err)
		case tt.low > 6 && (!errors.Is(err, ErrExpired) || !errors.As(err, &expired) || expired.Streams["clu_a"] != tt.low):
			t.Errorf("before %d s: %v", tt.before, err)
		case tt.low > 6:
			got, _ := drain(t, r, Query{Cluster: "clu_a", Cursor: expired.Cursor, Limit: 200})
			if len(got) != 501-int(tt.low) {
				t.Errorf("from the first cursor left: %d events", len(got))
			}
		}
		if got, _ := drain(t, r, Query{Cluster: "clu_a", Limit: 200}); len(got) != 501-int(tt.low) {
			t.Errorf("without a cursor: %d events", len(got))
		}
	}
	// An emptied stream goes on with its numbers.
	evs, err := Append(ctx, db, "clu_a", facts(1), nil)
	if err != nil || evs[0].Sequence != 501 {
		t.Errorf("appended %v, %v", evs, err)
	}
	if _, _, err := ReadStream(ctx, db, "clu_a", 500, 10); !errors.Is(err, ErrExpired) {
		t.Errorf("position below the mark: %v", err)
	}
	if head, n, err := Trim(ctx, db, "nobody", t0); n != 0 || err != nil || head.Next != 1 {
		t.Errorf("a stream without events: %+v %d %v", head, n, err)
	}
}

func TestTrimAllStreamsCursor(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	put(t, db, "clu_a", 10, facts(50)...)
	put(t, db, "clu_b", 10, facts(50)...)
	r := &Reader{Ledger: db, Streams: list("clu_a", "clu_b")}
	p, err := r.Read(ctx, Query{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Trim(ctx, db, "clu_a", t0.Add(20*time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = r.Read(ctx, Query{Cursor: p.NextCursor})
	var expired *ExpiredError
	if !errors.As(err, &expired) || len(expired.Streams) != 1 || expired.Streams["clu_a"] != 21 {
		t.Fatalf("after a trim of one stream: %v", err)
	}
	got, _ := drain(t, r, Query{Cursor: expired.Cursor, Limit: 200})
	if len(got) != 30+45 {
		t.Errorf("%d events from the first cursor left", len(got))
	}
}

// failing fails commits that delete, as a process that ended would.
type failing struct{ ledger.Ledger }

func (f failing) Commit(ctx context.Context, ws ...ledger.Write) error {
	if ws[0].Kind == ledger.Delete {
		return ledger.ErrUnavailable
	}
	return f.Ledger.Commit(ctx, ws...)
}

// TestTrimCutOff: the mark is raised before anything goes, and the next Trim
// deletes what the last one left.
func TestTrimCutOff(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	put(t, db, "clu_a", 1, facts(20)...)
	head, _, err := Trim(ctx, failing{db}, "clu_a", t0.Add(10*time.Second))
	if !errors.Is(err, ledger.ErrUnavailable) || head.Low != 11 {
		t.Fatalf("cut off: low %d, %v", head.Low, err)
	}
	if got, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a"}); len(got) != 10 || got[0].Sequence != 11 {
		t.Errorf("read between: %v", sequences(got))
	}
	if _, n, err := Trim(ctx, db, "clu_a", t0.Add(10*time.Second)); n != 10 || err != nil {
		t.Errorf("the next trim deleted %d runs, %v", n, err)
	}
}

// TestReadWhileTrimming: a reader that retention does not pass sees every event
// while runs are deleted and written around it; one that it passes is told so.
func TestReadWhileTrimming(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	r := &Reader{Ledger: db}
	const total = 600
	evs := facts(total)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := 0; i < total; i += 20 {
			put(t, db, "clu_a", 5, evs[i:i+20]...)
			if _, _, err := Trim(ctx, db, "clu_a", t0.Add(time.Duration(i-100)*time.Second)); err != nil {
				t.Errorf("trim: %v", err)
			}
		}
	})
	wg.Go(func() {
		q, next, last := Query{Cluster: "clu_a", Limit: 30}, int64(1), false
		for {
			p, err := r.Read(ctx, q)
			var expired *ExpiredError
			if errors.As(err, &expired) {
				if next = expired.Streams["clu_a"]; next > total-100 {
					t.Errorf("expired up to %d", next)
				}
				q.Cursor = expired.Cursor
				continue
			}
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			for i, e := range p.Events {
				if q.Cursor == "" && i == 0 {
					next = e.Sequence
				}
				if e.Sequence != next {
					t.Errorf("event %d, want %d", e.Sequence, next)
				}
				next = e.Sequence + 1
			}
			q.Cursor = p.NextCursor
			if last && !p.More {
				if next != total+1 {
					t.Errorf("ended before %d", next)
				}
				return
			}
			select {
			case <-done:
				last = true
			default:
			}
		}
	})
	wg.Wait()
}
