package react

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Service carries out the calls on rules, alerts and silences. It holds no state
// of its own. What breaks a rule is alert.Faults; refusals are
// *operation.Refusal.
type Service struct {
	Store *record.Store
	// Changed is called after a rule or silence was changed, so that streams
	// that are quiet take it too; nil: the next event or timer does.
	Changed func()
}

// Rule is a rule as it is in force.
type Rule struct {
	ID   string     `json:"id"`
	Rule alert.Rule `json:"rule"`
	// Version grows at each change; alerts name it.
	Version int64  `json:"version"`
	Digest  string `json:"digest"`
	// Revision is that of the stored item, for conditional changes; 0: a shipped
	// rule that nobody changed.
	Revision int64           `json:"revision"`
	Shipped  bool            `json:"shipped"`
	Override *alert.Override `json:"override,omitempty"` // of a shipped one

	CreatedAt time.Time       `json:"created_at"`
	CreatedBy operation.Actor `json:"created_by"`
	UpdatedAt time.Time       `json:"updated_at"`
	UpdatedBy operation.Actor `json:"updated_by"`
}

// stored is the data of a rule's item: a rule of the site, or what is changed of
// a shipped one.
type stored struct {
	ID        string          `json:"id"`
	Rule      alert.Rule      `json:"rule,omitzero"`
	Override  *alert.Override `json:"override,omitempty"`
	Version   int64           `json:"version"`
	CreatedAt time.Time       `json:"created_at"`
	CreatedBy operation.Actor `json:"created_by"`
	UpdatedAt time.Time       `json:"updated_at"`
	UpdatedBy operation.Actor `json:"updated_by"`

	revision int64
}

func (s *stored) view() Rule {
	return Rule{ID: s.ID, Rule: s.Rule, Version: s.Version, Digest: alert.Digest(&s.Rule), Revision: s.revision,
		CreatedAt: s.CreatedAt, CreatedBy: s.CreatedBy, UpdatedAt: s.UpdatedAt, UpdatedBy: s.UpdatedBy}
}

func shippedView(sh alert.Shipped, o stored) Rule {
	v := Rule{ID: sh.ID, Rule: sh.Rule, Version: 1 + o.Version, Revision: o.revision, Shipped: true, Override: o.Override,
		CreatedBy: operation.Plane, UpdatedAt: o.UpdatedAt, UpdatedBy: o.UpdatedBy}
	if o.Override != nil {
		v.Rule = o.Override.Apply(sh.Rule)
	}
	v.Digest = alert.Digest(&v.Rule)
	return v
}

// Faults tells why the rule, as it is stored, cannot judge anything; nil where it
// can. One that was taken by this version of the plane can.
func (r *Rule) Faults() alert.Faults {
	_, err := alert.Compile(r.Rule, r.ID, r.Version)
	faults, _ := errors.AsType[alert.Faults](err)
	return faults
}

func (s *Service) now() time.Time { return s.Store.Now().UTC().Truncate(time.Millisecond) }

func (s *Service) audit(call admission.Call, action, resource string, status int, reason string) ledger.Write {
	return record.AuditWrite(record.Audit{At: s.now(), Actor: call.Caller.Actor, Method: call.Method, Path: call.Path, Action: action,
		Resource: resource, Status: status, Reason: reason, CorrelationID: call.CorrelationID, RemoteAddr: call.RemoteAddr})
}

// change commits writes together with the move of the mark by which reactors see
// that rules or silences changed. f is called again when another was faster.
func (s *Service) change(ctx context.Context, f func() ([]ledger.Write, error)) error {
	err := record.Again(ctx, func() error {
		it, err := s.Store.Ledger.Get(ctx, record.RulesKey)
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("read the rules' mark: %w", err)
		}
		writes, err := f()
		if err != nil || len(writes) == 0 {
			return err
		}
		mark := ledger.Write{Expect: it.Version, Feed: true, Item: ledger.Item{Key: record.RulesKey, Data: []byte("{}")}}
		return s.Store.Ledger.Commit(ctx, append(writes, mark)...)
	})
	if err == nil && s.Changed != nil {
		s.Changed()
	}
	return err
}

// Rules returns all rules, those that ship too, by name.
func (s *Service) Rules(ctx context.Context) ([]Rule, error) {
	out, err := loadRules(ctx, s.Store)
	slices.SortFunc(out, func(a, b Rule) int { return strings.Compare(a.Rule.Name, b.Rule.Name) })
	return out, err
}

// Rule finds a rule by id or name; not_found.
func (s *Service) Rule(ctx context.Context, ref string) (Rule, error) {
	all, err := loadRules(ctx, s.Store)
	if err != nil {
		return Rule{}, err
	}
	return find(all, ref)
}

