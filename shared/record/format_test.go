package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TestNewerState: a state that a newer version wrote is refused by whoever reads
// it, whatever else this one cannot read in it, and not written over. One without
// a format is of the first.
func TestNewerState(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openLedger(t)
	op := admit(t, newStore(db))
	ours, err := db.Get(ctx, record.StateKey(op))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(db).Load(ctx, op); err != nil || bytes.Contains(ours.Data, []byte(`"format"`)) {
		t.Fatalf("the first format, %v: %s", err, ours.Data)
	}
	for name, more := range map[string]string{"more fields": `"color":"red"`, "another shape": `"steps":7,"phase":{}`} {
		it := ours
		it.Data = fmt.Appendf(nil, `{%s,"format":%d}`, more, record.StateFormat+1)
		if err := db.Commit(ctx, ledger.Write{Item: it, Expect: ledger.AnyVersion}); err != nil {
			t.Fatal(err)
		}
		for call, do := range map[string]func(*record.Store) error{
			"load":   func(st *record.Store) error { _, err := st.Load(ctx, op); return err },
			"glance": func(st *record.Store) error { _, _, err := st.Glances(ctx, []string{op}); return err },
			"list": func(st *record.Store) error {
				_, _, err := st.Operations(ctx, record.OperationsBy{}, record.Span{})
				return err
			},
			"update": func(st *record.Store) error {
				_, err := st.Update(ctx, op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
					return operation.RequestCancel{}, nil, nil
				})
				return err
			},
		} {
			if err := do(newStore(db)); !errors.Is(err, record.ErrNewer) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
		if got, err := db.Get(ctx, record.StateKey(op)); err != nil || !bytes.Equal(got.Data, it.Data) {
			t.Errorf("%s: it was written over: %s, %v", name, got.Data, err)
		}
	}
}
