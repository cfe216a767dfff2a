package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/verify"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, db, q := newSite(t), openDB(t), &queues{}
	stream := s.export(t)
	r, err := Import(ctx, bytes.NewReader(stream), target(db, db, q))
	no(t, err)
	if d := differences(t, s.db, db); len(d) > 0 {
		t.Errorf("the ledgers differ: %q", d)
	}
	if r.Put != r.Header.Items || r.Found != 0 || r.Already || r.Header.Holds.Live != 2 {
		t.Errorf("%d of %d items put, %d found, %d live", r.Put, r.Header.Items, r.Found, r.Header.Holds.Live)
	}
	if !q.made[fleet.QueueName(s.cluster)] || len(q.made) != 1 {
		t.Errorf("queues %v", q.made)
	}

	// The copy holds, and its tokens work.
	st := &record.Store{Ledger: db, Now: still, Timing: operation.OneMachine}
	v, err := verify.Run(ctx, st, t0, time.Minute)
	no(t, err)
	if v.Count > 0 || v.Operations != 4 || v.Live != 2 || v.Entries != r.Header.Holds.Entries || v.Events != r.Header.Holds.Events || v.Entries == 0 {
		t.Errorf("the copy has %d operations, %d live: %q", v.Operations, v.Live, v.Problems)
	}
	if _, err := auth.NewStore(db, still).Authenticate(ctx, s.bearer); err != nil {
		t.Errorf("the administrator's token: %v", err)
	}

	// Nothing old is put on the new bus; what the source had yet to tell is.
	told := &busLog{}
	rel := &relay.Relay{Store: st, Queue: q, Bus: told, Logger: nil}
	no(t, rel.PublishBus(ctx, s.cluster))
	if len(told.ids) != 0 {
		t.Errorf("%d old events put on the bus", len(told.ids))
	}
	changes, _, err := db.Changes(ctx, "", 1000, 0)
	no(t, err)
	ops := relay.Operations(changes)
	for _, want := range []string{s.live, s.plan, s.behind} {
		if !slices.Contains(ops, want) {
			t.Errorf("the feed does not tell of %s", want)
		}
	}
	if slices.Contains(ops, s.ended) {
		t.Error("the feed tells of an operation that has long ended")
	}
	no(t, rel.Publish(ctx, ops))
	no(t, rel.PublishBus(ctx, s.cluster))
	if len(told.ids) == 0 {
		t.Error("the end of an operation was never told")
	}

	// A second run changes nothing, whatever became of the copy.
	no(t, db.Commit(ctx, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: record.ClusterKey(s.cluster)}, Expect: ledger.AnyVersion}))
	before := all(t, db, false)
	r, err = Import(ctx, bytes.NewReader(stream), target(db, db, q))
	no(t, err)
	if after := all(t, db, false); !r.Already || len(after) != len(before) {
		t.Errorf("a second run: already %v, %d items, were %d", r.Already, len(after), len(before))
	}
	for k, it := range all(t, db, false) {
		if it.Version != before[k].Version {
			t.Errorf("a second run wrote %s", k)
		}
	}
}

// A ledger that breaks a promise is not moved.
func TestUnsound(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(it ledger.Item) ledger.Write{
		"a run is gone": func(it ledger.Item) ledger.Write {
			return ledger.Write{Kind: ledger.Delete, Item: it, Expect: it.Version}
		},
		"a run cannot be read": func(it ledger.Item) ledger.Write {
			return ledger.Write{Item: ledger.Item{Key: it.Key, Data: []byte("{")}, Expect: it.Version}
		},
		"an event cannot be read": func(it ledger.Item) ledger.Write {
			data := bytes.Replace(it.Data, []byte(`"t":"`), []byte(`"t":"?`), 1)
			return ledger.Write{Item: ledger.Item{Key: it.Key, Data: bytes.Replace(data, []byte(`"at":"2`), []byte(`"at":"?`), 1)}, Expect: it.Version}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			it, err := s.db.Get(t.Context(), record.StreamRunKey(s.cluster, 1))
			no(t, err)
			no(t, s.db.Commit(t.Context(), damage(it)))
			if _, err := Write(t.Context(), s.db, Source{}, t0, io.Discard); !errors.Is(err, ErrUnsound) {
				t.Error(err)
			}
		})
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	live, err := Live(t.Context(), s.store)
	no(t, err)
	if len(live) != 2 {
		t.Fatalf("live: %+v", live)
	}
	for _, l := range live {
		if l.ID != s.live && l.ID != s.plan || l.Type == "" || l.Target == "" || l.Phase.Terminal() {
			t.Errorf("live: %+v", l)
		}
	}
}

