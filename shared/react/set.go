package react

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// rules is the set of rules as a process knows it, by its mark: the version of
// the item that each change moves, and the digest of those that ship.
type rules struct {
	mu       sync.Mutex
	set      *alert.Set
	mark     string
	compiled map[string]compiled // by the items' sort keys
}

// compiled is a rule of the site that is ready, or what is changed of a shipped
// one.
type compiled struct {
	version  int64 // of its item
	rule     *alert.Compiled
	override stored
	id       string // of the rule
	err      error  // why it is not ready
}

var shippedDigest = sync.OnceValue(func() string {
	h := sha256.New()
	for _, s := range alert.ShippedRules() {
		h.Write(record.Encode(s.Rule))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
})

// load returns the rules that go with the version of their mark's item. A rule that
// does not compile, which another version of the plane wrote, is told to faulty when
// it is first seen: it judges nothing, and its alerts stay as they are.
func (r *rules) load(ctx context.Context, st *record.Store, version int64, faulty func(kind, name string, err error)) (*alert.Set, string, error) {
	mark := fmt.Sprintf("%d-%s", version, shippedDigest())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set != nil && r.mark == mark {
		return r.set, mark, nil
	}
	var items []ledger.Item
	if err := each(ctx, st.Ledger, record.RulesPK, "rule#", func(it ledger.Item) error { items = append(items, it); return nil }); err != nil {
		return nil, "", err
	}
	silences, err := loadSilences(ctx, st, func(id string, err error) { faulty("silence", id, err) })
	if err != nil {
		return nil, "", err
	}
	var list []*alert.Compiled
	var resting []string
	own, overrides, kept := map[string]bool{}, map[string]stored{}, make(map[string]compiled, len(items))
	unread := map[string]bool{}
	for _, it := range items {
		c, ok := r.compiled[it.SK]
		if !ok || c.version != it.Version {
			s, err := record.Decode[stored](it)
			if err != nil { // one that cannot be read holds up no other
				id := ruleID(it)
				faulty("rule", id, err)
				unread[id], resting = true, append(resting, id)
				continue
			}
			c = compiled{version: it.Version, override: s, id: s.ID}
			if s.Override == nil {
				if c.rule, c.err = alert.Compile(s.Rule, s.ID, s.Version); c.err != nil {
					faulty("rule", s.Rule.Name, c.err)
				}
			}
		}
		kept[it.SK] = c
		switch {
		case c.override.Override != nil:
			overrides[c.id] = c.override
			continue
		case c.err != nil:
			resting = append(resting, c.id)
		default:
			list = append(list, c.rule)
		}
		own[c.override.Rule.Name] = true
	}
	for _, sh := range alert.ShippedRules() {
		if own[sh.Rule.Name] || unread[sh.ID] {
			continue
		}
		v := shippedView(sh, overrides[sh.ID])
		c, err := alert.Compile(v.Rule, v.ID, v.Version)
		if err != nil {
			faulty("rule", v.Rule.Name, err)
			resting = append(resting, v.ID)
			continue
		}
		list = append(list, c)
	}
	var matchers []*alert.Matcher // past ones too: a stream may be behind, and its clock with it
	for _, s := range silences {
		m, err := alert.CompileSilence(s)
		if err != nil {
			if len(s.Matchers) > 0 { // else it could not be read, and was told
				faulty("silence", s.ID, err)
			}
			continue
		}
		matchers = append(matchers, m)
	}
	r.set, r.mark, r.compiled = alert.NewSet(list, matchers, resting...), mark, kept
	return r.set, mark, nil
}

// faulty counts and logs a rule or a silence that cannot be used.
func (r *Reactor) faulty(ctx context.Context) func(kind, name string, err error) {
	return func(kind, name string, err error) {
		r.Metrics.faulty()
		text := "a rule cannot be used: it judges nothing, and its alerts stay as they are"
		if kind == "silence" {
			text = "a silence cannot be read or used: it silences nothing until it is ended and made anew"
		}
		r.Logger.ErrorContext(ctx, text, kind, name, "err", err)
	}
}

// each reads all items of a partition with a prefix.
func each(ctx context.Context, l ledger.Reader, pk, prefix string, f func(ledger.Item) error) error {
	q := ledger.Query{PK: pk, From: prefix, To: prefix + "~"}
	for {
		p, err := l.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("read %s: %w", pk, err)
		}
		for _, it := range p.Items {
			if err := f(it); err != nil {
				return err
			}
		}
		if p.Next == "" {
			return nil
		}
		q.After = p.Next
	}
}

// loadRules returns all rules as they are in force: those of the site, and those
// that ship, with what is changed of them. One of the site hides a shipped one of
// its name. Each change of a rule is one of its item: for the version of one that
// cannot be read its revision counts, so that what comes behind is later.
func loadRules(ctx context.Context, st *record.Store) ([]Rule, error) {
	own := map[string]bool{}
	overrides, unread := map[string]stored{}, map[string]int64{}
	var out []Rule
	err := each(ctx, st.Ledger, record.RulesPK, "rule#", func(it ledger.Item) error {
		s, err := record.Decode[stored](it)
		if err != nil {
			unread[ruleID(it)] = it.Version
			return nil
		}
		s.revision = it.Version
		if s.Override != nil {
			overrides[s.ID] = s
			return nil
		}
		own[s.Rule.Name] = true
		out = append(out, s.view())
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, sh := range alert.ShippedRules() {
		revision, damaged := unread[sh.ID]
		switch {
		case own[sh.Rule.Name]:
		case damaged: // an override or a deletion replaces what cannot be read
			out = append(out, Rule{ID: sh.ID, Rule: alert.Rule{Name: sh.Rule.Name}, Version: 1 + revision, Revision: revision, Shipped: true, Override: &alert.Override{}})
			delete(unread, sh.ID)
		default:
			out = append(out, shippedView(sh, overrides[sh.ID]))
		}
	}
	for id, revision := range unread { // by its id: nobody knows its name
		out = append(out, Rule{ID: id, Rule: alert.Rule{Name: id}, Version: revision, Revision: revision})
	}
	return out, nil
}

// ruleID is the id of the rule that an item has.
func ruleID(it ledger.Item) string { return strings.TrimPrefix(it.SK, record.RuleKey("").SK) }
