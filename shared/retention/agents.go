package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// removeAgents forgets the cluster's agents that were not heard of for so long,
// each with an event in the same commit. One that comes back after all is a new
// one of the same id.
func removeAgents(ctx context.Context, st *record.Store, cluster string, silentFor time.Duration) error {
	if silentFor == 0 {
		return nil
	}
	agents, err := st.Agents(ctx, cluster)
	if err != nil {
		return err
	}
	for _, listed := range agents {
		if err := removeAgent(ctx, st, record.AgentKey(cluster, listed.ID), silentFor); err != nil {
			return err
		}
	}
	return nil
}

func removeAgent(ctx context.Context, st *record.Store, key ledger.Key, silentFor time.Duration) error {
	it, err := st.Ledger.Get(ctx, key)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read agent: %w", err)
	}
	a, err := record.Decode[fleet.Agent](it)
	if err != nil {
		return err
	}
	now := st.Now().UTC()
	if !a.Silent || now.Sub(a.LastSeen) < silentFor {
		return nil
	}
	e, err := event.New(event.TypeAgentRemoved, a.Cluster, event.Subject{Kind: event.KindAgent, ID: a.ID, Name: a.Name}, now, operation.Plane,
		map[string]any{"last_seen": a.LastSeen, "boot": a.Boot, "silent_for": silentFor.String()}, a.ID, a.Boot, fmt.Sprint(a.LastSeen.UnixMilli()))
	if err != nil {
		return err
	}
	_, err = event.Append(ctx, st.Ledger, event.StreamOf(a.Cluster), []event.Event{e}, func() ([]ledger.Write, error) {
		return []ledger.Write{{Kind: ledger.Delete, Item: ledger.Item{Key: key}, Expect: it.Version}}, nil
	})
	if errors.Is(err, ledger.ErrConflict) {
		return nil // it was heard of just now, or another pass was faster
	}
	return err
}
