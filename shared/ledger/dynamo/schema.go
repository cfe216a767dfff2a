package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Attributes of an item. Their names are billed with every write, so they are
// short.
const (
	attrPK      = "pk" // partition key
	attrSK      = "sk" // sort key
	attrVersion = "v"  // the item's version, a number
	attrData    = "d"  // its data behind a format byte (data.go)
	attrFeed    = "f"  // 1 when the last write asked for the change feed
	attrExpires = "x"  // Unix seconds from which the item has expired; DynamoDB's TTL attribute
	attrWrite   = "w"  // names the commit that wrote it
	attrBefore  = "b"  // the w before that
	attrEarlier = "c"  // the b before that
)

// indexDue is the secondary index of due items; queries cannot name it.
const indexDue = "due"

// place names the two attributes that put an item into an index.
type place struct{ pk, sk string }

// places has them for each of ledger.Indexes.
var places = map[ledger.Index]place{
	ledger.List:   {"lp", "ls"},
	ledger.Scope:  {"sp", "ss"},
	ledger.Lookup: {"kp", "ks"},
	ledger.Live:   {"vp", "vs"},
}

var placeDue = place{"dp", "ds"}

// Schema is the table that the engine needs. template.yaml declares the same,
// and TTL on the attribute x, which CreateTable cannot.
func Schema(table string) *dynamodb.CreateTableInput {
	in := &dynamodb.CreateTableInput{
		TableName:   &table,
		BillingMode: types.BillingModePayPerRequest,
		KeySchema:   keySchema(place{attrPK, attrSK}),
		StreamSpecification: &types.StreamSpecification{
			StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewImage,
		},
	}
	add := func(p place) {
		for _, name := range []string{p.pk, p.sk} {
			in.AttributeDefinitions = append(in.AttributeDefinitions,
				types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: types.ScalarAttributeTypeS})
		}
	}
	add(place{attrPK, attrSK})
	index := func(name string, p place) {
		add(p)
		in.GlobalSecondaryIndexes = append(in.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName: &name, KeySchema: keySchema(p), Projection: &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly},
		})
	}
	for _, x := range ledger.Indexes {
		index(string(x), places[x])
	}
	index(indexDue, placeDue)
	return in
}

// TTLAttribute is the attribute by which DynamoDB deletes expired items.
const TTLAttribute = attrExpires

func keySchema(p place) []types.KeySchemaElement {
	return []types.KeySchemaElement{
		{AttributeName: aws.String(p.pk), KeyType: types.KeyTypeHash},
		{AttributeName: aws.String(p.sk), KeyType: types.KeyTypeRange},
	}
}

// createWait bounds how long Create waits for the table.
const createWait = 5 * time.Minute

// Create makes the table with its TTL and waits until it can be used. On AWS
// the template makes it; this is for tests and tools. A table of that name is
// an error that matches *types.ResourceInUseException.
func Create(ctx context.Context, client *dynamodb.Client, table string) error {
	if _, err := client.CreateTable(ctx, Schema(table)); err != nil {
		return fmt.Errorf("create table %s: %w", table, err)
	}
	in := &dynamodb.DescribeTableInput{TableName: &table}
	quick := func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 50*time.Millisecond, 5*time.Second
	}
	if err := dynamodb.NewTableExistsWaiter(client).Wait(ctx, in, createWait, quick); err != nil {
		return fmt.Errorf("wait for table %s: %w", table, err)
	}
	_, err := client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &table, TimeToLiveSpecification: &types.TimeToLiveSpecification{
		AttributeName: aws.String(TTLAttribute), Enabled: aws.Bool(true),
	}})
	if err != nil {
		return fmt.Errorf("set the TTL of table %s: %w", table, err)
	}
	return nil
}
