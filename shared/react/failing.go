package react

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Failing is how judging events by a rule as it is now has failed, over streams.
type Failing struct {
	// Count is of events for which an expression could not be evaluated. It may be as
	// much as half behind: it is kept whenever it has doubled, and with what else is
	// kept.
	Count int64 `json:"count"`
	// Stream, At and Last are those of the last one: a cluster's id or "plane", when it
	// was received, and what failed.
	Stream string        `json:"stream"`
	At     time.Time     `json:"at"`
	Last   alert.Failure `json:"last"`
}

// Failing tells, by rule id, how judging by the rules has failed in the streams, of
// those by which it has. Positions that cannot be read are passed over.
func (s *Service) Failing(ctx context.Context, streams []string, rules []Rule) (map[string]Failing, error) {
	digests := make(map[string]string, len(rules))
	for i := range rules {
		digests[rules[i].ID] = rules[i].Digest
	}
	out := map[string]Failing{}
	for len(streams) > 0 {
		part := streams[:min(len(streams), ledger.MaxWrites)]
		streams = streams[len(part):]
		keys := make([]ledger.Key, len(part))
		for i, stream := range part {
			keys[i] = record.JudgedKey(stream)
		}
		items, err := s.Store.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("read how streams were judged: %w", err)
		}
		for i, stream := range part {
			at, err := record.Decode[position](items[keys[i]])
			if err != nil {
				continue
			}
			for id, f := range at.Failing {
				if digests[id] != f.Digest {
					continue
				}
				x := out[id]
				if x.Count += f.Count; x.At.UnixMilli() < f.At {
					x.Stream, x.At, x.Last = stream, time.UnixMilli(f.At).UTC(), f.Last
				}
				out[id] = x
			}
		}
	}
	return out, nil
}
