package dynamo

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Get implements ledger.Reader with a strongly consistent read.
func (db *DB) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	it, ok, err := db.get(ctx, k)
	if err == nil && !ok {
		err = ledger.ErrNotFound
	}
	if err != nil {
		return ledger.Item{}, fmt.Errorf("get %s: %w", k, err)
	}
	return it, nil
}

func (db *DB) get(ctx context.Context, k ledger.Key) (it ledger.Item, ok bool, err error) {
	if err := ctx.Err(); err != nil || !possible(k) {
		return it, false, err
	}
	call, end := db.bounded(ctx)
	defer end()
	out, err := db.client.GetItem(call, &dynamodb.GetItemInput{TableName: &db.table, Key: keyAttributes(k), ConsistentRead: aws.Bool(true)})
	if err != nil {
		return it, false, readFailure(ctx, err)
	}
	if len(out.Item) == 0 || expired(out.Item, db.now().Unix()) {
		return it, false, nil
	}
	it, err = decodeItem(out.Item)
	return it, err == nil, err
}

// GetMany implements ledger.Reader with strongly consistent reads. Each item is
// read by itself: unlike a transaction they need not be of one moment.
func (db *DB) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if len(ks) > ledger.MaxWrites {
		return nil, fmt.Errorf("%w: get of %d items, the limit is %d", ledger.ErrInvalid, len(ks), ledger.MaxWrites)
	}
	found, err := db.getMany(ctx, ks, nil)
	if err != nil {
		return nil, fmt.Errorf("get %d items: %w", len(ks), err)
	}
	return found, nil
}

// maxUnprocessed bounds how often the rest of a batch is asked for again
// without any of it having come.
const maxUnprocessed = 8

// getMany reads up to 100 items, which is also BatchGetItem's limit; what it
// leaves over, past 16 MB or throttled, is asked for again. An item that cannot be
// read is told to unreadable and left out; when that is nil, it fails all.
func (db *DB) getMany(ctx context.Context, ks []ledger.Key, unreadable func(error)) (map[ledger.Key]ledger.Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen := make(map[ledger.Key]bool, len(ks))
	keys := make([]attributes, 0, len(ks))
	for _, k := range ks {
		if !seen[k] && possible(k) {
			seen[k] = true
			keys = append(keys, keyAttributes(k))
		}
	}
	found := make(map[ledger.Key]ledger.Item, len(keys))
	idle := 0
	for len(keys) > 0 {
		call, end := db.bounded(ctx)
		out, err := db.client.BatchGetItem(call, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
			db.table: {Keys: keys, ConsistentRead: aws.Bool(true)},
		}})
		end()
		if err != nil {
			return nil, readFailure(ctx, err)
		}
		items := out.Responses[db.table]
		now := db.now().Unix()
		for _, a := range items {
			if expired(a, now) {
				continue
			}
			it, err := decodeItem(a)
			switch {
			case err == nil:
				found[it.Key] = it
			case unreadable == nil:
				return nil, err
			default:
				unreadable(err)
			}
		}
		left := out.UnprocessedKeys[db.table].Keys
		if len(left) == 0 {
			break
		}
		keys, idle = left, idle+1
		if len(items) > 0 {
			idle = 0
		}
		if idle > maxUnprocessed {
			return nil, fmt.Errorf("%w: %d keys stay unprocessed", ledger.ErrUnavailable, len(left))
		}
		if err := db.pause.wait(ctx, idle); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// bounded is the context of one reading call, with the SDK's retries: no answer
// must not mean for ever.
func (db *DB) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, db.pause.budget)
}

// possible tells whether an item can have the key. DynamoDB refuses to look for
// one that cannot.
func possible(k ledger.Key) bool {
	return k.PK != "" && k.SK != "" && len(k.PK) <= ledger.MaxKeyBytes && len(k.SK) <= ledger.MaxKeyBytes &&
		utf8.ValidString(k.PK) && utf8.ValidString(k.SK)
}
