package react

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

const notReady = `
name: not-ready
on: [node.not_ready]
group_by: {g: event.subject.name}
for: 1m
resolve_when: {on: [node.ready]}
`

// An alert goes its way: pending, firing, told in the stream and in the list, and
// resolved; what changes between is in the list at once.
func TestAlertGoesItsWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule(notReady)
	ctx := t.Context()
	b.tell("node.not_ready", "n1")
	b.follow()
	b.advance(30 * time.Second)
	b.tell("node.not_ready", "n1")
	b.follow()
	list := func(f Filter) alert.Alert {
		t.Helper()
		got, next, err := b.service.Alerts(ctx, f, "", 10)
		if err != nil || len(got) != 1 || next != "" {
			t.Fatalf("list %+v: %d alerts, next %q, %v", f, len(got), next, err)
		}
		return got[0].Alert
	}
	a := list(Filter{States: []alert.State{alert.Pending}, Streams: []string{stream}})
	if a.Count != 2 || len(a.Evidence) != 2 || !a.Last.Equal(t0.Add(30*time.Second)) || a.FiredAt != nil {
		t.Errorf("pending: %+v", a)
	}
	b.advance(30 * time.Second)
	b.follow()
	a = list(Filter{States: []alert.State{alert.Firing}, Rule: "not-ready", Severities: []string{"warning"}})
	if a.FiredAt == nil || !a.FiredAt.Equal(t0.Add(time.Minute)) || a.Subject.Name != "n1" {
		t.Errorf("firing: %+v", a)
	}
	if _, err := b.service.Acknowledge(ctx, call, a.ID, new("on it")); err != nil {
		t.Fatal(err)
	}
	b.advance(time.Minute)
	b.tell("node.ready", "n1")
	b.follow()
	a = list(Filter{States: []alert.State{alert.Resolved}})
	if a.Acked == nil || a.Acked.Note != "on it" || a.ResolvedAt == nil || a.Count != 2 || len(a.History) != 4 {
		t.Errorf("resolved: %+v", a)
	}
	if got, err := b.service.Alert(ctx, a.ID); err != nil || !cmp.Equal(got, a) {
		t.Errorf("by id: %v, %s", err, cmp.Diff(a, got))
	}
	want := []string{
		"0s pending not-ready" + "map[g:n1] condition_holds", "1m0s firing not-ready" + "map[g:n1] condition_holds",
		"1m0s acknowledged not-ready" + "map[g:n1] ", "2m0s resolved not-ready" + "map[g:n1] condition_ended",
	}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
