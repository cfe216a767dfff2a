package export

import (
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// stage is when an item may be there. All items before it are, so that nothing
// ever acts on half of what it reads: the plane on the other side is running
// while items come in.
type stage int

const (
	atRest stage = iota // nothing acts by it alone
	heads               // of streams: what is ahead of the bus is put on it
	agents              // the sweep looks after them
	live                // operations that go on, or have something to tell
	plans               // operations that look at others
	access              // tokens: people and agents
	stages
)

// moves tells whether the item is moved at all.
func moves(k ledger.Key) bool {
	switch record.Kind(k) {
	case record.KindFeedPosition, record.KindBusPosition, record.KindPreview, record.KindSnapshot, record.KindImport:
		return false
	}
	return true
}

// stageOf sorts an item. behind has the operations whose journals are not yet
// whole in their streams: relay goes on with them.
func stageOf(it *ledger.Item, behind map[string]bool) (stage, error) {
	switch record.Kind(it.Key) {
	case record.KindToken, record.KindTokenUse:
		return access, nil
	case record.KindStream:
		return heads, nil
	case record.KindOperation:
		s, err := record.Decode[operation.State](*it)
		switch {
		case err != nil:
			return 0, err
		case !s.Phase.Terminal() && s.PlaneLocal:
			return plans, nil
		case !s.Phase.Terminal() || behind[s.ID]:
			return live, nil
		}
		return atRest, nil
	}
	if !it.Due.IsZero() {
		return agents, nil
	}
	return atRest, nil
}
