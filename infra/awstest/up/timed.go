package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

// timed says how long a part took.
func timed(r *rig.Rig, what string, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		began := time.Now()
		if err := do(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		r.Say("%s: ready after %s", what, time.Since(began).Round(100*time.Millisecond))
		return nil
	}
}

// together runs the parts at once; the first that fails ends the others.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err) // the first counts: what it ended is no news
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
