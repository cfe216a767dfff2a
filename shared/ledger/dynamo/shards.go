package dynamo

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// maxEmpty is how many empty answers in a row end the reading of an open shard
// for this round: a shard may answer nothing although more comes.
const maxEmpty = 3

// streamReader reads a stream's shards during one call. An item's records are
// in one shard or in its children, so parents are read to their end first
// (AWS: "Change data capture for DynamoDB Streams", "Reading and processing a
// stream").
type streamReader struct {
	client    *dynamodbstreams.Client
	arn       string
	iterators map[string]string // where to read on in a shard
}

// round reads up to limit records of all shards that may be read.
func (r *streamReader) round(ctx context.Context, p *position, limit int) ([]ledger.Change, error) {
	shards, err := r.shards(ctx)
	if err != nil {
		return nil, err
	}
	listed := make(map[string]bool, len(shards))
	for _, s := range shards {
		listed[*s.ShardId] = true
	}
	for id, at := range p.Shards {
		if listed[id] {
			continue
		}
		if at != endOfShard { // it went before it was read
			return nil, ledger.ErrPositionExpired
		}
		delete(p.Shards, id)
	}
	var found []ledger.Change
	for again := true; again; {
		again = false
		for _, s := range shards {
			id, parent := *s.ShardId, aws.ToString(s.ParentShardId)
			if p.Shards[id] == endOfShard || listed[parent] && p.Shards[parent] != endOfShard {
				continue
			}
			if found, err = r.read(ctx, p, id, found, limit); err != nil {
				return nil, err
			}
			if len(found) >= limit {
				return found, nil
			}
			again = again || p.Shards[id] == endOfShard // its children may be read now
		}
	}
	return found, nil
}

func (r *streamReader) shards(ctx context.Context) ([]streamtypes.Shard, error) {
	in := &dynamodbstreams.DescribeStreamInput{StreamArn: &r.arn}
	var shards []streamtypes.Shard
	for {
		out, err := r.client.DescribeStream(ctx, in)
		if err != nil {
			return nil, err
		}
		if out.StreamDescription == nil {
			return nil, fmt.Errorf("%w: stream %s has no description", ledger.ErrUnavailable, r.arn)
		}
		for _, s := range out.StreamDescription.Shards {
			if s.ShardId != nil {
				shards = append(shards, s)
			}
		}
		if out.StreamDescription.LastEvaluatedShardId == nil {
			return shards, nil
		}
		in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId
	}
}

// read appends a shard's records to found, until nothing comes or there are
// limit.
func (r *streamReader) read(ctx context.Context, p *position, shard string, found []ledger.Change, limit int) ([]ledger.Change, error) {
	p.Shards[shard] += "" // a shard that was seen must not vanish unread
	for empty := 0; empty < maxEmpty && len(found) < limit; {
		it, err := r.iterator(ctx, p, shard)
		if err != nil {
			return nil, err
		}
		out, err := r.client.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: &it, Limit: aws.Int32(int32(limit - len(found)))})
		var old *streamtypes.ExpiredIteratorException
		if errors.As(err, &old) {
			delete(r.iterators, shard)
			empty++
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, rec := range out.Records {
			c, fed, err := decodeRecord(rec)
			if err != nil {
				return nil, err
			}
			if fed {
				found = append(found, c)
			}
			p.Shards[shard] = *rec.Dynamodb.SequenceNumber
		}
		if out.NextShardIterator == nil {
			p.Shards[shard] = endOfShard
			return found, nil
		}
		r.iterators[shard] = *out.NextShardIterator
		if empty++; len(out.Records) > 0 {
			empty = 0
		}
	}
	return found, nil
}

// iterator returns where to read on in a shard.
func (r *streamReader) iterator(ctx context.Context, p *position, shard string) (string, error) {
	if it, ok := r.iterators[shard]; ok {
		return it, nil
	}
	in := &dynamodbstreams.GetShardIteratorInput{StreamArn: &r.arn, ShardId: &shard, ShardIteratorType: streamtypes.ShardIteratorTypeTrimHorizon}
	if at := p.Shards[shard]; at != "" {
		in.ShardIteratorType, in.SequenceNumber = streamtypes.ShardIteratorTypeAfterSequenceNumber, &at
	}
	out, err := r.client.GetShardIterator(ctx, in)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ShardIterator), nil
}

// decodeRecord reads a record, and whether its write asked for the feed; of a
// delete nobody can tell.
func decodeRecord(rec streamtypes.Record) (c ledger.Change, fed bool, err error) {
	fail := func(detail string) (ledger.Change, bool, error) {
		e := &RecordError{EventID: aws.ToString(rec.EventID), Detail: detail}
		if rec.Dynamodb != nil {
			e.Sequence = aws.ToString(rec.Dynamodb.SequenceNumber)
		}
		return c, false, e
	}
	if rec.Dynamodb == nil || rec.Dynamodb.SequenceNumber == nil {
		return fail("no sequence number")
	}
	if c.PK = streamString(rec.Dynamodb.Keys[attrPK]); c.PK == "" {
		return fail("no key " + attrPK)
	}
	if c.SK = streamString(rec.Dynamodb.Keys[attrSK]); c.SK == "" {
		return fail("no key " + attrSK)
	}
	if rec.EventName == streamtypes.OperationTypeRemove {
		c.Deleted = true
		return c, true, nil
	}
	v, ok := rec.Dynamodb.NewImage[attrVersion].(*streamtypes.AttributeValueMemberN)
	if !ok {
		return fail("no version in the image")
	}
	if c.Version, err = parseVersion(v.Value); err != nil {
		return fail(err.Error())
	}
	_, fed = rec.Dynamodb.NewImage[attrFeed]
	return c, fed, nil
}

func streamString(v streamtypes.AttributeValue) string {
	s, ok := v.(*streamtypes.AttributeValueMemberS)
	if !ok {
		return ""
	}
	return s.Value
}
