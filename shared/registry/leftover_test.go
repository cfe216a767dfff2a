package registry

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
)

// unseen is a ledger whose index of the clusters' inventories shows nothing yet.
type unseen struct{ ledger.Ledger }

func (l unseen) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if q.Index == ledger.Scope {
		return ledger.Page{}, nil
	}
	return l.Ledger.Query(ctx, q)
}

// TestLeftoverOfADeletedCluster: what agents reported so late that a deletion did
// not see it, or while it was at work, is gone after retention's next pass.
func TestLeftoverOfADeletedCluster(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	ctx := t.Context()
	cluster, _ := inUse(t, s, "east")
	other, _ := inUse(t, s, "west")
	node := func(cluster, uid string) string {
		objects, _ := fleet.Objects(cluster, &protocol.Inventory{Nodes: []protocol.Node{{UID: uid, Name: "n", Revision: 1}}}, time.Now())
		return objects[0].ID
	}
	prompt := s.Store.Ledger
	s.Store.Ledger = unseen{prompt}
	must(t, s.Delete(ctx, admin, "east"))
	s.Store.Ledger = prompt
	agent := fleet.Agent{ID: fleet.AgentID(cluster, "late"), Name: "late", Cluster: cluster, LastSeen: time.Now()}
	must(t, prompt.Commit(ctx, ledger.Write{Item: s.Store.AgentItem(&agent)}))
	if _, _, err := s.Store.Object(ctx, node(cluster, "ueast")); err != nil {
		t.Fatalf("the deletion saw it: %v", err)
	}
	_, err := retention.Pass(ctx, s.Store, retention.Default)
	must(t, err)
	if _, _, err := s.Store.Object(ctx, node(cluster, "ueast")); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("its node is still there: %v", err)
	}
	if agents, err := s.Store.Agents(ctx, cluster); err != nil || len(agents) != 0 {
		t.Errorf("agents %v, %v", agents, err)
	}
	if list, _, err := s.Store.Objects(ctx, operation.KindNode, "", record.Span{}); err != nil || len(list) != 1 || list[0].Cluster != other {
		t.Errorf("nodes %v, %v", list, err)
	}
}
