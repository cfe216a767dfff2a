package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// batches calls f for the items of one stage, up to a commit's worth at a time
// and several at once; it ends at the first error.
func (i *importer) batches(ctx context.Context, part string, at stage, f func(context.Context, []ledger.Item) (done, found, expired int64, err error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count int64
		batch []ledger.Item
		size  int
	)
	slots := make(chan struct{}, i.t.Parallel)
	flush := func() {
		items := batch
		batch, size = nil, 0
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			put, found, expired, err := f(ctx, items)
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			count += int64(len(items))
			n := count
			i.result.Put, i.result.Found, i.result.Expired = i.result.Put+put, i.result.Found+found, i.result.Expired+expired
			mu.Unlock()
			if i.t.Progress != nil {
				i.t.Progress(part, n, i.s.stages[at])
			}
		})
	}
	err := i.s.each(func(_ *reader, it *ledger.Item, st stage) error {
		if st != at {
			return nil
		}
		if len(batch) == ledger.MaxWrites || size+len(it.Data) > ledger.MaxCommitBytes {
			flush()
		}
		batch, size = append(batch, *it), size+len(it.Data)
		return context.Cause(ctx)
	})
	if err == nil && len(batch) > 0 {
		flush()
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// load puts items that must not be there. Those that an earlier run put are the
// same, or the target is not this import's.
func (i *importer) load(ctx context.Context, items []ledger.Item) (put, found, expired int64, err error) {
	return i.put(ctx, items, false, func(want, have ledger.Item) error {
		if !same(want, have) {
			return fmt.Errorf("%w: %s", ErrDiffers, want.Key)
		}
		return nil
	})
}

// release puts items by which others act; feed tells the change feed of them. One
// that an earlier run put may have moved on.
func (i *importer) release(ctx context.Context, items []ledger.Item, feed bool) (put, found, expired int64, err error) {
	put, found, expired, err = i.put(ctx, items, feed, func(_, _ ledger.Item) error { return nil })
	if err != nil {
		return put, found, expired, err
	}
	have, err := i.read(ctx, items)
	if err != nil {
		return put, found, expired, err
	}
	for _, want := range items {
		it, ok := have[want.Key]
		switch {
		case !ok && !i.expired(want), ok && it.Version == 1 && !same(want, it):
			return put, found, expired, fmt.Errorf("%w: %s", ErrDiffers, want.Key)
		}
	}
	return put, found, expired, nil
}

// put commits those of the items that are not there; check judges the others.
func (i *importer) put(ctx context.Context, items []ledger.Item, feed bool, check func(want, have ledger.Item) error) (put, found, expired int64, err error) {
	for len(items) > 0 {
		writes := make([]ledger.Write, 0, len(items))
		for _, it := range items {
			if i.expired(it) {
				expired++
				continue
			}
			writes = append(writes, ledger.Write{Item: it, Feed: feed})
		}
		if len(writes) == 0 {
			break
		}
		err := patiently(ctx, func() error { return i.t.Ledger.Commit(ctx, writes...) })
		if err == nil {
			put += int64(len(writes))
			break
		}
		if !errors.Is(err, ledger.ErrConflict) {
			return put, found, expired, fmt.Errorf("write %s and %d more: %w", writes[0].Item.Key, len(writes)-1, err)
		}
		// Some are there: an earlier run's, or this one's whose answer was lost.
		have, err := i.read(ctx, items)
		if err != nil {
			return put, found, expired, err
		}
		expired = 0
		var missing []ledger.Item
		for _, want := range items {
			it, ok := have[want.Key]
			if !ok {
				missing = append(missing, want)
				continue
			}
			if err := check(want, it); err != nil {
				return put, found, expired, err
			}
			found++
		}
		items = missing
	}
	return put, found, expired, nil
}

// compare reads items back.
func (i *importer) compare(ctx context.Context, items []ledger.Item) (put, found, expired int64, err error) {
	have, err := i.read(ctx, items)
	if err != nil {
		return 0, 0, 0, err
	}
	for _, want := range items {
		it, ok := have[want.Key]
		switch {
		case !ok && i.expired(want):
		case !ok:
			return 0, 0, 0, fmt.Errorf("%w: %s is not there", ErrDiffers, want.Key)
		case !same(want, it):
			return 0, 0, 0, fmt.Errorf("%w: %s", ErrDiffers, want.Key)
		}
	}
	return 0, 0, 0, nil
}

func (i *importer) read(ctx context.Context, items []ledger.Item) (have map[ledger.Key]ledger.Item, err error) {
	keys := make([]ledger.Key, len(items))
	for n, it := range items {
		keys[n] = it.Key
	}
	err = patiently(ctx, func() (err error) {
		have, err = i.t.Ledger.GetMany(ctx, keys)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s and %d more: %w", keys[0], len(keys)-1, err)
	}
	return have, nil
}

func (i *importer) expired(it ledger.Item) bool {
	return !it.Expires.IsZero() && !it.Expires.After(i.t.Now())
}

// same compares what was written with what was read back, but for the version.
func same(a, b ledger.Item) bool {
	return a.Key == b.Key && bytes.Equal(a.Data, b.Data) && a.Due.Equal(b.Due) && a.Expires.Equal(b.Expires) && maps.Equal(a.Index, b.Index)
}

// Bounds of the patience with an engine that cannot take a call now: a table on
// demand doubles what it takes within minutes (Amazon DynamoDB Developer Guide,
// "On-demand capacity mode": initial throughput and scaling).
const (
	maxPatience = 10 * time.Minute
	firstPause  = 100 * time.Millisecond
	maxPause    = 10 * time.Second
)

// patiently tries again while the engine is unavailable, with back-off and
// jitter.
func patiently(ctx context.Context, f func() error) error {
	pause, waited := firstPause, time.Duration(0)
	for {
		err := f()
		if err == nil || !errors.Is(err, ledger.ErrUnavailable) || waited > maxPatience {
			return err
		}
		d := pause/2 + rand.N(pause)
		waited, pause = waited+d, min(2*pause, maxPause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d):
		}
	}
}
