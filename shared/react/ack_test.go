package react

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// An acknowledgement without a note leaves the one that there is; those before are
// in the history, as many as are kept; what is resolved is not taken on.
func TestAcknowledgements(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: hot\non: [x.bad]\nresolve_when: {on: [x.good]}\n")
	b.tell("x.bad", "n1")
	b.follow()
	list := func() alert.Alert {
		t.Helper()
		got, _, err := b.service.Alerts(t.Context(), Filter{}, "", 10)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		return got[0].Alert
	}
	a := list()
	ack := func(who string, note *string) alert.Alert {
		t.Helper()
		b.advance(time.Second)
		c := call
		c.Caller.Actor.ID = who
		got, err := b.service.Acknowledge(t.Context(), c, a.ID, note)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, none := "rolled back", ""
	ack("ada", &first)
	if got := ack("bob", nil); got.Acked.Note != first || got.Acked.By.ID != "bob" {
		t.Errorf("without a note: %+v", got.Acked)
	}
	if got := ack("cyd", &none); got.Acked.Note != "" {
		t.Errorf("with an empty one: %+v", got.Acked)
	}
	b.advance(time.Second)
	b.tell("x.good", "n1")
	b.follow()
	var lines []string
	for _, h := range list().History {
		who := ""
		if h.By != nil {
			who = h.By.ID
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", h.At.Sub(t0), h.State, h.Reason, who, h.Note))
	}
	want := []string{"0s firing condition_holds  ", "1s firing acknowledged ada rolled back", "2s firing acknowledged bob rolled back", "3s firing acknowledged cyd ",
		"4s resolved condition_ended  "}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("history (-want +got):\n%s", d)
	}
	if _, err := b.service.Acknowledge(t.Context(), call, a.ID, nil); code(err) != "alert_resolved" {
		t.Errorf("of one that is resolved: %v", err)
	}
	if _, err := b.service.Acknowledge(t.Context(), call, "alr_x", nil); code(err) != "not_found" {
		t.Errorf("of none: %v", err)
	}
	// Several hands at once: each is kept, up to the limit.
	b.tell("x.bad", "n1")
	b.follow()
	got, _, err := b.service.Alerts(t.Context(), Filter{States: []alert.State{alert.Firing}}, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	a = got[0].Alert
	const hands = 5
	var wg sync.WaitGroup
	for hand := range hands {
		wg.Go(func() {
			for i := range keptAcks/hands + 1 {
				c := call
				c.Caller.Actor.ID = fmt.Sprint("p", hand, "-", i)
				if _, err := b.service.Acknowledge(t.Context(), c, a.ID, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if a, err = b.service.Alert(t.Context(), a.ID); err != nil || len(a.History) != 1+keptAcks+1 {
		t.Errorf("%d lines, %v", len(a.History), err)
	}
}

// An acknowledgement is in the history with the state in which the alert was then.
func TestAcknowledgedWhilePendingAndFiring(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: hot\non: [x.bad]\nfor: 5m\nresolve_after: 1h\n")
	b.tell("x.bad", "n1")
	b.follow()
	got, _, err := b.service.Alerts(t.Context(), Filter{}, "", 1)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	var a alert.Alert
	for _, wait := range []time.Duration{time.Minute, time.Minute, 4 * time.Minute, time.Minute} {
		b.advance(wait)
		b.follow()
		if a, err = b.service.Acknowledge(t.Context(), call, got[0].Alert.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for _, h := range a.History {
		lines = append(lines, fmt.Sprintf("%s %s %s", h.At.Sub(t0), h.State, h.Reason))
	}
	want := []string{"0s pending condition_holds", "1m0s pending acknowledged", "2m0s pending acknowledged",
		"5m0s firing condition_holds", "6m0s firing acknowledged", "7m0s firing acknowledged"}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("history (-want +got):\n%s", d)
	}
}