// Whatever a ledger holds comes out the same.
func TestAnyItemsRoundTrip(t *testing.T) {
	t.Parallel()
	dbs := [2]*sqlite.DB{openDB(t), openDB(t)}
	rapid.Check(t, func(rt *rapid.T) {
		for _, db := range dbs {
			var ws []ledger.Write
			for k := range all(t, db, false) {
				ws = append(ws, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: k}, Expect: ledger.AnyVersion})
			}
			if len(ws) > 0 {
				no(t, db.Commit(context.Background(), ws...))
			}
		}
		key := rapid.Custom(func(t *rapid.T) ledger.Key {
			prefix := rapid.SampledFrom([]string{"res#", "aud#", "token#", "clu#", "later", "str#"}).Draw(t, "prefix")
			return ledger.Key{PK: prefix + rapid.StringN(0, 8, 64).Draw(t, "pk"), SK: "x" + rapid.StringN(0, 8, 64).Draw(t, "sk")}
		})
		for _, k := range rapid.SliceOfNDistinct(key, 0, 40, rapid.ID[ledger.Key]).Draw(rt, "keys") {
			it := ledger.Item{Key: k, Data: rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(rt, "data")}
			if rapid.Bool().Draw(rt, "text") {
				it.Data = []byte(rapid.String().Draw(rt, "text data"))
			}
			if rapid.Bool().Draw(rt, "due") {
				it.Due = t0.Add(time.Duration(rapid.Int64Range(-1e9, 1e9).Draw(rt, "due at")) * time.Millisecond)
			}
			if rapid.Bool().Draw(rt, "expires") {
				it.Expires = t0.Add(time.Duration(rapid.Int64Range(1, 1e9).Draw(rt, "expires at")) * time.Second)
			}
			if rapid.Bool().Draw(rt, "index") {
				it.Index = map[ledger.Index]ledger.Key{ledger.Lookup: {PK: "a#" + rapid.StringN(0, 4, 16).Draw(rt, "ipk"), SK: k.SK}}
			}
			if err := dbs[0].Commit(context.Background(), ledger.Write{Item: it}); err != nil {
				rt.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := Write(context.Background(), dbs[0], Source{}, t0, &b); err != nil {
			rt.Fatal(err)
		}
		if _, err := Import(context.Background(), bytes.NewReader(b.Bytes()), target(dbs[1], dbs[1], &queues{})); err != nil {
			rt.Fatal(err)
		}
		if d := differences(t, dbs[0], dbs[1]); len(d) > 0 {
			rt.Errorf("the ledgers differ: %q", d)
		}
	})
}