func find(all []Rule, ref string) (Rule, error) {
	for _, r := range all {
		if r.ID == ref || r.Rule.Name == ref {
			return r, nil
		}
	}
	return Rule{}, operation.Refuse("not_found", "there is no rule %.128s", ref)
}

// check compiles the rule and holds it against the others, and what it names to what
// there is; what it named before it may go on naming.
func check(all []Rule, r *alert.Rule, ruleID string) error {
	c, err := alert.Compile(*r, ruleID, 0)
	if err != nil {
		return err
	}
	if err := c.CheckCost(); err != nil {
		return err
	}
	names := make([]string, 0, len(all))
	for i := range all {
		if all[i].ID != ruleID {
			names = append(names, all[i].Rule.Name)
			continue
		}
		for _, in := range all[i].Rule.InhibitedBy { // what it named before may be gone since
			names = append(names, in.Rule)
		}
	}
	if err := r.CheckSaved(names); err != nil {
		return err
	}
	list := []*alert.Rule{r}
	for i := range all {
		if all[i].ID == ruleID {
			continue
		}
		if all[i].Rule.Name == r.Name {
			return operation.Refuse("name_taken", "there is a rule %s", r.Name)
		}
		list = append(list, &all[i].Rule)
	}
	return alert.Cycle(list, r.Name)
}

// CreateRule keeps a new rule. Errors: alert.Faults, name_taken, an
// *admission.EarlierError for a call that is a repeat.
func (s *Service) CreateRule(ctx context.Context, call admission.Call, r alert.Rule) (Rule, error) {
	now := s.now()
	st := stored{ID: id.New(id.Rule, now), Rule: r, Version: 1, CreatedAt: now, CreatedBy: call.Caller.Actor, UpdatedAt: now, UpdatedBy: call.Caller.Actor}
	err := s.change(ctx, func() ([]ledger.Write, error) {
		once, err := admission.Once(ctx, s.Store, call, st.ID)
		if err != nil {
			return nil, err
		}
		all, err := loadRules(ctx, s.Store)
		if err != nil {
			return nil, err
		}
		if n := len(slices.DeleteFunc(slices.Clone(all), func(r Rule) bool { return r.Shipped })); n >= alert.MaxRules {
			return nil, alert.Faults{{Code: alert.CodeRange, Detail: fmt.Sprintf("there are %d rules, the limit is %d", n, alert.MaxRules)}}
		}
		if err := check(all, &r, st.ID); err != nil {
			return nil, err
		}
		name, err := s.name(ctx, r.Name, st.ID)
		if err != nil {
			return nil, err
		}
		return append(once,
			ledger.Write{Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}},
			name,
			s.audit(call, "rule.create", st.ID, http.StatusCreated, r.Name),
		), nil
	})
	if err != nil {
		return Rule{}, fmt.Errorf("create rule: %w", err)
	}
	st.revision = 1
	return st.view(), nil
}

// named is the data of the item that makes a rule's name unique.
type named struct {
	Rule string `json:"rule"` // id
}

// name gives a name to a rule. It is taken by another that cannot be read, and so is
// listed without it; it is free when that was deleted, or mended under another name.
func (s *Service) name(ctx context.Context, name, ruleID string) (ledger.Write, error) {
	w := ledger.Write{Item: ledger.Item{Key: record.RuleNameKey(name), Data: record.Encode(named{ruleID})}}
	it, err := s.Store.Ledger.Get(ctx, w.Item.Key)
	if errors.Is(err, ledger.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("read rule name: %w", err)
	}
	w.Expect = it.Version
	was, err := record.Decode[named](it)
	if err != nil || was.Rule == ruleID { // what it is worth, the rules themselves tell
		return w, nil
	}
	it, err = s.Store.Ledger.Get(ctx, record.RuleKey(was.Rule))
	if errors.Is(err, ledger.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("read rule of a name: %w", err)
	}
	if holder, err := record.Decode[stored](it); err == nil && holder.Rule.Name != name {
		return w, nil
	}
	return w, operation.Refuse("name_taken", "%s is the name of rule %s", name, was.Rule)
}

// stale is that a conditional change came too late.
func stale(r *Rule, revision int64) error {
	return operation.Refuse("precondition_failed", "rule %s is at revision %d, not %d", r.Rule.Name, r.Revision, revision).With("revision", r.Revision)
}

