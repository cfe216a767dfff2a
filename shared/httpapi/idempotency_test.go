package httpapi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/problem"
)

// nextYear is when the tests' silences end.
var nextYear = time.Now().Add(300 * 24 * time.Hour).UTC().Format(time.RFC3339)

// kept are the things that are made under an idempotency key beside operations.
var kept = []struct {
	name, path, role        string
	yaml, json, other, list string // two spellings of one request; another one
}{
	{"rule", "/v1/rules", "admin", "name: mine\non: [node.left]\nclusters: [west]\n", `{"clusters":["west"],"on":["node.left"],"name":"mine"}`,
		`{"name":"other","on":["node.left"]}`, "/v1/rules?shipped=false"},
	{"receiver", "/v1/receivers", "admin", "name: pager\nkind: webhook\nurl: https://hooks.example.com/x\n", `{"url":"https://hooks.example.com/x","kind":"webhook","name":"pager"}`,
		`{"name":"pager","kind":"webhook","url":"https://hooks.example.com/y"}`, "/v1/receivers"},
	{"silence", "/v1/silences", "operator", "reason: r\nends_at: " + nextYear + "\nmatchers: [{field: rule, op: '=', value: x}]\n",
		`{"matchers":[{"field":"rule","op":"=","value":"x"}],"ends_at":"` + nextYear + `","reason":"r"}`,
		`{"matchers":[{"field":"rule","op":"=","value":"y"}],"ends_at":"` + nextYear + `","reason":"r"}`, "/v1/silences"},
}

const asYAML = "Content-Type: application/yaml"

// TestMadeOnce: what is asked for again under its key is answered with what was
// made, in either spelling and whatever has become of it; something else under the
// key is refused; a key is one principal's.
func TestMadeOnce(t *testing.T) {
	t.Parallel()
	for _, k := range kept {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			p.bearer["operator2"], p.bearer["admin2"] = p.bearer["admin"], p.token(auth.TokenSpec{Name: "second", Role: auth.Admin})
			post := func(role, body, key string, more ...string) answer {
				return p.do(role, "POST", k.path, body, append(more, "Idempotency-Key: "+key)...)
			}
			post(k.role, k.json, strings.Repeat("x", 256)).problem(422, problem.Invalid).points("/header/Idempotency-Key")
			post(k.role, `{"surprise":1}`, "k").problem(422, problem.Invalid) // it keeps no key
			made := post(k.role, k.yaml, "k", asYAML).want(201)
			id := made.str("id")
			if made.header.Get("Location") != k.path+"/"+id || made.header.Get("Idempotency-Replayed") != "" {
				t.Errorf("made: %v", made.header)
			}
			for _, again := range []answer{post(k.role, k.yaml, "k", asYAML), post(k.role, k.json, "k")} {
				again.want(200)
				if again.raw != made.raw || again.header.Get("Location") != k.path+"/"+id || again.header.Get("Idempotency-Replayed") != "true" {
					t.Errorf("again: %v %s, was %s", again.header, again.raw, made.raw)
				}
			}
			post(k.role, k.other, "k").problem(422, problem.IdempotencyKeyReused)
			if a := post(k.role+"2", k.json, "k"); a.status != 409 && (a.status != 201 || a.str("id") == id) {
				t.Errorf("another's key of the same text: %d %s", a.status, a.raw)
			}
			// What was accepted is not held to today's rules: it is past by then.
			now := time.Now().Add(400 * 24 * time.Hour)
			p.store.Now = func() time.Time { return now }
			if k.name == "rule" {
				must(t, p.reg.Delete(t.Context(), root, "west"))
			}
			if again := post(k.role, k.json, "k").want(200); again.str("id") != id {
				t.Errorf("again, later: %s", again.raw)
			}
			p.do(k.role, "DELETE", k.path+"/"+id, nil)
			if k.name == "silence" { // it has ended, and is there
				if again := post(k.role, k.json, "k").want(200); again.str("state") != "expired" || again.str("id") != id {
					t.Errorf("ended: %s", again.raw)
				}
				return
			}
			post(k.role, k.json, "k").problem(410, problem.Gone)
			if left := p.do("admin", "GET", k.list, nil).want(200).ids(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestMadeOnceAtOnce: of many calls at once under a key one makes it.
func TestMadeOnceAtOnce(t *testing.T) {
	t.Parallel()
	for _, k := range kept {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			answers := make([]answer, 8)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() { answers[i] = p.do(k.role, "POST", k.path, k.json, "Idempotency-Key: k") })
			}
			wg.Wait()
			statuses := map[int]int{}
			for _, a := range answers {
				statuses[a.status]++
				if a.str("id") != answers[0].str("id") {
					t.Errorf("another: %d %s", a.status, a.raw)
				}
			}
			if statuses[201] != 1 || statuses[200] != len(answers)-1 {
				t.Errorf("statuses %v", statuses)
			}
			if list := p.do("admin", "GET", k.list, nil).want(200).ids(); len(list) != 1 {
				t.Errorf("listed: %v", list)
			}
		})
	}
}

