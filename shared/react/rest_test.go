package react

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// A rule as it is stored, or a change of a shipped one, that this version of the
// plane does not compile judges nothing; its alerts stay; it is logged, counted, and
// its view says why.
func TestStoredRulesThatDoNotCompile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	var log bytes.Buffer
	b.reactor.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	made := b.rule("name: one\non: [x.bad]\nwhen: event.subject.name == 'a'\ngroup_by: {g: event.subject.name}\nresolve_after: 5m\n")
	b.tell("x.bad", "a")
	b.follow()
	var shipped alert.Shipped
	for _, s := range alert.ShippedRules() {
		if s.Rule.Name == "device-degraded" {
			shipped = s
		}
	}
	broken := made.Rule
	broken.When = "event.that_comes_later == 1"
	b.advance(time.Minute)
	it, err := b.db.Get(t.Context(), record.RuleKey(shipped.ID))
	if err != nil {
		t.Fatal(err)
	}
	err = b.service.change(t.Context(), func() ([]ledger.Write, error) {
		return []ledger.Write{
			{Expect: made.Revision, Item: ledger.Item{Key: record.RuleKey(made.ID), Data: record.Encode(stored{ID: made.ID, Rule: broken, Version: 2})}},
			{Expect: it.Version, Item: ledger.Item{Key: record.RuleKey(shipped.ID), Data: record.Encode(stored{ID: shipped.ID, Override: &alert.Override{Count: 1 << 30}, Version: 2})}},
		}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "b")
	b.tell("device.degraded", "gpu")
	b.follow()
	b.advance(time.Hour)
	b.follow()
	if d := cmp.Diff([]string{"0s firing onemap[g:a] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	for _, name := range []string{"one", "device-degraded"} {
		r, err := b.service.Rule(t.Context(), name)
		if err != nil || len(r.Faults()) == 0 {
			t.Errorf("rule %s: %v, %v", name, r.Faults(), err)
		}
		if n := strings.Count(log.String(), `"rule":"`+name+`"`); n != 1 {
			t.Errorf("rule %s was logged %d times: %s", name, n, log.String())
		}
	}
	if n := b.reactor.Metrics.Read().Faulty; n != 2 {
		t.Errorf("counted %d rules", n)
	}
	if r, err := b.service.Rule(t.Context(), "agent-silent"); err != nil || r.Faults() != nil {
		t.Errorf("one without faults: %v, %v", r.Faults(), err)
	}
	// Mended, it goes on where it was.
	if _, err := b.service.UpdateRule(t.Context(), call, "one", 0, made.Rule); err != nil {
		t.Fatal(err)
	}
	b.follow()
	if d := cmp.Diff([]string{"0s firing onemap[g:a] condition_holds", "1h1m0s resolved onemap[g:a] quiet"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// What is at hand of streams is let go: events once they are judged, and streams
// that were used longest ago, with groups or without.
func TestStreamsAreLetGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reactor.Resident = 3
	b.tell("x.bad", "a")
	b.follow()
	if j := b.reactor.of(stream); j.ahead != nil {
		t.Errorf("%d judged events are at hand", len(j.ahead))
	}
	names := []string{"clu_a", "clu_b", "clu_c", "clu_d", "clu_e"}
	for _, s := range names {
		if err := b.reactor.Follow(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.reactor.streams); n != 3 || b.reactor.streams["clu_e"] == nil {
		t.Errorf("%d streams are at hand", n)
	}
}

// An item of a rule that cannot be read rests that rule alone; it can be replaced
// and deleted.
func TestStoredRulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	made := b.rule("name: one\non: [x.bad]\nresolve_after: 5m\n")
	b.rule("name: two\non: [x.bad]\nresolve_after: 5m\n")
	shipped := alert.ShippedRules()[0]
	damage := func(id string) {
		t.Helper()
		it, err := b.db.Get(t.Context(), record.RuleKey(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.service.change(t.Context(), func() ([]ledger.Write, error) {
			return []ledger.Write{{Expect: it.Version, Item: ledger.Item{Key: record.RuleKey(id), Data: []byte("{spoilt")}}}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	damage(made.ID)
	before, err := b.service.Rule(t.Context(), shipped.Rule.Name)
	if err != nil {
		t.Fatal(err)
	}
	damage(shipped.ID)
	b.tell("x.bad", "a")
	b.follow()
	if d := cmp.Diff([]string{"0s firing twomap[] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if n := b.reactor.Metrics.Read().Faulty; n != 2 {
		t.Errorf("counted %d rules", n)
	}
	for _, name := range []string{made.ID, shipped.Rule.Name} {
		r, err := b.service.Rule(t.Context(), name)
		if err != nil || len(r.Faults()) == 0 {
			t.Errorf("rule %s: %v, %v", name, r.Faults(), err)
		}
	}
	// It goes on at a later version, mended or deleted.
	kept, err := b.service.Rule(t.Context(), shipped.Rule.Name)
	if err != nil {
		t.Fatal(err)
	}
	off := false
	if r, err := b.service.OverrideRule(t.Context(), call, shipped.Rule.Name, 0, alert.Override{Enabled: &off}); err != nil || r.Version <= kept.Version || r.Version <= before.Version {
		t.Errorf("overridden at version %d, %v; it was at %d, and %d before", r.Version, err, kept.Version, before.Version)
	}
	damage(shipped.ID)
	if kept, err = b.service.Rule(t.Context(), shipped.Rule.Name); err != nil {
		t.Fatal(err)
	}
	// Its name is its own until it is deleted.
	if _, err := b.service.CreateRule(t.Context(), call, made.Rule); code(err) != "name_taken" {
		t.Errorf("another of its name: %v", err)
	}
	for _, name := range []string{made.ID, shipped.Rule.Name} {
		if err := b.service.DeleteRule(t.Context(), call, name, 0); err != nil {
			t.Errorf("delete rule %s: %v", name, err)
		}
	}
	if r, err := b.service.Rule(t.Context(), shipped.Rule.Name); err != nil || len(r.Faults()) > 0 || r.Version <= kept.Version {
		t.Errorf("rule %s: %v, at version %d, was at %d, %v", shipped.Rule.Name, r.Faults(), r.Version, kept.Version, err)
	}
	again, err := b.service.CreateRule(t.Context(), call, made.Rule)
	if err != nil {
		t.Fatalf("another of its name: %v", err)
	}
	if _, err := b.service.CreateRule(t.Context(), call, made.Rule); code(err) != "name_taken" {
		t.Errorf("two of a name: %v", err)
	}
	// Mended in place it keeps its name, or leaves it to others.
	damage(again.ID)
	r, err := b.service.UpdateRule(t.Context(), call, again.ID, 0, made.Rule)
	if err != nil || r.Rule.Name != "one" || r.Version <= again.Version {
		t.Errorf("mended: %+v, %v", r, err)
	}
	damage(again.ID)
	three := made.Rule
	three.Name = "three"
	if _, err := b.service.UpdateRule(t.Context(), call, again.ID, 0, three); err != nil {
		t.Errorf("mended under another name: %v", err)
	}
	if _, err := b.service.CreateRule(t.Context(), call, made.Rule); err != nil {
		t.Errorf("the name that it had: %v", err)
	}
}

// A rule that an earlier version took at a higher estimate judges on; one like it is
// not saved any more.
func TestRulesFromBeforeTheLimit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	dear := alert.Rule{Name: "dear", On: []string{"x.bad"}, ResolveAfter: alert.Duration(time.Hour),
		When: `!has(event.detail.list) || event.detail.list.all(x, string(x).matches('^(node|gpu|disk|fan|link|port)-[0-9]+-(north|south|east|west|upper|lower)-[0-9]+$'))`}
	st := stored{ID: alert.ShippedID("dear"), Rule: dear, Version: 1}
	err := b.service.change(t.Context(), func() ([]ledger.Write, error) {
		return []ledger.Write{{Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}},
			{Item: ledger.Item{Key: record.RuleNameKey("dear"), Data: record.Encode(named{st.ID})}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "a")
	b.follow()
	if d := cmp.Diff([]string{"0s firing dearmap[] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if r, err := b.service.Rule(t.Context(), "dear"); err != nil || r.Faults() != nil {
		t.Errorf("it has faults: %v, %v", r.Faults(), err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if f, _ := errors.AsType[alert.Faults](err); len(f) != 1 || f[0].Pointer != "/when" || f[0].Code != alert.CodeCost {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = b.service.UpdateRule(t.Context(), call, "dear", 0, dear)
	refused("update", err)
	dear.Name = "another"
	_, err = b.service.CreateRule(t.Context(), call, dear)
	refused("create", err)
}

// What looks like a secret and was kept before that was refused goes on: the rule
// judges, the silence silences, the note stays. Nobody brings it again.
func TestSecretsFromBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	const leaked = "AKIAIOSFODNN7EXAMPLE"
	made := b.rule("name: hot\non: [x.bad]\n")
	silence, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: []alert.Match{{Field: "rule", Op: alert.OpEqual, Value: "hot"}}, EndsAt: t0.Add(time.Hour), Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	old := made.Rule
	old.Description = leaked
	silence.Reason = leaked
	err = b.service.change(t.Context(), func() ([]ledger.Write, error) {
		return []ledger.Write{
			{Expect: made.Revision, Item: ledger.Item{Key: record.RuleKey(made.ID), Data: record.Encode(stored{ID: made.ID, Rule: old, Version: 2})}},
			{Expect: silence.Version, Item: silenceItem(silence)},
		}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.follow()
	b.tell("x.bad", "n1")
	b.follow()
	found, _, err := b.service.Alerts(t.Context(), Filter{}, "", 10)
	if err != nil || len(found) != 1 || found[0].Alert.SilencedBy != silence.ID {
		t.Fatalf("%+v, %v", found, err)
	}
	a := found[0].Alert
	kept := ledger.Item{Key: record.AckKey(a.ID), Data: record.Encode(acks{Ack: alert.Ack{By: call.Caller.Actor, At: t0, Note: leaked}})}
	if err := b.db.Commit(t.Context(), ledger.Write{Item: kept}); err != nil {
		t.Fatal(err)
	}
	if got, err := b.service.Acknowledge(t.Context(), call, a.ID, nil); err != nil || got.Acked.Note != leaked {
		t.Errorf("%+v, %v", got.Acked, err)
	}
	note := leaked
	_, err = b.service.Acknowledge(t.Context(), call, a.ID, &note)
	refusedAt(t, err, "/note", alert.CodeSecret)
	_, err = b.service.UpdateRule(t.Context(), call, "hot", 0, old)
	refusedAt(t, err, "/description", alert.CodeSecret)
	if _, err = b.service.UpdateRule(t.Context(), call, "hot", 0, made.Rule); err != nil {
		t.Error(err)
	}
	if _, err := b.service.EndSilence(t.Context(), call, silence.ID); err != nil {
		t.Error(err)
	}
}

// refusedAt holds an error to one fault.
func refusedAt(t *testing.T, err error, pointer, code string) {
	t.Helper()
	if f, _ := errors.AsType[alert.Faults](err); len(f) != 1 || f[0].Pointer != pointer || f[0].Code != code {
		t.Errorf("%v instead of %s at %s", err, code, pointer)
	}
}
