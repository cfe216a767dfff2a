package sweep

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// EnsureQueues makes the queues that the clusters should have: one was deleted
// by hand, or all are gone with their engine's file. A cluster that is being
// deleted has given its own up. One whose queue cannot be made leaves the others
// alone.
//
// A cluster that is deleted while this runs does not get its queue back where
// others run beside it: SQS makes none of the same name within 60 s (Amazon SQS
// API Reference, CreateQueue), and on AWS no pass takes as long.
func (s *Sweep) EnsureQueues(ctx context.Context) error {
	clusters, err := s.Store.Clusters(ctx)
	if err != nil {
		return fmt.Errorf("list clusters: %w", err)
	}
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs error
	)
	slots := make(chan struct{}, parallel)
	for _, c := range clusters {
		if c.Deleting {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.Queue.Ensure(ctx, c.Queue); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = errors.Join(errs, fmt.Errorf("make queue of cluster %s: %w", c.Name, err))
			}
		})
	}
	wg.Wait()
	return errs
}
