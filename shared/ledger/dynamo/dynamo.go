// Package dynamo is the ledger's engine on AWS: one DynamoDB table with its
// secondary indexes, and its stream as the change feed.
//
// A commit goes: Commit (commit.go) -> one UpdateItem, or one
// TransactWriteItems (write.go) -> what the answer means (outcome.go). A query
// of an index reads keys from the index (hint.go) and then the items
// themselves. infra/docs/ledger.md has the keys, the access patterns and the
// limits.
package dynamo

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/ledger"
)

// DefaultShards is over how many parts a busy index partition is spread, and
// the due index. A partition of DynamoDB takes 1,000 write units a second (AWS:
// "Best practices for designing and using partition keys effectively").
const DefaultShards = 8

// maxShards bounds a query's fan-out.
const maxShards = 64

// Options say which table to use and how. Client and Table are required.
type Options struct {
	Client *dynamodb.Client
	Table  string
	// Now is the clock of expiry; time.Now when nil.
	Now func() time.Time
	// Logger gets what no caller can be told; slog.Default when nil.
	Logger *slog.Logger
	// Sharded names the index partitions that every operation writes to
	// (record.BusyPartitions): the engine spreads them over Shards parts and
	// reads all parts when one is queried.
	Sharded []string
	// Shards is over how many parts those are spread, 1 to 64; DefaultShards
	// when 0. It may be raised on a table in use, never lowered: parts over the
	// number are not read.
	Shards int
}

// DB is a ledger.Ledger over one table, safe for concurrent use. It holds
// nothing that must be closed.
type DB struct {
	client  *dynamodb.Client
	table   string
	now     func() time.Time
	log     *slog.Logger
	sharded map[string]bool
	shards  int
	pause   pauses
	counts  counters
}

var _ ledger.Ledger = (*DB)(nil)

// New returns the engine; it makes no call. The error matches
// ledger.ErrInvalid.
func New(o Options) (*DB, error) {
	if o.Client == nil || o.Table == "" {
		return nil, fmt.Errorf("%w: a DynamoDB client and a table are required", ledger.ErrInvalid)
	}
	if o.Shards == 0 {
		o.Shards = DefaultShards
	}
	if o.Shards < 1 || o.Shards > maxShards {
		return nil, fmt.Errorf("%w: %d shards: it is 1 to %d", ledger.ErrInvalid, o.Shards, maxShards)
	}
	if slices.Contains(o.Sharded, "") {
		return nil, fmt.Errorf("%w: a sharded partition without a name", ledger.ErrInvalid)
	}
	db := &DB{client: o.Client, table: o.Table, now: o.Now, log: o.Logger, shards: o.Shards, sharded: map[string]bool{}, pause: defaultPauses}
	for _, pk := range o.Sharded {
		db.sharded[pk] = true
	}
	if db.now == nil {
		db.now = time.Now
	}
	if db.log == nil {
		db.log = slog.Default()
	}
	return db, nil
}

// errGarbled: an item of the table is not one that this engine wrote.
var errGarbled = errors.New("item cannot be read")