// losing is a ledger that applies its next commit, or not, and loses the answer.
type losing struct {
	ledger.Ledger
	applies, lost bool
}

func (l *losing) Commit(ctx context.Context, ws ...ledger.Write) error {
	if l.lost {
		return l.Ledger.Commit(ctx, ws...)
	}
	l.lost = true
	if l.applies {
		if err := l.Ledger.Commit(ctx, ws...); err != nil {
			return err
		}
	}
	return fmt.Errorf("commit: %w", ledger.ErrUnknown)
}

// TestMadeAndNotAnswered: a commit whose answer was lost is told for what it is, or
// left for a repeat to find out.
func TestMadeAndNotAnswered(t *testing.T) {
	t.Parallel()
	for _, k := range kept {
		for applies, first := range map[bool]int{true: 200, false: 504} {
			t.Run(fmt.Sprint(k.name, applies), func(t *testing.T) {
				t.Parallel()
				p := setup(t)
				p.store.Ledger = &losing{Ledger: p.db, applies: applies}
				a := p.do(k.role, "POST", k.path, k.json, "Idempotency-Key: k").want(first)
				again := p.do(k.role, "POST", k.path, k.json, "Idempotency-Key: k")
				if want := map[bool]int{true: 200, false: 201}[applies]; again.status != want || applies && again.raw != a.raw {
					t.Errorf("%d %s, then %d %s", a.status, a.raw, again.status, again.raw)
				}
			})
		}
	}
}

// TestSecretOfARepeat: who lost the answer gets the secret by asking again, until it
// is rotated; nobody else does.
func TestSecretOfARepeat(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.bearer["admin2"] = p.token(auth.TokenSpec{Name: "second", Role: auth.Admin})
	body := `{"name":"pager","kind":"webhook","url":"https://hooks.example.com/x"}`
	made := p.do("admin", "POST", "/v1/receivers", body, "Idempotency-Key: k").want(201)
	if again := p.do("admin", "POST", "/v1/receivers", body, "Idempotency-Key: k").want(200); again.str("secret") != made.str("secret") || made.str("secret") == "" {
		t.Errorf("again: %s", again.raw)
	}
	if a := p.do("admin2", "POST", "/v1/receivers", body, "Idempotency-Key: k").problem(409, problem.NameTaken); strings.Contains(a.raw, "whsec_") {
		t.Errorf("somebody else: %s", a.raw)
	}
	given := `{"name":"pager","kind":"webhook","url":"https://hooks.example.com/x","secret":"` + made.str("secret") + `"}`
	p.do("admin", "POST", "/v1/receivers", given, "Idempotency-Key: k").problem(422, problem.IdempotencyKeyReused)
	now := time.Now().Add(time.Second)
	p.store.Now = func() time.Time { return now }
	p.do("admin", "POST", "/v1/receivers/pager/rotate", nil).want(200)
	if again := p.do("admin", "POST", "/v1/receivers", body, "Idempotency-Key: k").want(200); strings.Contains(again.raw, "whsec_") || again.str("id") != made.str("id") {
		t.Errorf("rotated since: %s", again.raw)
	}
}

// TestSilencesByPages: the list has each silence once, the one that begins last
// first, by pages of any size.
func TestSilencesByPages(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var want []string
	for i, day := range []int{3, 1, 5, 5, 2} {
		body := fmt.Sprintf(`{"matchers":[{"field":"rule","op":"=","value":"x%d"}],"starts_at":"2034-01-0%dT00:00:00Z","ends_at":"2034-02-01T00:00:00Z","reason":"r"}`, i, day)
		want = append(want, p.do("operator", "POST", "/v1/silences", body).want(201).str("id"))
	}
	all := p.walk("viewer", "/v1/silences", nil)
	if len(all) != 5 || all[2] != want[0] || all[3] != want[4] || all[4] != want[1] {
		t.Errorf("listed %v, made %v", all, want)
	}
	for _, limit := range []int{1, 2, 3} {
		if got := p.walk("viewer", fmt.Sprint("/v1/silences?limit=", limit), nil); fmt.Sprint(got) != fmt.Sprint(all) {
			t.Errorf("by %d: %v, want %v", limit, got, all)
		}
	}
}
