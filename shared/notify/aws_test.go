//go:build awstest

package notify

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
)

// onDynamoDB is a plane on a table of its own in the local AWS.
func onDynamoDB(t *testing.T) *plane {
	t.Helper()
	config, err := awsclient.Load(t.Context())
	if err == nil && config.BaseEndpoint == nil {
		err = fmt.Errorf("%s is not set: these tests make tables, and want a local AWS", awsclient.EndpointEnv)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, table := dynamodb.NewFromConfig(config), "notify-"+rand.Text()
	if err := dynamo.Create(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
			t.Errorf("delete table %s: %v", table, err)
		}
	})
	p := &plane{t: t, at: t0, seq: map[string]int{}}
	db, err := dynamo.New(dynamo.Options{Client: client, Table: table, Logger: slog.New(slog.DiscardHandler), Now: p.clock})
	if err != nil {
		t.Fatal(err)
	}
	return p.on(db)
}

// TestTwoNotifiersOnDynamoDB: two at once make each message once, and send it once.
func TestTwoNotifiersOnDynamoDB(t *testing.T) {
	t.Parallel()
	onDynamoDB(t).two(30)
}

// TestCrashesOnDynamoDB: a process that ends at one of its commits loses nothing and
// makes nothing twice.
func TestCrashesOnDynamoDB(t *testing.T) {
	t.Parallel()
	commits := onDynamoDB(t).crash(1<<30, false)
	for at := 1; at <= commits; at += 9 {
		onDynamoDB(t).crash(at, at%2 == 0)
	}
}

// TestFailingOnDynamoDB: see TestFailingIsTold.
func TestFailingOnDynamoDB(t *testing.T) {
	t.Parallel()
	onDynamoDB(t).failingIsTold()
}

// TestRefusedBurstOnDynamoDB: see TestRefusedBurst.
func TestRefusedBurstOnDynamoDB(t *testing.T) {
	t.Parallel()
	onDynamoDB(t).refusedBurst(2 * refusedMost)
}
