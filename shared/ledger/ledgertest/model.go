package ledgertest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/ledger"
)

// model is the seam in a map: what an engine must agree with.
type model struct {
	items map[ledger.Key]ledger.Item
	now   func() time.Time
}

// get returns an item that has not expired.
func (m *model) get(k ledger.Key) (ledger.Item, bool) {
	it, ok := m.items[k]
	if ok && !it.Expires.IsZero() && !m.now().Before(it.Expires) {
		return ledger.Item{}, false
	}
	return it, ok
}

// commit returns the keys in conflict, having written nothing if there are any.
func (m *model) commit(writes []ledger.Write) []ledger.Key {
	var conflicts []ledger.Key
	for _, w := range writes {
		it, _ := m.get(w.Item.Key)
		if w.Expect != ledger.AnyVersion && w.Expect != it.Version {
			conflicts = append(conflicts, w.Item.Key)
		}
	}
	if conflicts != nil {
		return conflicts
	}
	for _, w := range writes {
		switch w.Kind {
		case ledger.Put:
			old, _ := m.get(w.Item.Key)
			w.Item.Version = old.Version + 1
			m.items[w.Item.Key] = w.Item
		case ledger.Delete:
			delete(m.items, w.Item.Key)
		}
	}
	return nil
}

// query returns all items of a query without its limit.
func (m *model) query(q ledger.Query) []ledger.Item {
	at := func(it ledger.Item) ledger.Key {
		if q.Index == ledger.Primary {
			return it.Key
		}
		return it.Index[q.Index]
	}
	found := m.alive(func(it ledger.Item) bool {
		k := at(it)
		return k.PK == q.PK && k.SK >= q.From && (q.To == "" || k.SK < q.To)
	})
	slices.SortFunc(found, func(a, b ledger.Item) int {
		return cmp.Or(strings.Compare(at(a).SK, at(b).SK), strings.Compare(a.PK, b.PK), strings.Compare(a.SK, b.SK))
	})
	if q.Reverse {
		slices.Reverse(found)
	}
	return found
}

func (m *model) alive(keep func(ledger.Item) bool) []ledger.Item {
	var found []ledger.Item
	for k := range m.items {
		if it, ok := m.get(k); ok && keep(it) {
			found = append(found, it)
		}
	}
	return found
}

// testModel runs random calls against the engine and the model. One engine
// serves every run: each has partitions of its own, and empties them.
func testModel(t *testing.T, b *bench) {
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		pks := []string{fmt.Sprintf("%04d-a", run), fmt.Sprintf("%04d-b", run)}
		m := &machine{bench: b, model: model{items: map[ledger.Key]ledger.Item{}, now: b.now}, pks: pks, mine: fmt.Sprintf("%04d-", run)}
		defer m.clear(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"commit": m.doCommit,
			"get":    m.doGet,
			"query":  m.doQuery,
			"due":    m.doDue,
			"clock":  func(rt *rapid.T) { b.advance(time.Duration(rapid.IntRange(1, 4).Draw(rt, "seconds")) * time.Second) },
		})
	})
}

type machine struct {
	*bench
	model model
	pks   []string
	mine  string // how the keys of this run begin
}

var sks = []string{"a", "a#1", "a#2", "b", "é"}

func (m *machine) key(rt *rapid.T) ledger.Key {
	return key(rapid.SampledFrom(m.pks).Draw(rt, "pk"), rapid.SampledFrom(sks).Draw(rt, "sk"))
}

func (m *machine) doCommit(rt *rapid.T) {
	var writes []ledger.Write
	seen := map[ledger.Key]bool{}
	for range rapid.IntRange(1, 5).Draw(rt, "writes") {
		k := m.key(rt)
		if seen[k] {
			continue
		}
		seen[k] = true
		old, _ := m.model.get(k)
		w := ledger.Write{
			Kind:   rapid.SampledFrom([]ledger.WriteKind{ledger.Put, ledger.Put, ledger.Put, ledger.Delete, ledger.Check}).Draw(rt, "kind"),
			Item:   ledger.Item{Key: k},
			Expect: rapid.SampledFrom([]int64{old.Version, old.Version, old.Version, old.Version, ledger.AnyVersion, 0, 1, 2}).Draw(rt, "expect"),
			Feed:   rapid.Bool().Draw(rt, "feed"),
		}
		if w.Kind == ledger.Put {
			w.Item.Data = rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "data")
			if rapid.Bool().Draw(rt, "is due") {
				w.Item.Due = m.now().Add(time.Duration(rapid.IntRange(-2000, 5000).Draw(rt, "due")) * time.Millisecond)
			}
			if rapid.IntRange(0, 3).Draw(rt, "expires") == 0 {
				w.Item.Expires = m.now().Truncate(time.Second).Add(time.Duration(rapid.IntRange(1, 6).Draw(rt, "after")) * time.Second)
			}
			for _, x := range ledger.Indexes {
				if rapid.Bool().Draw(rt, "in "+string(x)) {
					if w.Item.Index == nil {
						w.Item.Index = map[ledger.Index]ledger.Key{}
					}
					w.Item.Index[x] = key(rapid.SampledFrom(m.pks).Draw(rt, "index pk"), rapid.SampledFrom(sks).Draw(rt, "index sk"))
				}
			}
		}
		writes = append(writes, w)
	}
	err := m.Commit(rt.Context(), writes...)
	want := m.model.commit(writes)
	var conflict *ledger.ConflictError
	if want == nil && err != nil || want != nil && !errors.As(err, &conflict) {
		rt.Fatalf("commit: got %v, want conflicts on %v", err, want)
	}
	if conflict != nil {
		slices.SortFunc(want, compareKeys)
		got := slices.SortedFunc(slices.Values(conflict.Keys), compareKeys)
		if !slices.Equal(got, want) {
			rt.Fatalf("conflicts: got %v, want %v", got, want)
		}
	}
}

