package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// Child is one child of a plan, admitted or not.
type Child struct {
	Index     int             `json:"index"`
	Operation string          `json:"operation"` // its id, known before it is admitted
	Type      string          `json:"type"`
	TargetID  string          `json:"target_id"`
	Request   json.RawMessage `json:"request"`
	Admitted  bool            `json:"admitted"`
	// Phase is the child's end once it has ended, or "skipped".
	Phase   string             `json:"phase,omitempty"`
	Detail  string             `json:"detail,omitempty"`
	Waiting *operation.Waiting `json:"waiting,omitempty"`
}

// ChildSkipped is the phase of a child that was never admitted.
const ChildSkipped = "skipped"

// childrenPerItem keeps a plan of operation.MaxChildren within one commit.
const childrenPerItem = 16

type childRun struct {
	Children []Child `json:"children"`
}

func kidsKey(op string, run int) ledger.Key {
	return ledger.Key{PK: OperationPK(op), SK: fmt.Sprintf("%s%04d", skKids, run)}
}

// ChildWrites are the writes that keep a new plan's children.
func ChildWrites(op string, kids []Child) []ledger.Write {
	var ws []ledger.Write
	for run := 0; len(kids) > 0; run++ {
		n := min(childrenPerItem, len(kids))
		ws = append(ws, ledger.Write{Item: ledger.Item{Key: kidsKey(op, run), Data: Encode(childRun{kids[:n]})}})
		kids = kids[n:]
	}
	return ws
}

// Children is a plan's children as they were read.
type Children struct {
	op       string
	Kids     []Child
	versions []int64
	slots    int64
}

// Children reads a plan's children.
func (st *Store) Children(ctx context.Context, op string) (*Children, error) {
	c := &Children{op: op}
	it, err := st.Ledger.Get(ctx, slotsKey(op)) // before the children: what is admitted since is a conflict
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return nil, fmt.Errorf("read slots of %s: %w", op, err)
	}
	c.slots = it.Version
	q := ledger.Query{PK: OperationPK(op), From: skKids, To: skKids + "~"}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read children of %s: %w", op, err)
		}
		for _, it := range p.Items {
			run, err := Decode[childRun](it)
			if err != nil {
				return nil, err
			}
			c.Kids = append(c.Kids, run.Children...)
			c.versions = append(c.versions, it.Version)
		}
		if p.Next == "" {
			return c, nil
		}
		q.After = p.Next
	}
}

// Write returns the write that keeps child i as it is in Kids now, conditional
// on the version read.
func (c *Children) Write(i int) ledger.Write {
	run := i / childrenPerItem
	lo := run * childrenPerItem
	hi := min(lo+childrenPerItem, len(c.Kids))
	return ledger.Write{Item: ledger.Item{Key: kidsKey(c.op, run), Data: Encode(childRun{c.Kids[lo:hi]})}, Expect: c.versions[run]}
}

// slotsKey is the key of the item that every admission of a child writes: runs
// that count the open slots at once must not both fill the last one.
func slotsKey(op string) ledger.Key { return ledger.Key{PK: OperationPK(op), SK: "slots"} }

// Admit returns the writes that mark child i admitted: as Write, and conditional
// on no other child's having been admitted since the children were read.
func (c *Children) Admit(i int) []ledger.Write {
	return []ledger.Write{c.Write(i), {Item: ledger.Item{Key: slotsKey(c.op), Data: []byte("{}")}, Expect: c.slots}}
}

// Admitted tells that the writes of Admit were committed.
func (c *Children) Admitted(i int) {
	c.Wrote(i)
	c.slots++
}

// Wrote tells that the write of child i was committed.
func (c *Children) Wrote(i int) { c.versions[i/childrenPerItem]++ }

// NamedID is an object's name and id.
type NamedID struct{ Name, ID string }

// Components lists the components that a cluster reports.
func (st *Store) Components(ctx context.Context, cluster string) ([]NamedID, error) {
	objects, err := All[fleet.Object](ctx, st.Ledger, ledger.Query{Index: ledger.Scope, PK: InventoryScope(operation.KindComponent, cluster)})
	if err != nil {
		return nil, err
	}
	out := make([]NamedID, len(objects))
	for i, o := range objects {
		out[i] = NamedID{Name: o.Name, ID: o.ID}
	}
	return out, nil
}
