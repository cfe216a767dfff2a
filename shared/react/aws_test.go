//go:build awstest

package react

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
)

// onDynamoDB is a plane on a table of its own in the local AWS.
func onDynamoDB(t *testing.T) *bench {
	t.Helper()
	config, err := awsclient.Load(t.Context())
	if err == nil && config.BaseEndpoint == nil {
		err = fmt.Errorf("%s is not set: these tests make tables, and want a local AWS", awsclient.EndpointEnv)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, table := dynamodb.NewFromConfig(config), "react-"+rand.Text()
	if err := dynamo.Create(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, now: t0}
	b.close = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
			t.Errorf("delete table %s: %v", table, err)
		}
	}
	db, err := dynamo.New(dynamo.Options{Client: client, Table: table, Logger: slog.New(slog.DiscardHandler), Now: b.clock})
	if err != nil {
		t.Fatal(err)
	}
	b.on(db)
	return b
}

// TestModelOnDynamoDB: two reactors over the AWS engine tell what the reference
// evaluator makes of the history.
func TestModelOnDynamoDB(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := onDynamoDB(t)
		defer b.close()
		b.model(rt)
	})
}

// TestCrashOnDynamoDB: a process that ends at one of its calls, and what is told is
// the same.
func TestCrashOnDynamoDB(t *testing.T) {
	t.Parallel()
	run := func(at int, applied bool) ([]string, int) {
		b := onDynamoDB(t)
		defer b.close()
		return b.crashing(at, applied)
	}
	want, calls := run(1<<30, false)
	if len(want) < 10 {
		t.Fatalf("the night is too quiet: %v", want)
	}
	for at := 1; at <= calls; at += 3 {
		if got, _ := run(at, at%2 == 0); !cmp.Equal(want, got) {
			t.Errorf("call %d (-want +got):\n%s", at, cmp.Diff(want, got))
		}
	}
}

// TestHistoryOnDynamoDB: what is told follows from the stream alone.
func TestHistoryOnDynamoDB(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b, again := onDynamoDB(t), setup(t)
		defer b.close()
		defer again.close()
		b.determined(rt, again, false)
	})
}

// TestUnreadableOnDynamoDB: what cannot be read is passed over, and told.
func TestUnreadableOnDynamoDB(t *testing.T) {
	t.Parallel()
	b := onDynamoDB(t)
	defer b.close()
	b.unreadable()
}
