package dynamo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/ledger"
)

// hint is what an index holds of an item: its key, and where it stands. The
// index may be behind, so the item itself decides whether it still stands there.
type hint struct {
	key  ledger.Key
	sort string // the stored sort key
}

// run reads the hints of one stored partition of an index, in order.
type run struct {
	index     string
	place     place
	partition string
	span      span
	reverse   bool
	page      int32 // hints to ask for at once

	ready []hint
	start attributes
	done  bool // nothing comes behind ready
}

// fill makes the next hint ready, unless there is none.
func (r *run) fill(ctx context.Context, db *DB) error {
	if r.span.empty() {
		r.done = true
	}
	cond, values := r.span.condition(r.place, r.partition)
	for len(r.ready) == 0 && !r.done {
		call, end := db.bounded(ctx)
		out, err := db.client.Query(call, &dynamodb.QueryInput{
			TableName: &db.table, IndexName: &r.index, KeyConditionExpression: &cond, ExpressionAttributeValues: values,
			ScanIndexForward: aws.Bool(!r.reverse), Limit: aws.Int32(r.page), ExclusiveStartKey: r.start,
		})
		end()
		if err != nil {
			return readFailure(ctx, err)
		}
		for _, a := range out.Items {
			k, err := keyOf(a)
			if err != nil {
				return err
			}
			sort, ok := stringOf(a, r.place.sk)
			if !ok {
				return fmt.Errorf("%w: index %s: %s has no %s", errGarbled, r.index, k, r.place.sk)
			}
			if r.span.has(sort) {
				r.ready = append(r.ready, hint{k, sort})
			}
		}
		r.start = out.LastEvaluatedKey
		r.done = len(r.start) == 0
	}
	return nil
}

// merge reads several runs as one, in the order of stored sort keys.
type merge struct {
	runs    []*run
	reverse bool
}

// fill makes the next hint of every run ready, all at once.
func (m *merge) fill(ctx context.Context, db *DB) error {
	errs := make([]error, len(m.runs))
	var wg sync.WaitGroup
	for i, r := range m.runs {
		if len(r.ready) == 0 && !r.done {
			wg.Go(func() { errs[i] = r.fill(ctx, db) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// take returns the next hints, at most n, and none at the end.
func (m *merge) take(ctx context.Context, db *DB, n int) ([]hint, error) {
	var out []hint
	for len(out) < n {
		if err := m.fill(ctx, db); err != nil {
			return nil, err
		}
		// Until a run wants filling again.
		for len(out) < n {
			r := m.next()
			if r == nil {
				return out, nil
			}
			out = append(out, r.ready[0])
			r.ready = r.ready[1:]
			if len(r.ready) == 0 && !r.done {
				break
			}
		}
	}
	return out, nil
}

// next is the run whose hint comes next, nil at the end.
func (m *merge) next() *run {
	var first *run
	for _, r := range m.runs {
		if len(r.ready) == 0 {
			continue
		}
		if first == nil || (r.ready[0].sort < first.ready[0].sort) != m.reverse {
			first = r
		}
	}
	return first
}

// ended tells whether every hint was taken.
func (m *merge) ended() bool {
	for _, r := range m.runs {
		if len(r.ready) > 0 || !r.done {
			return false
		}
	}
	return true
}

// pageOf is how many hints a run of several should ask for at once when about n
// are wanted of all: a fair share and a half.
func pageOf(n, runs int) int32 {
	if runs > 1 {
		n = n*3/(2*runs) + 4
	}
	return int32(min(n, ledger.MaxPage))
}

// items reads the items of hints, in their order, and leaves out those for
// which stands is false. unreadable is getMany's.
func (db *DB) items(ctx context.Context, hints []hint, stands func(ledger.Item, hint) bool, unreadable func(error)) ([]ledger.Item, []hint, error) {
	keys := make([]ledger.Key, len(hints))
	for i, h := range hints {
		keys[i] = h.key
	}
	found, err := db.getMany(ctx, keys, unreadable)
	if err != nil {
		return nil, nil, err
	}
	var items []ledger.Item
	var at []hint
	for _, h := range hints {
		if it, ok := found[h.key]; ok && stands(it, h) {
			items, at = append(items, it), append(at, h)
		}
	}
	return items, at, nil
}
