package react

import (
	"bytes"
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
	for _, name := range []string{made.ID, shipped.Rule.Name} {
		if err := b.service.DeleteRule(t.Context(), call, name, 0); err != nil {
			t.Errorf("delete rule %s: %v", name, err)
		}
	}
	if r, err := b.service.Rule(t.Context(), shipped.Rule.Name); err != nil || len(r.Faults()) > 0 {
		t.Errorf("rule %s: %v, %v", shipped.Rule.Name, r.Faults(), err)
	}
}
