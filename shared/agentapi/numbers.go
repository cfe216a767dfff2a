package agentapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// marksKept is how long the mark of a process is kept after another one of its name
// has taken over: longer than any process that hangs, or is cut off, comes back with
// what it has not had confirmed.
const marksKept = 90 * 24 * time.Hour

// eventsThrough is how far the numbers of an agent's process have been taken.
type eventsThrough struct {
	Boot    string `json:"boot"`
	Through int64  `json:"through"`
}

// mark is how far the numbers of a process have been taken, with what it takes to
// write that. There is one item for an agent, of the process that sent last. Two
// processes may go by one name and take turns: each finds its own mark again, which
// was put aside when the other one's took its place.
type mark struct {
	eventsThrough
	cluster, agent string
	last           eventsThrough // as it is kept
	version        int64
}

// mark reads how far a process's events have been taken.
func (s *Service) mark(ctx context.Context, cluster, agent, boot string) (mark, error) {
	m := mark{eventsThrough: eventsThrough{Boot: boot}, cluster: cluster, agent: agent}
	it, err := s.Store.Ledger.Get(ctx, record.AgentEventsKey(cluster, agent))
	if errors.Is(err, ledger.ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read event numbers: %w", err)
	}
	if m.last, err = record.Decode[eventsThrough](it); err != nil {
		return m, err
	}
	m.version = it.Version
	if m.last.Boot == boot {
		m.eventsThrough = m.last
		return m, nil
	}
	it, err = s.Store.Ledger.Get(ctx, record.BootEventsKey(cluster, agent, boot))
	if errors.Is(err, ledger.ErrNotFound) { // a new process, which counts from 1
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read event numbers of boot %s: %w", boot, err)
	}
	m.eventsThrough, err = record.Decode[eventsThrough](it)
	return m, err
}

// writes keep the mark, on condition that no other call has moved it or another's
// since it was read. That of another process is put aside.
func (m *mark) writes(now time.Time) []ledger.Write {
	out := []ledger.Write{{Item: ledger.Item{Key: record.AgentEventsKey(m.cluster, m.agent), Data: record.Encode(m.eventsThrough)}, Expect: m.version}}
	if m.version > 0 && m.last.Boot != m.Boot {
		out = append(out, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{
			Key: record.BootEventsKey(m.cluster, m.agent, m.last.Boot), Data: record.Encode(m.last), Expires: now.Add(marksKept)}})
	}
	return out
}

// sum adds numbers from 0 on, to the largest there is at most: agents choose theirs.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