func compareKeys(a, b ledger.Key) int {
	return cmp.Or(strings.Compare(a.PK, b.PK), strings.Compare(a.SK, b.SK))
}

func (m *machine) doGet(rt *rapid.T) {
	var keys []ledger.Key
	want := map[ledger.Key]ledger.Item{}
	for _, pk := range m.pks {
		for _, sk := range sks {
			keys = append(keys, key(pk, sk))
			if it, ok := m.model.get(key(pk, sk)); ok {
				want[it.Key] = it
			}
		}
	}
	got, err := m.GetMany(rt.Context(), keys)
	if d := gocmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || d != "" {
		rt.Fatalf("get many: %v (-want +got):\n%s", err, d)
	}
	k := m.key(rt)
	it, err := m.Get(rt.Context(), k)
	if wanted, ok := want[k]; ok {
		if d := same(wanted, it); err != nil || d != "" {
			rt.Fatalf("get %s: %v (-want +got):\n%s", k, err, d)
		}
	} else if !errors.Is(err, ledger.ErrNotFound) {
		rt.Fatalf("get %s: got %v, want ErrNotFound", k, err)
	}
}

func (m *machine) doQuery(rt *rapid.T) {
	ends := append([]string{"", "a#", "a#2", "c", "z"}, sks...)
	q := ledger.Query{
		Index:   rapid.SampledFrom(append([]ledger.Index{ledger.Primary, ledger.Primary}, ledger.Indexes...)).Draw(rt, "index"),
		PK:      rapid.SampledFrom(m.pks).Draw(rt, "pk"),
		From:    rapid.SampledFrom(ends).Draw(rt, "from"),
		To:      rapid.SampledFrom(ends).Draw(rt, "to"),
		Reverse: rapid.Bool().Draw(rt, "reverse"),
		Limit:   rapid.IntRange(0, 4).Draw(rt, "limit"),
	}
	m.agrees(rt, q.Index == ledger.Primary, m.model.query(q), func() ([]ledger.Item, error) { return m.all(rt.Context(), q) })
}

func (m *machine) doDue(rt *rapid.T) {
	until := m.now().Add(time.Duration(rapid.IntRange(-1000, 3000).Draw(rt, "until")) * time.Millisecond)
	byDue := func(a, b ledger.Item) int { return cmp.Or(a.Due.Compare(b.Due), compareKeys(a.Key, b.Key)) }
	want := m.model.alive(func(it ledger.Item) bool { return !it.Due.IsZero() && !it.Due.After(until) })
	slices.SortFunc(want, byDue)
	m.agrees(rt, false, want, func() ([]ledger.Item, error) {
		items, err := m.Due(rt.Context(), until, 0)
		if !slices.IsSortedFunc(items, func(a, b ledger.Item) int { return a.Due.Compare(b.Due) }) {
			return nil, errors.New("not in the order of due times")
		}
		slices.SortFunc(items, byDue) // the seam leaves open who is first of the same millisecond
		return slices.DeleteFunc(items, func(it ledger.Item) bool { return !strings.HasPrefix(it.PK, m.mine) }), err
	})
}

// agrees compares what the engine reads with the model's items: at once, or
// within the lag of an index.
func (m *machine) agrees(rt *rapid.T, atOnce bool, want []ledger.Item, read func() ([]ledger.Item, error)) {
	var d string
	eventually(func() bool {
		got, err := read()
		if err != nil {
			rt.Fatalf("read: %v", err)
		}
		d = gocmp.Diff(want, got, cmpopts.EquateEmpty())
		return atOnce || d == ""
	})
	if d != "" {
		rt.Fatalf("items (-want +got):\n%s", d)
	}
}

func (m *machine) clear(rt *rapid.T) {
	for k := range maps.Keys(m.model.items) {
		if err := m.Commit(rt.Context(), del(k.PK, k.SK, ledger.AnyVersion)); err != nil {
			rt.Fatalf("clear: %v", err)
		}
	}
}
