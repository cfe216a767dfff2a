package registry

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// late is a ledger whose index of live operations shows nothing yet.
type late struct{ ledger.Ledger }

func (l late) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if q.Index == ledger.Live {
		return ledger.Page{}, nil
	}
	return l.Ledger.Query(ctx, q)
}

// inUse makes a cluster with one node, and a function that asks for its cordon.
func inUse(t *testing.T, s *Service, name string) (cluster string, request func() (operation.Operation, error)) {
	t.Helper()
	c, err := s.Create(t.Context(), admin, name)
	must(t, err)
	objects, _ := fleet.Objects(c.Cluster.ID, &protocol.Inventory{Nodes: []protocol.Node{{UID: "u" + name, Name: "n", Revision: 1}}}, time.Now())
	ws, err := s.Store.MergeObjects(t.Context(), objects)
	must(t, err)
	must(t, s.Store.Ledger.Commit(t.Context(), ws...))
	adm := &admission.Service{Store: s.Store}
	return c.Cluster.ID, func() (operation.Operation, error) {
		body, err := json.Marshal(map[string]any{"type": "node.cordon", "target": objects[0].ID, "reason": "test"})
		must(t, err)
		a, err := adm.Admit(context.Background(), admin, body)
		return a.Operation, err
	}
}

func refusedAs(err error, codes ...string) bool {
	r, ok := errors.AsType[*operation.Refusal](err)
	for _, c := range codes {
		if ok && r.ErrorCode == c {
			return true
		}
	}
	return false
}

// Whichever comes first of a deletion and an admission refuses the other, on an
// engine whose index shows nothing of it yet too.
func TestDeleteAgainstAdmission(t *testing.T) {
	t.Parallel()
	for name, lag := range map[string]time.Duration{"prompt index": 0, "late index": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := setup(t)
			s.Store.IndexLag = lag
			if lag > 0 {
				s.Store.Ledger = late{s.Store.Ledger}
			}
			admitted := 0
			for range 50 {
				cluster, request := inUse(t, s, "east")
				var wg sync.WaitGroup
				var op operation.Operation
				var asked error
				deleted := make([]error, 2)
				wg.Go(func() { op, asked = request() })
				for i := range deleted {
					wg.Go(func() { deleted[i] = s.Delete(context.Background(), admin, "east") })
				}
				wg.Wait()
				gone := deleted[0] == nil || deleted[1] == nil
				if (asked == nil) == gone {
					t.Fatalf("admission: %v, deletions: %v", asked, deleted)
				}
				if asked != nil && !refusedAs(asked, "not_found") {
					t.Fatalf("admission: %v", asked)
				}
				for _, err := range deleted {
					if err != nil && !refusedAs(err, "cluster_in_use", "not_found") {
						t.Fatalf("deletion: %v", err)
					}
				}
				if gone {
					continue
				}
				admitted++
				c, _, err := s.Store.Cluster(t.Context(), cluster)
				must(t, err)
				if c.Deleting {
					t.Fatal("a cluster whose deletion was refused takes nothing on any more")
				}
				_, err = s.Store.Update(t.Context(), op.Spec.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
					return operation.RequestCancel{By: admin.Caller.Actor}, nil, nil
				})
				must(t, err)
				must(t, s.Delete(t.Context(), admin, "east"))
			}
			t.Logf("%d of 50 were admitted first", admitted)
		})
	}
}

// What an index does not show yet is found by what admitted it.
func TestLiveInFindsWhatIsYoung(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	cluster, request := inUse(t, s, "east")
	op, err := request()
	must(t, err)
	s.Store.Ledger = late{s.Store.Ledger}
	if found, err := s.Store.LiveIn(t.Context(), cluster); err != nil || found != "" {
		t.Fatalf("by the index alone: %q, %v", found, err)
	}
	s.Store.IndexLag = time.Minute
	if found, err := s.Store.LiveIn(t.Context(), cluster); err != nil || found != op.Spec.ID {
		t.Errorf("got %q, %v, want %s", found, err, op.Spec.ID)
	}
	if found, err := s.Store.LiveIn(t.Context(), "clu_other"); err != nil || found != "" {
		t.Errorf("in another cluster: %q, %v", found, err)
	}
	// A child has no record of its own; its plan does.
	now := time.Now().UTC()
	kid := op.Spec.ID
	must(t, s.Store.Ledger.Commit(t.Context(), record.ChildWrites("op_plan", []record.Child{{Operation: kid, Admitted: true}})...))
	plan := operation.Operation{Spec: operation.Spec{ID: "op_plan", PlaneLocal: true, CreatedAt: now}}
	state, entries, err := operation.Admit(&plan.Spec, now.Add(time.Hour))
	must(t, err)
	plan.State = state
	ws := append(s.Store.CreateWrites(&plan, entries), record.AuditWrite(record.Audit{At: now, Action: record.AuditCreate, Resource: "op_plan"}))
	p, err := s.Store.Ledger.Query(t.Context(), ledger.Query{PK: record.AuditPK(now)})
	must(t, err)
	for _, it := range p.Items { // the child's own, which it would not have
		ws = append(ws, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: it.Key}, Expect: ledger.AnyVersion})
	}
	must(t, s.Store.Ledger.Commit(t.Context(), ws...))
	if found, err := s.Store.LiveIn(t.Context(), cluster); err != nil || found != kid {
		t.Errorf("a child: got %q, %v, want %s", found, err, kid)
	}
}