// UpdateRule replaces a rule of the site, if it is at the revision (0: whichever
// it is at). With a new name go the rules and silences that name it. Errors: alert.Faults, not_found, name_taken, precondition_failed;
// a shipped rule is changed by OverrideRule alone (forbidden).
func (s *Service) UpdateRule(ctx context.Context, call admission.Call, ref string, revision int64, r alert.Rule) (Rule, error) {
	var out Rule
	err := s.change(ctx, func() ([]ledger.Write, error) {
		all, err := loadRules(ctx, s.Store)
		if err != nil {
			return nil, err
		}
		was, err := find(all, ref)
		switch {
		case err != nil:
			return nil, err
		case was.Shipped:
			return nil, operation.Refuse("forbidden", "rule %s ships with the product: override it, or write one of your own", was.Rule.Name)
		case revision != 0 && revision != was.Revision:
			return nil, stale(&was, revision)
		}
		along := renaming(all, was.Rule.Name, r.Name)
		if err := check(along.all, &r, was.ID); err != nil {
			return nil, err
		}
		st := stored{ID: was.ID, Rule: r, Version: was.Version + 1, CreatedAt: was.CreatedAt, CreatedBy: was.CreatedBy, UpdatedAt: s.now(), UpdatedBy: call.Caller.Actor}
		writes := []ledger.Write{
			{Expect: was.Revision, Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}},
			s.audit(call, "rule.update", st.ID, http.StatusOK, r.Name),
		}
		if r.Name != was.Rule.Name {
			name, err := s.name(ctx, r.Name, st.ID)
			if err != nil {
				return nil, err
			}
			more, err := along.writes(ctx, s.Store, call.Caller.Actor, s.now())
			if err != nil {
				return nil, err
			}
			writes = append(append(writes, name,
				ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.RuleNameKey(was.Rule.Name)}}), more...)
		}
		st.revision = was.Revision + 1
		out = st.view()
		return writes, nil
	})
	if err != nil {
		return Rule{}, fmt.Errorf("update rule: %w", err)
	}
	return out, nil
}

// DeleteRule deletes a rule of the site, or takes back what was changed of a
// shipped one. Its alerts resolve.
func (s *Service) DeleteRule(ctx context.Context, call admission.Call, ref string, revision int64) error {
	err := s.change(ctx, func() ([]ledger.Write, error) {
		was, err := s.Rule(ctx, ref)
		if err != nil {
			return nil, err
		}
		if revision != 0 && revision != was.Revision {
			return nil, stale(&was, revision)
		}
		if was.Shipped && was.Override == nil {
			return nil, operation.Refuse("forbidden", "rule %s ships with the product: disable it", was.Rule.Name)
		}
		writes := []ledger.Write{s.audit(call, "rule.delete", was.ID, http.StatusNoContent, was.Rule.Name)}
		if was.Shipped { // versions only grow
			st := stored{ID: was.ID, Override: &alert.Override{}, Version: was.Version, UpdatedAt: s.now(), UpdatedBy: call.Caller.Actor}
			return append(writes, ledger.Write{Expect: was.Revision, Item: ledger.Item{Key: record.RuleKey(was.ID), Data: record.Encode(st)}}), nil
		}
		return append(writes,
			ledger.Write{Kind: ledger.Delete, Expect: was.Revision, Item: ledger.Item{Key: record.RuleKey(was.ID)}},
			ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.RuleNameKey(was.Rule.Name)}}), nil
	})
	if err != nil {
		return fmt.Errorf("delete rule: %w", err)
	}
	return nil
}

// OverrideRule changes what a site may change of a shipped rule; a later one
// replaces it whole. Errors: alert.Faults, not_found, precondition_failed, and
// forbidden for a rule that does not ship.
func (s *Service) OverrideRule(ctx context.Context, call admission.Call, ref string, revision int64, o alert.Override) (Rule, error) {
	var out Rule
	err := s.change(ctx, func() ([]ledger.Write, error) {
		all, err := loadRules(ctx, s.Store)
		if err != nil {
			return nil, err
		}
		was, err := find(all, ref)
		switch {
		case err != nil:
			return nil, err
		case !was.Shipped:
			return nil, operation.Refuse("forbidden", "rule %s does not ship with the product: update it", was.Rule.Name)
		case revision != 0 && revision != was.Revision:
			return nil, stale(&was, revision)
		}
		i := slices.IndexFunc(alert.ShippedRules(), func(sh alert.Shipped) bool { return sh.ID == was.ID })
		sh := alert.ShippedRules()[i]
		if err := o.Check(&sh.Rule); err != nil {
			return nil, err
		}
		next := o.Apply(sh.Rule)
		if err := check(all, &next, was.ID); err != nil {
			return nil, err
		}
		st := stored{ID: was.ID, Override: &o, Version: was.Version, UpdatedAt: s.now(), UpdatedBy: call.Caller.Actor, revision: was.Revision + 1}
		out = shippedView(sh, st)
		return []ledger.Write{
			{Expect: was.Revision, Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}},
			s.audit(call, "rule.override", st.ID, http.StatusOK, was.Rule.Name),
		}, nil
	})
	if err != nil {
		return Rule{}, fmt.Errorf("override rule: %w", err)
	}
	return out, nil
}
