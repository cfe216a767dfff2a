package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"github.com/opsplane/opsplane/shared/ledger"
)

// FeedOptions say which table's stream to read. The first three are required.
type FeedOptions struct {
	Client  *dynamodb.Client
	Streams *dynamodbstreams.Client
	Table   string
	// Poll is how long a reader that found nothing waits before it looks again;
	// 500 ms when 0. A shard may be read 5 times a second by all its readers
	// together (AWS: "Service, account, and table quotas in Amazon DynamoDB").
	Poll time.Duration
	// Now is the clock by which positions age; time.Now when nil.
	Now func() time.Time
}

// Feed reads the table's stream by itself: for tests and tools. The relay
// function is given the records by Lambda instead, and reads them with
// DecodeChange.
type Feed struct{ o FeedOptions }

var _ ledger.Feed = (*Feed)(nil)

// NewFeed returns a feed; it makes no call. The error matches ledger.ErrInvalid.
func NewFeed(o FeedOptions) (*Feed, error) {
	if o.Client == nil || o.Streams == nil || o.Table == "" {
		return nil, fmt.Errorf("%w: two clients and a table are required", ledger.ErrInvalid)
	}
	return &Feed{o}, nil
}

// Changes implements ledger.Feed.
func (f *Feed) Changes(ctx context.Context, after string, limit int, wait time.Duration) ([]ledger.Change, string, error) {
	return nil, "", fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}
