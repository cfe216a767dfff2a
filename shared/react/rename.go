package react

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// maxCarried bounds the rules and silences that a rename changes: all in one commit.
const maxCarried = 60

// rename is what goes along when a rule gets another name.
type rename struct {
	was, to string
	all     []Rule // with the new name in inhibited_by
	changed []int  // of all
}

// renaming returns the rules as they are when one of them is renamed. Those that ship
// name only what ships.
func renaming(all []Rule, was, to string) rename {
	n := rename{was: was, to: to, all: slices.Clone(all)}
	if was == to {
		return n
	}
	for i := range n.all {
		r := &n.all[i]
		if r.Shipped || !slices.ContainsFunc(r.Rule.InhibitedBy, func(in alert.Inhibitor) bool { return in.Rule == was }) {
			continue
		}
		r.Rule.InhibitedBy = slices.Clone(r.Rule.InhibitedBy)
		for j := range r.Rule.InhibitedBy {
			if in := &r.Rule.InhibitedBy[j]; in.Rule == was {
				in.Rule = to
			}
		}
		n.changed = append(n.changed, i)
	}
	return n
}

// writes are those of the rules and of the silences that name the rule: without them
// the one would be told that should not be, and so would the other.
func (n *rename) writes(ctx context.Context, st *record.Store, by operation.Actor, now time.Time) ([]ledger.Write, error) {
	if n.was == n.to {
		return nil, nil
	}
	var out []ledger.Write
	for _, i := range n.changed {
		r := &n.all[i]
		x := stored{ID: r.ID, Rule: r.Rule, Version: r.Version + 1, CreatedAt: r.CreatedAt, CreatedBy: r.CreatedBy, UpdatedAt: now, UpdatedBy: by}
		out = append(out, ledger.Write{Expect: r.Revision, Item: ledger.Item{Key: record.RuleKey(r.ID), Data: record.Encode(x)}})
	}
	silences, err := loadSilences(ctx, st, silently)
	if err != nil {
		return nil, err
	}
	for _, x := range silences {
		if now.Before(x.EndsAt) && n.silence(&x) {
			out = append(out, ledger.Write{Expect: x.Version, Item: silenceItem(x)})
		}
	}
	if len(out) > maxCarried {
		return nil, alert.Faults{{Pointer: "/name", Code: alert.CodeRange,
			Detail: fmt.Sprintf("%d rules and silences name %s, a rename takes at most %d along", len(out), n.was, maxCarried)}}
	}
	return out, nil
}

// silence gives a silence the new name, where it has the old one; of patterns the
// people who wrote them know.
func (n *rename) silence(x *alert.Silence) bool {
	names := func(m alert.Match) bool { return m.Field == "rule" && m.Op != alert.OpMatch && m.Value == n.was }
	if !slices.ContainsFunc(x.Matchers, names) {
		return false
	}
	x.Matchers = slices.Clone(x.Matchers)
	for i := range x.Matchers {
		if names(x.Matchers[i]) {
			x.Matchers[i].Value = n.to
		}
	}
	return true
}

// Plain are the rules without what is known of them.
func Plain(all []Rule) []*alert.Rule {
	out := make([]*alert.Rule, len(all))
	for i := range all {
		out[i] = &all[i].Rule
	}
	return out
}