// Many items, and large ones, go in commits within the limits.
func TestManyAndLarge(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	from, to := openDB(t), openDB(t)
	for i := range 30 {
		var ws []ledger.Write
		for j := range 50 {
			ws = append(ws, ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: fmt.Sprint("res#", i), SK: fmt.Sprint("ref#", j)}, Data: []byte("{}")}})
		}
		no(t, from.Commit(ctx, ws...))
	}
	for i := range 10 { // more than one commit's bytes
		no(t, from.Commit(ctx, ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: "res#large", SK: fmt.Sprint(i)}, Data: bytes.Repeat([]byte{'\n', 0xff}[:1+i%2], ledger.MaxItemBytes/(1+i%2))}}))
	}
	var b bytes.Buffer
	_, err := Write(ctx, from, Source{}, t0, &b)
	no(t, err)
	var mu sync.Mutex
	parts := map[string]int64{}
	tg := target(to, to, &queues{})
	tg.Progress = func(part string, done, of int64) {
		mu.Lock()
		defer mu.Unlock()
		parts[part] = max(parts[part], done)
	}
	r, err := Import(ctx, bytes.NewReader(b.Bytes()), tg)
	no(t, err)
	if d := differences(t, from, to); len(d) > 0 || r.Put != 1510 {
		t.Errorf("%d put; %q", r.Put, d)
	}
	if parts["written"] != 1510 || parts["read back"] != 1510 {
		t.Errorf("progress %v", parts)
	}
}

func TestBrokenStream(t *testing.T) {
	t.Parallel()
	good := string(newSite(t).export(t))
	lines := strings.SplitAfter(strings.TrimSuffix(good, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	join := func(ls ...[]string) string { return strings.Join(slices.Concat(ls...), "") }
	swapped := slices.Clone(lines)
	swapped[3], swapped[4] = swapped[4], swapped[3]
	last := len(lines) - 1
	var other bytes.Buffer
	w := newWriter(&other)
	no(t, w.line(map[string]any{"opsplane_export": 2, "more": true}))
	no(t, w.w.Flush())
	for name, c := range map[string]struct {
		stream string
		want   error
		line   int64
		says   string
	}{
		"empty":             {"", ErrBroken, 1, "empty"},
		"no export":         {"hello\n", ErrBroken, 1, "no line of an export"},
		"another format":    {other.String(), ErrFormat, 0, "version 2"},
		"only a header":     {lines[0], ErrBroken, 2, "ends after 0 of"},
		"no last line":      {join(lines[:last]), ErrBroken, int64(last + 1), "without its last line"},
		"cut within a line": {good[:len(good)-200], ErrBroken, int64(last + 1), "ends within it"},
		"a line lost":       {join(lines[:5], lines[6:]), ErrBroken, 6, "altered, added or lost"},
		"a line twice":      {join(lines[:5], lines[4:]), ErrBroken, 6, "altered, added or lost"},
		"lines swapped":     {join(swapped), ErrBroken, 4, "altered, added or lost"},
		"more behind":       {good + lines[4], ErrBroken, int64(last + 2), ""},
		"altered":           {strings.Replace(good, "a reason", "another!", 1), ErrBroken, 0, "altered, added or lost"},
		"a line too long":   {good[:len(good)/2] + strings.Repeat("x", 3*maxLine), ErrBroken, 0, "more than"},
	} {
		db := openDB(t)
		_, err := Import(t.Context(), strings.NewReader(c.stream), target(db, db, &queues{}))
		var b *BrokenError
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || errors.As(err, &b) && c.line != 0 && b.Line != c.line {
			t.Errorf("%s: %v, want line %d, %q", name, err, c.line, c.says)
		}
		if n := len(all(t, db, false)); n != 0 {
			t.Errorf("%s: %d items were written", name, n)
		}
	}
}

// Any byte changed or cut off anywhere is found.
func TestEveryByteCounts(t *testing.T) {
	t.Parallel()
	good := newSite(t).export(t)
	check := func(what string, b []byte) {
		if _, err := open(bytes.NewReader(b)); !errors.Is(err, ErrBroken) && !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for at := 0; at < len(good); at += 1 + len(good)/200 {
		b := bytes.Clone(good)
		b[at] ^= 1
		check(fmt.Sprintf("byte %d altered", at), b)
		check(fmt.Sprintf("cut at %d", at), good[:at])
	}
	if _, err := open(bytes.NewReader(good)); err != nil {
		t.Error(err)
	}
}

func TestSameTwice(t *testing.T) {
	t.Parallel()
	if s := newSite(t); !bytes.Equal(s.export(t), s.export(t)) {
		t.Error("two exports of one ledger differ")
	}
}
