package loop

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestAtLeast(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		err  error
		want time.Duration
	}{
		{"no error", nil, 2},
		{"no status", errors.New("connection refused"), 2},
		{"not asked for", &StatusError{Status: 503}, 2},
		{"shorter", &StatusError{Status: 503, After: 1}, 2},
		{"longer", fmt.Errorf("call: %w", &StatusError{Status: 429, After: 5}), 5},
		{"too long", &StatusError{Status: 429, After: 50}, 10},
	} {
		if got := atLeast(2, tc.err, 10); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// A plane that is loaded says when to come back, and is left alone until then.
func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		after string
		least time.Duration
	}{{"20", 20 * time.Second}, {"600", retryAfterMost}, {"", 0}, {"-5", 0}, {"soon", 0}} {
		t.Run(tc.after, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.plane.spoil(rule{path: "/v1/agent/heartbeat", times: 1, status: 503, after: tc.after})
				start := time.Now()
				b.start()
				b.plane.wait(t, time.Minute, "a heartbeat", func() bool { return len(b.plane.beats) > 0 })
				if took := time.Since(start); took < tc.least || took > tc.least+2*time.Second {
					t.Errorf("%s until the next heartbeat", took)
				}
			})
		})
	}
}
