package record

import (
	"context"
	"fmt"
	"strings"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// OperationsBy says which list of operations is walked: those that touched a
// resource, those that have not ended, those of a cluster ("plane": of none),
// those of an actor, or, when it is empty, all.
type OperationsBy struct {
	Resource, Cluster, Actor string
	Live                     bool
}

// FoundOperation is an operation in a list: its id and place. State is as the
// list had it, nil when the list does not carry it.
type FoundOperation struct {
	ID    string
	Sort  string
	State *operation.State
}

// Operations reads a part of a list of operations, by the time of creation.
// more tells whether the list goes on behind it.
func (st *Store) Operations(ctx context.Context, by OperationsBy, sp Span) (found []FoundOperation, more bool, err error) {
	var q ledger.Query
	switch {
	case by.Resource != "":
		return st.touched(ctx, by.Resource, sp)
	case by.Live:
		q = ledger.Query{Index: ledger.Live, PK: ListOperations}
	case by.Cluster != "":
		q = ledger.Query{Index: ledger.Scope, PK: scopeOf(by.Cluster)}
	case by.Actor != "":
		q = ledger.Query{Index: ledger.Lookup, PK: ListOperations + "#actor#" + by.Actor}
	default:
		q = ledger.Query{Index: ledger.List, PK: ListOperations}
	}
	p, err := st.Ledger.Query(ctx, sp.query(q))
	if err != nil {
		return nil, false, fmt.Errorf("list operations: %w", err)
	}
	for _, it := range p.Items {
		s, err := Decode[operation.State](it)
		if err != nil {
			return nil, false, err
		}
		found = append(found, FoundOperation{ID: s.ID, Sort: TimeSort(s.CreatedAt, s.ID), State: &s})
	}
	return found, p.Next != "", nil
}

// touched walks the references of a resource. Manual changes are references
// too and are passed over.
func (st *Store) touched(ctx context.Context, resource string, sp Span) (found []FoundOperation, more bool, err error) {
	inner := sp
	inner.From, inner.To = skRef+sp.From, skRef+"~"
	if sp.To != "" {
		inner.To = skRef + sp.To
	}
	if sp.After != "" {
		inner.After = skRef + sp.After
	}
	p, err := st.Ledger.Query(ctx, inner.query(ledger.Query{PK: ResourcePK(resource)}))
	if err != nil {
		return nil, false, fmt.Errorf("list operations of %s: %w", resource, err)
	}
	for _, it := range p.Items {
		sort := strings.TrimPrefix(it.SK, skRef)
		_, op, _ := strings.Cut(sort, "#")
		f := FoundOperation{Sort: sort}
		if id.Prefix(op) == id.Operation {
			f.ID = op
		}
		found = append(found, f)
	}
	return found, p.Next != "", nil
}
