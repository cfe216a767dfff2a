package cluster

import (
	"fmt"
	"testing"
	"time"
)

// A webhook is remembered as long as it is waited for, and not for who comes much later.
func TestHooksAreForgotten(t *testing.T) {
	t.Parallel()
	var h hooks
	begun := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for i := range 10 { // tried again each minute
		at := begun.Add(time.Duration(i) * time.Minute)
		h.keep("deployment/ns/web", &Uncalled{Webhook: "x", Since: at}, at)
		if u := h.last("deployment/ns/web", at); u == nil || !u.Since.Equal(begun) {
			t.Fatalf("after %d minutes: %+v", i, u)
		}
	}
	later := begun.Add(9*time.Minute + hookKept + time.Second)
	if u := h.last("deployment/ns/web", later); u != nil {
		t.Errorf("much later: %+v", u)
	}
	h.keep("deployment/ns/web", &Uncalled{Webhook: "x", Since: later}, later)
	if u := h.last("deployment/ns/web", later); u == nil || !u.Since.Equal(later) {
		t.Errorf("the same webhook, much later: %+v", u)
	}
}

// Where there are too many, the one is forgotten that was waited for longest ago, and no other.
func TestHooksThatAreTooMany(t *testing.T) {
	t.Parallel()
	var h hooks
	begun := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	name := func(i int) string { return fmt.Sprint("deployment/ns/", i) }
	for i := range maxHooks + 1 {
		at := begun.Add(time.Duration(i) * time.Millisecond)
		h.keep(name(i), &Uncalled{Webhook: "x", Since: at}, at)
	}
	now := begun.Add(time.Second)
	h.keep(name(maxHooks), &Uncalled{Webhook: "x", Since: now}, now) // known: nothing goes for it
	for i := range maxHooks + 1 {
		if known := h.last(name(i), now) != nil; known != (i > 0) {
			t.Errorf("%d is known: %t", i, known)
		}
	}
}
