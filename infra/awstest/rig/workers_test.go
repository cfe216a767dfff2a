package rig

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
)

// TestFeedReact: what the feed has read is judged by function react's handler, each
// stream of a batch once; a batch of which a stream could not be judged comes again.
func TestFeedReact(t *testing.T) {
	t.Parallel()
	var judged []string
	var fails error
	h := &worker.React{Store: &record.Store{Now: time.Now}, Logger: slog.New(slog.DiscardHandler), Follow: func(_ context.Context, stream string) error {
		judged = append(judged, stream)
		return fails
	}}
	of := func(streams ...string) (out []ledger.Change) {
		for _, s := range streams {
			out = append(out, ledger.Change{Key: record.StreamHeadKey(s), Version: 1})
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		changes []ledger.Change
		fails   error
		want    []string
	}{
		{"nothing", nil, nil, nil},
		{"a stream", of("clu_a", "clu_a"), nil, []string{"clu_a"}},
		{"another batch", of("clu_b"), nil, []string{"clu_b"}},
		{"it cannot be judged now", of("clu_a"), ledger.ErrUnavailable, []string{"clu_a"}},
	} {
		judged, fails = nil, tt.fails
		if err := feedReact(t.Context(), h, tt.changes); (err != nil) != (tt.fails != nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, judged); d != "" {
			t.Errorf("%s: judged (-want +got):\n%s", tt.name, d)
		}
	}
}
