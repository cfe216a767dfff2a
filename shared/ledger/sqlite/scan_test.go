package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func TestScan(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), Options{Path: t.TempDir() + "/l.db"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	want := map[ledger.Key]string{}
	for i := range 53 {
		k := ledger.Key{PK: fmt.Sprint("p", i%7), SK: fmt.Sprint("s", i)}
		it := ledger.Item{Key: k, Data: fmt.Append(nil, i), Index: map[ledger.Index]ledger.Key{ledger.List: {PK: "l", SK: k.SK}}}
		if i == 5 {
			it.Expires = time.Now().Add(-time.Hour) // gone already
		} else {
			want[k] = fmt.Sprint(i)
		}
		if err := db.Commit(t.Context(), ledger.Write{Item: it}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{1, 7, 52, 1000} {
		got, pages := map[ledger.Key]string{}, 0
		for after := ""; ; {
			p, err := db.Scan(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Items) > limit {
				t.Errorf("%d items, the limit is %d", len(p.Items), limit)
			}
			for _, it := range p.Items {
				if _, twice := got[it.Key]; twice || it.Index[ledger.List].SK != it.SK {
					t.Errorf("limit %d: item %s twice, or without its index", limit, it.Key)
				}
				got[it.Key] = string(it.Data)
			}
			pages++
			if after = p.Next; after == "" {
				break
			}
		}
		if len(got) != len(want) || pages != (len(want)+limit-1)/limit {
			t.Errorf("limit %d: %d items on %d pages, want %d", limit, len(got), pages, len(want))
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("limit %d: item %s is %q, want %q", limit, k, got[k], v)
			}
		}
	}
	for _, after := range []string{"!", "AA", "BQ", "_____w"} {
		if _, err := db.Scan(t.Context(), after, 1); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("scan after %q: %v", after, err)
		}
	}
	if _, err := db.Scan(t.Context(), "", ledger.MaxPage+1); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("scan of too many: %v", err)
	}
}
