package event

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

func TestRestored(t *testing.T) {
	t.Parallel()
	testRestored(t, func(t *testing.T) ledger.Ledger { return openDB(t) })
}

// life is a ledger with one stream, and every cursor that a reader was given there.
type life struct {
	t       *testing.T
	l       ledger.Ledger
	cursors []string // by the event before it; the first is behind none
	told    []string // the names of the events
}

func (b *life) reader() *Reader { return &Reader{Ledger: b.l, Poll: time.Millisecond} }

func (b *life) append(name string, n, at int) {
	b.t.Helper()
	for i := range n {
		e := fact("node.ready", fmt.Sprint(name, i+1), at+i)
		if _, err := Append(b.t.Context(), b.l, "plane", []Event{e}, nil); err != nil {
			b.t.Fatal(err)
		}
	}
}

// read reads on from the cursor, a few events at a time, and returns their names.
func (b *life) read(cursor string, types ...string) (names, cursors []string) {
	b.t.Helper()
	f, err := b.reader().Follow(b.t.Context(), Query{Streams: []string{"plane"}, Types: types, Cursor: cursor, Limit: 4})
	if err != nil {
		b.t.Fatal(err)
	}
	for more := true; more; {
		var steps []Step
		if steps, more, err = f.Next(b.t.Context(), 0); err != nil {
			b.t.Fatal(err)
		}
		for _, s := range steps {
			name := s.Event.Subject.Name
			if s.Event.Type == TypeRestored {
				name = "restored"
			}
			names, cursors = append(names, name), append(cursors, s.Cursor)
		}
	}
	return names, cursors
}

func (b *life) restore(at time.Time) {
	b.t.Helper()
	if err := TellRestored(b.t.Context(), &record.Store{Ledger: b.l, Now: func() time.Time { return at }}); err != nil {
		b.t.Fatal(err)
	}
}

// testRestored: a reader who stood anywhere in what a restore took back - of the plane
// that was backed up, or of one that was restored from the same backup before - reads
// on with the event that tells of the restore, and then sees each event once. One who
// stood before comes to it.
func testRestored(t *testing.T, open func(*testing.T) ledger.Ledger) {
	const kept = 11
	begin := func() *life { // as the backup has it
		b := &life{t: t, l: open(t)}
		b.append("kept", kept, 0)
		return b
	}
	restored := t0.Add(time.Minute)
	lives := []*life{begin(), begin(), begin(), begin()}
	lives[0].append("lost", 10, kept)
	lives[1].restore(restored)
	lives[1].append("first", 25, 60)
	lives[2].restore(restored.Add(10 * time.Second))
	lives[2].append("second", 15, 70)
	lives[3].restore(t0.Add(-time.Hour)) // by a clock that was set back
	lives[3].append("back", 25, 60)
	type reader struct {
		cursor string
		seen   int
	}
	var readers []reader
	for i, b := range lives {
		b.told, b.cursors = b.read("")
		if i > 0 {
			for n, r := range readers {
				if i == 3 && n >= kept+10 { // by its clock the others were not restored yet
					break
				}
				want := slices.Clone(b.told[min(r.seen, kept):])
				if got, _ := b.read(r.cursor); cmp.Diff(want, got) != "" {
					t.Errorf("life %d, a reader who saw %d: %s", i, r.seen, cmp.Diff(want, got))
				}
				// With a filter that the event of the restore is not in.
				f := b.refilter(r.cursor)
				want = slices.DeleteFunc(want, func(s string) bool { return s == "restored" })
				if got, _ := b.read(f, "node.*"); cmp.Diff(want, got) != "" {
					t.Errorf("life %d, a reader of nodes who saw %d: %s", i, r.seen, cmp.Diff(want, got))
				}
			}
		}
		if i == 3 {
			break
		}
		for n, c := range b.cursors {
			readers = append(readers, reader{c, n + 1})
		}
	}
	if n := len(readers); n != 21+37+27 {
		t.Fatalf("%d readers", n)
	}
	lives[1].stands()
}

// refilter is the cursor of the same place of a reader that asks for nodes alone.
func (b *life) refilter(cursor string) string {
	b.t.Helper()
	c, err := decodeCursor(cursor)
	if err != nil {
		b.t.Fatal(err)
	}
	q, err := Query{Streams: []string{"plane"}, Types: []string{"node.*"}}.normalize()
	if err != nil {
		b.t.Fatal(err)
	}
	c.Mark = q.mark()
	return encodeCursor(c)
}

