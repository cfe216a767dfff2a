package dynamo

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// tricky draws text with many of the bytes that the stored form escapes.
func tricky(n int) *rapid.Generator[string] {
	return rapid.StringOfN(rapid.RuneFrom([]rune{0, 1, 2, '#', 'a', 'b', 'é', '🙂'}), 1, n, -1)
}

// TestStoredSortKeepsOrder: stored sort keys sort as sort key, PK and SK do, and
// can be read back.
func TestStoredSortKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(of string) [3]string {
			return [3]string{tricky(4).Draw(t, "sort of "+of), tricky(4).Draw(t, "pk of "+of), tricky(4).Draw(t, "sk of "+of)}
		}
		store := func(x [3]string) string { return storedSort(x[0], ledger.Key{PK: x[1], SK: x[2]}) }
		a, b := draw("a"), draw("b")
		if got, want := strings.Compare(store(a), store(b)), slices.Compare(a[:], b[:]); got != want {
			t.Errorf("%q and %q: stored they compare %d, want %d", a, b, got, want)
		}
		sort, k, err := sortOf(store(a))
		if err != nil || [3]string{sort, k.PK, k.SK} != a {
			t.Errorf("read back: %q %v %v, want %q", sort, k, err, a)
		}
		// A range of sort keys is the span of their escaped ends.
		s := span{escape(b[0]), ""}
		if got, want := s.has(store(a)), a[0] >= b[0]; got != want {
			t.Errorf("%q from %q: %t, want %t", a[0], b[0], got, want)
		}
		s = span{"", escape(b[0])}
		if got, want := s.has(store(a)), a[0] < b[0]; got != want {
			t.Errorf("%q before %q: %t, want %t", a[0], b[0], got, want)
		}
	})
}

func TestStoredTimeKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := time.UnixMilli(rapid.Int64().Draw(t, "a")).UTC(), time.UnixMilli(rapid.Int64().Draw(t, "b")).UTC()
		if got, want := strings.Compare(storedTime(a), storedTime(b)), a.Compare(b); got != want {
			t.Errorf("%v and %v compare %d, want %d", a, b, got, want)
		}
		if back, err := timeOf(storedTime(a)); err != nil || !back.Equal(a) {
			t.Errorf("%v read back: %v, %v", a, back, err)
		}
	})
}

// TestItemsComeBack: what is stored is read as it was put, with and without
// parts, and within the size that was counted.
func TestItemsComeBack(t *testing.T) {
	t.Parallel()
	db, _ := scripted(t, fine)
	db.sharded["ops"] = true
	rapid.Check(t, func(t *rapid.T) {
		it := ledger.Item{Key: ledger.Key{PK: tricky(8).Draw(t, "pk"), SK: tricky(8).Draw(t, "sk")}, Version: rapid.Int64Range(1, 1<<60).Draw(t, "version"),
			Data: rapid.SliceOfN(rapid.Byte(), 0, 1000).Draw(t, "data")}
		if rapid.Bool().Draw(t, "due") {
			it.Due = time.UnixMilli(rapid.Int64Range(-1e15, 1e15).Draw(t, "at")).UTC()
		}
		if rapid.Bool().Draw(t, "expires") {
			it.Expires = time.Unix(rapid.Int64Range(1, 1e11).Draw(t, "end"), 0).UTC()
		}
		for _, x := range ledger.Indexes {
			if rapid.Bool().Draw(t, "in "+string(x)) {
				if it.Index == nil {
					it.Index = map[ledger.Index]ledger.Key{}
				}
				it.Index[x] = ledger.Key{PK: rapid.OneOf(tricky(5), rapid.Just("ops")).Draw(t, "index pk"), SK: tricky(8).Draw(t, "index sk")}
			}
		}
		a := db.encodeItem(&it)
		a[attrPK], a[attrSK], a[attrVersion] = str(it.PK), str(it.SK), num(it.Version)
		got, err := decodeItem(a)
		if d := cmp.Diff(it, got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v (-put +got):\n%s", err, d)
		}
	})
}

// TestExpiryRoundsUp: an item never goes early.
func TestExpiryRoundsUp(t *testing.T) {
	t.Parallel()
	if got := expiry(time.Unix(10, 1)); got != 11 {
		t.Errorf("a nanosecond past 10: %d", got)
	}
	if got := expiry(time.Unix(10, 0)); got != 10 {
		t.Errorf("10: %d", got)
	}
}

