package retention_test

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
)

// An agent that was silent for the policy's time is forgotten, and told of once;
// one that was heard of, or is not silent yet, stays.
func TestAgentsThatNeverCameBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := context.Background()
	const cluster = "clu_1"
	b.no(b.tap.Commit(ctx, ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: cluster, Name: "east"})}))
	put := func(name string, seen time.Time, silent bool) {
		a := fleet.Agent{ID: fleet.AgentID(cluster, name), Name: name, Cluster: cluster, Boot: "b", LastSeen: seen, Silent: silent}
		b.no(b.tap.Commit(ctx, ledger.Write{Item: b.store.AgentItem(&a), Expect: ledger.AnyVersion}))
	}
	put("gone", t0, true)
	put("back", t0, true)
	put("quiet", t0, false) // the sweep has not called it silent: nobody else does
	policy := retention.Policy{Operations: 180 * day, Events: 30 * day, Agents: 7 * day}
	names := func() (out []string) {
		agents, err := b.store.Agents(ctx, cluster)
		b.no(err)
		for _, a := range agents {
			out = append(out, a.Name)
		}
		return out
	}
	b.clock = t0.Add(7*day - time.Second)
	_, err := retention.Pass(ctx, b.store, policy)
	b.no(err)
	if got := names(); len(got) != 3 {
		t.Fatalf("a second too early: %v are left", got)
	}
	put("back", b.clock, false)
	b.clock = t0.Add(7 * day)
	for range 2 {
		_, err := retention.Pass(ctx, b.store, policy)
		b.no(err)
	}
	left := map[string]bool{}
	for _, n := range names() {
		left[n] = true
	}
	if len(left) != 2 || left["gone"] {
		t.Errorf("%v are left", left)
	}
	evs, _, err := event.ReadStream(ctx, b.tap, cluster, 1, 10)
	b.no(err)
	if len(evs) != 1 || evs[0].Type != event.TypeAgentRemoved || evs[0].Subject.Name != "gone" {
		t.Errorf("told: %+v", evs)
	}
	b.clock = t0.Add(400 * day)
	policy.Agents = 0
	_, err = retention.Pass(ctx, b.store, policy)
	b.no(err)
	if got := names(); len(got) != 2 {
		t.Errorf("kept for ever: %v are left", got)
	}
}
