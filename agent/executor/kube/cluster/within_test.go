package cluster

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// TestRepeatableWithinOutlastsTheFence: a call that may take long goes on past the lease
// as it was when it began, and ends with that as it is renewed, or with its limit.
func TestRepeatableWithinOutlastsTheFence(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes, lease, limit time.Duration
		category            string
	}{
		"it is answered":     {300 * time.Millisecond, time.Minute, time.Minute, OK},
		"its limit is over":  {time.Minute, time.Minute, 300 * time.Millisecond, Timeout},
		"the lease has gone": {time.Minute, 300 * time.Millisecond, time.Minute, Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			c.callTimeout = 50 * time.Millisecond
			s.answer = func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(tt.takes):
					w.WriteHeader(http.StatusCreated)
				case <-r.Context().Done():
				}
			}
			tk := task(&record{})
			tk.Fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
				ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				return ctx, cancel, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), tt.lease)
			defer cancel()
			if r, o := c.RepeatableWithin(ctx, tk, tt.limit, "evict", "pod/uid", "web/web-0", evict(c)); o != nil || r.Category != tt.category {
				t.Errorf("%+v, %+v", r, o)
			}
		})
	}
}
