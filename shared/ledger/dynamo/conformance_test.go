//go:build awstest

package dynamo

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger/ledgertest"
)

// rig is a table of a test's own.
type rig struct {
	config  aws.Config
	client  *dynamodb.Client
	streams *dynamodbstreams.Client
	table   string
}

// localConfig is the SDK's configuration for a local AWS.
func localConfig(ctx context.Context) (aws.Config, error) {
	config, err := awsclient.Load(ctx)
	if err == nil && config.BaseEndpoint == nil {
		err = fmt.Errorf("%s is not set: these tests make tables, and want a local AWS", awsclient.EndpointEnv)
	}
	return config, err
}

// newRig makes a table in the engine at AWS_ENDPOINT_URL, and deletes it with
// the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	config, err := localConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{config: config, client: dynamodb.NewFromConfig(config), streams: dynamodbstreams.NewFromConfig(config), table: "ledgertest-" + rand.Text()}
	if err := Create(t.Context(), r.client, r.table); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if _, err := r.client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &r.table}); err != nil {
			t.Errorf("delete table %s: %v", r.table, err)
		}
	})
	return r
}

func (r *rig) open(t *testing.T, o Options) *DB {
	t.Helper()
	o.Table, o.Logger = r.table, slog.New(slog.DiscardHandler)
	if o.Client == nil {
		o.Client = r.client
	}
	db, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func (r *rig) feed(t *testing.T) *Feed {
	t.Helper()
	f, err := NewFeed(FeedOptions{Client: r.client, Streams: r.streams, Table: r.table, Poll: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// restream switches the table's stream off and on: what it held is lost to its
// readers.
func (r *rig) restream(t *testing.T) {
	t.Helper()
	for _, spec := range []*types.StreamSpecification{{StreamEnabled: aws.Bool(false)}, Schema(r.table).StreamSpecification} {
		if _, err := r.client.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{TableName: &r.table, StreamSpecification: spec}); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			out, err := r.client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &r.table})
			if err != nil {
				t.Fatal(err)
			}
			if out.Table.TableStatus == types.TableStatusActive {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the table does not become active")
			}
		}
	}
}

// sharded has the partitions that the suite queries in indexes: it runs on
// plain partitions and on those spread over parts.
var sharded = []string{"l", "s", "x", "one", "two", "both"}

func TestLedger(t *testing.T) {
	for name, o := range map[string]Options{"plain": {}, "sharded": {Sharded: sharded, Shards: 3}} {
		t.Run(name, func(t *testing.T) {
			ledgertest.Run(t, func(t *testing.T, now func() time.Time) ledgertest.Engine {
				r := newRig(t)
				o := o
				o.Now = now
				return ledgertest.Engine{Ledger: r.open(t, o), Feed: r.feed(t), ExpireFeed: r.restream}
			})
		})
	}
}
