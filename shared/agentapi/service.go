// Package agentapi is the plane's side of its agents: claims, renewals, reports,
// inventory, events and previews. Everything that it reads from an agent is
// untrusted: an agent reaches its own cluster and the leases that it holds, and
// nothing else.
//
// Calls come in batches. Each entry is answered by itself: one that is refused
// leaves the others alone.
package agentapi

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// Service answers agents. It holds no state of its own but counts.
type Service struct {
	Store  *record.Store
	Queue  queue.Sender
	Logger *slog.Logger
	// Reoffer rings for what waited for an agent of the cluster.
	Reoffer func(ctx context.Context, cluster string) error
	// QueueURL is where a cluster's agents poll; nil: the plane's long poll.
	QueueURL func(cluster string) string

	Intake Intake
	// Received is told what has become of the events of a call; nil: nobody is.
	Received func(ctx context.Context, cluster string, r Received)
}

// parallel bounds how many entries of one call are worked on at once; their
// commits share the engine's transactions.
const parallel = 64

// each calls f for 0..n-1, some at once, and waits for all.
func each(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// agent reads the calling agent, who must have sent a heartbeat from this boot.
func (s *Service) agent(ctx context.Context, cluster, agentID, boot string) (fleet.Agent, error) {
	it, err := s.Store.Ledger.Get(ctx, record.AgentKey(cluster, agentID))
	if errors.Is(err, ledger.ErrNotFound) {
		return fleet.Agent{}, operation.Refuse("not_found", "there is no agent %q in this cluster; send a heartbeat first", short(agentID))
	}
	if err != nil {
		return fleet.Agent{}, err
	}
	a, err := record.Decode[fleet.Agent](it)
	if err != nil {
		return a, err
	}
	if a.Boot != boot {
		return a, operation.Refuse("lease_lost", "a newer process of agent %s has taken over", a.Name)
	}
	return a, nil
}

func tooMany(what string, n, limit int) error {
	return operation.Refuse("payload_too_large", "%d %s in one call, the limit is %d", n, what, limit).With("limit", limit)
}

// clean makes a text from an agent fit to keep: valid, without control
// characters, at most limit bytes.
func clean(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	if !operation.CleanText(s) {
		s = strings.Map(func(r rune) rune {
			if operation.CleanText(string(r)) {
				return r
			}
			return ' '
		}, s)
	}
	if len(s) > limit {
		s = s[:limit]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}

func detail(s string) string { return clean(s, protocol.MaxDetailBytes) }

func short(s string) string { return clean(s, 128) }
