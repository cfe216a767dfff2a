//go:build awstest

package agentapi

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
)

func TestTwoProcessesOfOneNameOnDynamo(t *testing.T) {
	t.Parallel()
	testTwoProcessesOfOneName(t, func(t *testing.T, clock func() time.Time) ledger.Ledger {
		config, err := awsclient.Load(t.Context())
		if err == nil && config.BaseEndpoint == nil {
			err = fmt.Errorf("%s is not set: these tests make tables, and want a local AWS", awsclient.EndpointEnv)
		}
		if err != nil {
			t.Fatal(err)
		}
		client, table := dynamodb.NewFromConfig(config), "agentapi-"+rand.Text()
		if err := dynamo.Create(t.Context(), client, table); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
			defer cancel()
			if _, err := client.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table}); err != nil {
				t.Errorf("delete table %s: %v", table, err)
			}
		})
		db, err := dynamo.New(dynamo.Options{Client: client, Table: table, Logger: slog.New(slog.DiscardHandler), Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		return db
	})
}