// stands: what a restore leaves is a stretch of the stream like any other, for those
// who look by time, keep their own position, trim, and take details.
func (b *life) stands() {
	t, ctx := b.t, context.Background()
	head, _, err := LoadHead(ctx, b.l, "plane")
	if err != nil {
		t.Fatal(err)
	}
	check := func(from int64) {
		t.Helper()
		evs, _, err := ReadStream(ctx, b.l, "plane", from, 1)
		if err != nil || len(evs) != 1 || evs[0].Type != TypeRestored || evs[0].Sequence != head.Next-26 {
			t.Errorf("from %d: %+v, %v", from, evs, err)
		}
	}
	for _, from := range []int64{12, 13, 500_000, head.Next - 26} {
		check(from)
	}
	for second, want := range map[int]string{0: "kept1", 10: "kept11", 11: "restored", 60: "first1", 84: "first25"} {
		seq, err := FirstAt(ctx, b.l, "plane", t0.Add(time.Duration(second)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		evs, _, err := ReadStream(ctx, b.l, "plane", seq, 1)
		if err != nil || len(evs) != 1 {
			t.Fatal(evs, err)
		}
		if got := evs[0].Subject.Name; got != want && !(want == "restored" || second == 60) || second == 11 && evs[0].Type != TypeRestored {
			t.Errorf("the first from second %d is %s (%s), want %s", second, got, evs[0].Type, want)
		}
	}
	if _, err := ExpireDetails(ctx, b.l, "plane", "stream.*", t0.Add(time.Hour), 1000); err != nil {
		t.Fatal(err)
	}
	check(12)
	if evs, _, err := ReadStream(ctx, b.l, "plane", 12, 1); err != nil || !evs[0].DetailExpired {
		t.Errorf("%+v, %v", evs, err)
	}
	low, _, err := Trim(ctx, b.l, "plane", t0.Add(30*time.Second))
	if err != nil || low.Low != 12 {
		t.Errorf("trimmed to %d, %v", low.Low, err)
	}
	check(12)
	low, _, err = Trim(ctx, b.l, "plane", t0.Add(62*time.Second))
	if err != nil || low.Low <= head.Next-26 {
		t.Errorf("trimmed to %d, %v", low.Low, err)
	}
	behind := low.Low - (head.Next - 26) - 1 // that passed retention behind the stretch
	for from, want := range map[int64]int64{1: 11 + 1 + behind, 12: 1 + behind, 500_000: 1 + behind, head.Next - 26: 1 + behind, head.Next - 25: behind, low.Low: 0, head.Next: 0} {
		if n := low.Passed(from); n != want {
			t.Errorf("%d events passed who stands at %d, want %d", n, from, want)
		}
	}
	var expired *ExpiredError
	if _, _, err = ReadStream(ctx, b.l, "plane", 500_000, 1); !errors.As(err, &expired) {
		t.Errorf("a place in what was trimmed: %v", err)
	}
	if names, _ := b.read(""); !strings.HasPrefix(names[0], "first") {
		t.Errorf("%v", names)
	}
}

func TestRestoredCursors(t *testing.T) {
	t.Parallel()
	testRestoredCursors(t, func(t *testing.T) ledger.Ledger { return openDB(t) })
}

// testRestoredCursors: a reader of several streams whose cursor a restore took back is
// told so, and goes on with what each stream told of it and with all that is new, once.
// One whose cursor the backup has goes on as ever.
func testRestoredCursors(t *testing.T, open func(*testing.T) ledger.Ledger) {
	ctx := t.Context()
	now := t0.Add(time.Minute)
	clock := func() time.Time { return now }
	put := func(l ledger.Ledger, stream, name string, at int) {
		t.Helper()
		if _, err := Append(ctx, l, stream, []Event{fact("node.ready", name, at)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() (l ledger.Ledger, r *Reader, kept string) {
		l = open(t)
		r = &Reader{Ledger: l, Streams: list("clu_a", "clu_b"), Now: clock}
		put(l, "clu_a", "kept-a", 0)
		put(l, PlaneStream, "kept-plane", 1)
		p, err := r.Read(ctx, Query{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return l, r, p.NextCursor
	}
	names := func(r *Reader, q Query) (out []string) {
		t.Helper()
		evs, _ := drain(t, r, q)
		for _, e := range evs {
			if e.Type == TypeRestored {
				e.Subject.Name = "restored " + e.Stream
			}
			out = append(out, e.Subject.Name)
		}
		slices.Sort(out)
		return out
	}
	was, reader, kept := begin()
	put(was, "clu_a", "lost", 2)
	page, err := reader.Read(ctx, Query{})
	if err != nil {
		t.Fatal(err)
	}
	lost := page.NextCursor

	l, reader, again := begin()
	if again != kept || lost == kept {
		t.Fatalf("cursors %s, %s, %s", kept, again, lost)
	}
	if _, err := reader.Read(ctx, Query{Cursor: lost}); !errors.Is(err, ErrInvalidCursor) {
		t.Errorf("in a record that was not restored: %v", err)
	}
	st := &record.Store{Ledger: l, Now: clock}
	if err := l.Commit(ctx, ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: "clu_a", Name: "alpha"})}); err != nil {
		t.Fatal(err)
	}
	if err := TellRestored(ctx, st); err != nil {
		t.Fatal(err)
	}
	put(l, "clu_a", "new-a", 70)
	put(l, "clu_b", "new-b", 71)
	behind := []string{"new-a", "new-b", "restored clu_a", "restored plane"}
	if d := cmp.Diff(append([]string{"kept-plane"}, behind...), names(reader, Query{Cursor: kept})); d != "" {
		t.Errorf("by a cursor that the backup has: %s", d)
	}
	for round := range 2 {
		now = now.Add(time.Duration(round) * (CursorTTL - 2*time.Minute))
		for _, tt := range []struct {
			q    Query
			want []string
		}{{Query{Cursor: lost}, behind}, {Query{Cursor: joinStep(lost, 1), Types: []string{"node.*"}}, behind[:2]}, {Query{Cursor: lost, Streams: []string{"clu_a", "clu_b"}}, behind[:3]}} {
			_, err := reader.Read(ctx, tt.q)
			var expired *ExpiredError
			if !errors.As(err, &expired) || expired.Restored.UnixMilli() != t0.Add(time.Minute).UnixMilli() || expired.Streams["clu_a"] != 2 || expired.Streams["clu_b"] != 0 {
				t.Fatalf("by a cursor that was lost: %v", err)
			}
			tt.q.Cursor = expired.Cursor
			if d := cmp.Diff(tt.want, names(reader, tt.q)); d != "" {
				t.Errorf("on from there: %s", d)
			}
		}
	}
	now = now.Add(2 * time.Minute)
	if _, err := reader.Read(ctx, Query{Cursor: lost}); !errors.Is(err, ErrInvalidCursor) {
		t.Errorf("when it would have been kept no more: %v", err)
	}
}

// TestDamagedStretch: what cannot be read of a stretch is told in its place, through
// its end.
func TestDamagedStretch(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openDB(t)
	put(t, db, "plane", 1, facts(2)...)
	b := &life{t: t, l: db}
	b.restore(t0.Add(time.Minute))
	b.append("first", 2, 60)
	head, _, err := LoadHead(ctx, db, "plane")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := db.Get(ctx, record.StreamRunKey("plane", 3))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{
		`{"at":1,"events":[7],"through":9}`,
		strings.Replace(string(whole.Data), `],"through":`, `],"through":-`, 1),
		strings.Replace(string(whole.Data), `"events":[`, `"events":[{},`, 1),
	} {
		if data == string(whole.Data) {
			t.Fatal("nothing was damaged")
		}
		if err := db.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: whole.Key, Data: []byte(data)}}); err != nil {
			t.Fatal(err)
		}
		evs, _, err := ReadStream(ctx, db, "plane", 3, 10)
		if err != nil || len(evs) != 3 || evs[0].Type != TypeUnreadable || evs[0].Sequence != head.Next-3 || evs[1].Subject.Name != "first1" {
			t.Errorf("%s: %+v, %v", data, evs, err)
		}
	}
}

// A stream that was ahead when the backup was made says nothing of when that was.
func TestSinceBackup(t *testing.T) {
	t.Parallel()
	at := func(since time.Duration) int64 { return t0.Add(-since).UnixMilli() }
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		heads map[string]Head
		want  time.Duration
	}{
		"nothing was told":        {map[string]Head{"a": {}}, 0},
		"the last of two streams": {map[string]Head{"a": {Received: at(3 * day)}, "b": {Received: at(2 * day)}}, 2 * day},
		"of a head without":       {map[string]Head{"a": {At: at(day)}}, day},
		"one is ahead":            {map[string]Head{"a": {Received: at(10 * day)}, "b": {Received: at(-day)}}, 10 * day},
		"all are ahead":           {map[string]Head{"a": {Received: at(-day)}, "b": {}}, 365 * day},
	} {
		if got := sinceBackup(c.heads, t0); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