// TestGarbledItems: an item that this engine did not write is an error, never a
// panic or another item.
func TestGarbledItems(t *testing.T) {
	t.Parallel()
	good := func() attributes {
		return attributes{attrPK: str("p"), attrSK: str("s"), attrVersion: num(1), "lp": str("l"), "ls": str(storedSort("1", ledger.Key{PK: "p", SK: "s"}))}
	}
	if _, err := decodeItem(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(attributes){
		"no version":             func(a attributes) { delete(a, attrVersion) },
		"version as text":        func(a attributes) { a[attrVersion] = str("1") },
		"version no whole one":   func(a attributes) { a[attrVersion] = &types.AttributeValueMemberN{Value: "1.5"} },
		"no key":                 func(a attributes) { delete(a, attrSK) },
		"data as text":           func(a attributes) { a[attrData] = str("x") },
		"data without a format":  func(a attributes) { a[attrData] = binary(nil) },
		"data of a later format": func(a attributes) { a[attrData] = binary([]byte{200, 1}) },
		"data cut off":           func(a attributes) { p := pack(bytes.Repeat([]byte("abc"), 500)); a[attrData] = binary(p[:len(p)-3]) },
		"expiry as text":         func(a attributes) { a[attrExpires] = str("soon") },
		"due at no time":         func(a attributes) { a[placeDue.sk] = str("tomorrow") },
		"index without sort":     func(a attributes) { delete(a, "ls") },
		"index of one part":      func(a attributes) { a["ls"] = str("1") },
		"index badly escaped":    func(a attributes) { a["ls"] = str("\x01\x03\x00p\x00s") },
		"partition bad escape":   func(a attributes) { a["lp"] = str("l\x01") },
	} {
		a := good()
		spoil(a)
		if it, err := decodeItem(a); !errors.Is(err, errGarbled) {
			t.Errorf("%s: got %+v, %v, want errGarbled", name, it, err)
		}
	}
}

// TestDictionaryNeverChanges: every item stored in format 1 hangs on it.
func TestDictionaryNeverChanges(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256(dictionary1)
	if got := hex.EncodeToString(sum[:]); got != dictionary1Sum {
		t.Errorf("dictionary 1 is %s: stored items need %s; a new dictionary is a new format", got, dictionary1Sum)
	}
	stored, err := hex.DecodeString(goldenPacked)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unpack(stored); err != nil || string(got) != goldenText {
		t.Errorf("what was stored once reads %q, %v", got, err)
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data := []byte(strings.Repeat(rapid.String().Draw(t, "text"), rapid.IntRange(0, 500).Draw(t, "times")))
		p := pack(data)
		if got, err := unpack(p); err != nil || !bytes.Equal(got, data) || len(p) > len(data)+1 {
			t.Errorf("%d bytes packed into %d, unpacked into %d, %v", len(data), len(p), len(got), err)
		}
	})
	random := make([]byte, 10_000)
	for i, x := 0, uint32(1); i < len(random); i++ {
		x = x*1664525 + 1013904223
		random[i] = byte(x >> 24)
	}
	if p := pack(random); p[0] != formatRaw || len(p) != len(random)+1 {
		t.Errorf("what cannot be compressed takes %d bytes in format %d", len(p), p[0])
	}
}

// TestPackedBomb: a few stored bytes do not become more than an item. It is not
// parallel: it measures memory.
func TestPackedBomb(t *testing.T) {
	var b bytes.Buffer
	b.WriteByte(formatFlate)
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Len() > maxItem {
		t.Fatalf("the bomb has %d bytes, no item could hold it", b.Len())
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := unpack(b.Bytes())
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errGarbled) || got != nil {
		t.Errorf("got %d bytes, %v, want errGarbled", len(got), err)
	}
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 4*maxItem {
		t.Errorf("unpacking took %d bytes of memory, want under %d", grew, 4*maxItem)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack([]byte("short")))
	f.Add(pack(bytes.Repeat([]byte(`{"phase":"running"}`), 100)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stored []byte) {
		got, err := unpack(stored)
		if err == nil && stored[0] == formatFlate && len(got) > ledger.MaxItemBytes || err != nil && !errors.Is(err, errGarbled) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

func FuzzSortOf(f *testing.F) {
	f.Add(storedSort("a\x00", ledger.Key{PK: "p\x01", SK: "s"}))
	f.Fuzz(func(t *testing.T, stored string) {
		sort, k, err := sortOf(stored)
		if err == nil && storedSort(sort, k) != stored {
			t.Errorf("%q reads as %q %v, which is stored as %q", stored, sort, k, storedSort(sort, k))
		}
	})
}

// TestStatesFitWriteUnits: writes are billed by the KB, and an operation's state
// is written at each of its transitions.
func TestStatesFitWriteUnits(t *testing.T) {
	t.Parallel()
	db, _ := scripted(t, fine)
	for _, pk := range record.BusyPartitions() {
		db.sharded[pk] = true
	}
	var store record.Store
	for file, limit := range map[string]int{"testdata/state_running.json": 1024, "testdata/state_succeeded.json": 2048} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s operation.State
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		it := store.StateItem(&s)
		n := itemBytes(it.Key, db.encodeItem(&it)) + putOverhead
		t.Logf("%s: %d bytes of JSON take %d, %d of them data", file, len(it.Data), n, len(pack(it.Data)))
		if len(it.Data) < 3*limit/2 {
			t.Fatalf("%s: a state of %d bytes proves nothing", file, len(it.Data))
		}
		if n > limit {
			t.Errorf("%s: %d bytes of JSON take %d stored, over %d", file, len(it.Data), n, limit)
		}
	}
}

// What format 1 hangs on, and a value as it was stored when it was made.
const (
	dictionary1Sum = "a735e3c2a52beef195bf6bf8aa4cb6e00d9415b047fc27645281c93ab8e23f26"
	goldenPacked   = "01c2d6fa406b58c29a77b1d8db2aa3aa47826a40000000ffff"
)

// goldenText is goldenPacked unpacked.
var goldenText = strings.Repeat(`{"phase":"running","generation":1,"steps":[]},`, 12)
