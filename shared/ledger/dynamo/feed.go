package dynamo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// FeedOptions say which table's stream to read. The first three are required.
type FeedOptions struct {
	Client  *dynamodb.Client
	Streams *dynamodbstreams.Client
	Table   string
	// Poll is how long a reader that found nothing waits before it looks again;
	// 500 ms when 0. A shard may be read 5 times a second by all its readers
	// together (AWS: "Quotas in Amazon DynamoDB").
	Poll time.Duration
	// Now is the clock by which positions age; time.Now when nil.
	Now func() time.Time
}

// defaultPoll is two reads of a shard a second.
const defaultPoll = 500 * time.Millisecond

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
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Feed{o}, nil
}

// Changes implements ledger.Feed. A limit of 0 means MaxPage. Records of writes
// that did not ask for the feed are left out, but for deletes, which the stream
// does not tell apart. A position is good for the 24 hours for which a stream
// keeps its records; a record that cannot be read is a *RecordError.
func (f *Feed) Changes(ctx context.Context, after string, limit int, wait time.Duration) ([]ledger.Change, string, error) {
	if limit < 0 || limit > ledger.MaxPage {
		return nil, "", fmt.Errorf("%w: feed limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	p := &position{}
	if after != "" {
		var err error
		if p, err = decodePosition(after); err != nil {
			return nil, "", err
		}
	}
	found, err := f.changes(ctx, p, limit, wait)
	if err != nil {
		return nil, "", fmt.Errorf("read changes: %w", streamFailure(ctx, err))
	}
	next, err := p.encode()
	return found, next, err
}

// changes reads behind p, which moves on, until there is something or the wait
// is over.
func (f *Feed) changes(ctx context.Context, p *position, limit int, wait time.Duration) ([]ledger.Change, error) {
	arn, err := f.begin(ctx, p)
	if err != nil {
		return nil, err
	}
	r := &streamReader{client: f.o.Streams, arn: arn, iterators: map[string]string{}}
	until := time.Now().Add(wait)
	for {
		found, err := r.round(ctx, p, limit)
		if err != nil {
			return nil, err
		}
		p.At = f.o.Now().UnixMilli()
		left := time.Until(until)
		if len(found) > 0 || left <= 0 {
			return found, nil
		}
		t := time.NewTimer(min(left, f.o.Poll))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// begin finds the table's stream and makes sure that p is a place in it.
func (f *Feed) begin(ctx context.Context, p *position) (arn string, err error) {
	out, err := f.o.Client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &f.o.Table})
	if err != nil {
		return "", err
	}
	if out.Table == nil || out.Table.LatestStreamArn == nil || out.Table.LatestStreamLabel == nil {
		return "", fmt.Errorf("%w: table %s has no stream", ledger.ErrInvalid, f.o.Table)
	}
	label := *out.Table.LatestStreamLabel
	switch {
	case p.Stream == "":
		p.Stream, p.Shards = label, map[string]string{}
	case p.Stream != label, f.o.Now().Sub(time.UnixMilli(p.At)) >= streamKept:
		return "", ledger.ErrPositionExpired
	}
	return *out.Table.LatestStreamArn, nil
}

// streamFailure is what a caller sees of a failed read of the stream.
func streamFailure(ctx context.Context, err error) error {
	var trimmed *streamtypes.TrimmedDataAccessException
	var record *RecordError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &trimmed):
		return fmt.Errorf("%w: %w", ledger.ErrPositionExpired, err)
	case errors.Is(err, ledger.ErrPositionExpired), errors.Is(err, ledger.ErrInvalid), errors.As(err, &record):
		return err
	}
	return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
}
