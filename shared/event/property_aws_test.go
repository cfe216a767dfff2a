//go:build awstest

package event

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

// openTable makes a table in the local AWS, and deletes it with the test.
func openTable(t *testing.T) *dynamo.DB {
	t.Helper()
	config, err := awsclient.Load(t.Context())
	if err == nil && config.BaseEndpoint == nil {
		err = fmt.Errorf("%s is not set: these tests make tables, and want a local AWS", awsclient.EndpointEnv)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, table := dynamodb.NewFromConfig(config), "event-"+rand.Text()
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
	db, err := dynamo.New(dynamo.Options{Client: client, Table: table, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestReadersOnDynamoDB: the promise to readers holds on the AWS engine as it does
// on the other.
func TestReadersOnDynamoDB(t *testing.T) {
	t.Parallel()
	readersSeeEachEventOnce(t, openTable(t), 5)
}

// TestUnreadableOnDynamoDB: damaged runs end no stream.
func TestUnreadableOnDynamoDB(t *testing.T) {
	t.Parallel()
	unreadableEvents(t, openTable(t))
}

// TestClockOnDynamoDB: what is appended is received in order.
func TestClockOnDynamoDB(t *testing.T) {
	t.Parallel()
	clockNeverGoesBack(t, openTable(t))
}

// TestSetBackOnDynamoDB: what a clock that was ahead wrote is as old as it truly is.
func TestSetBackOnDynamoDB(t *testing.T) {
	t.Parallel()
	checkSetBackBounds(t, openTable(t), 10)
}

// TestDetailsOnDynamoDB: details go, and readers go on.
func TestDetailsOnDynamoDB(t *testing.T) {
	t.Parallel()
	db := openTable(t)
	ctx := t.Context()
	for evs := mixed(60); len(evs) > 0; evs = evs[4:] {
		if _, err := Append(ctx, db, "clu_a", evs[:4], nil); err != nil {
			t.Fatal(err)
		}
	}
	r := &Reader{Ledger: db, Streams: list("clu_a")}
	f, err := r.Follow(ctx, Query{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := f.Next(ctx, 0)
	if err != nil || len(first) != 10 {
		t.Fatalf("%d events, %v", len(first), err)
	}
	if n, err := ExpireDetails(ctx, db, "clu_a", "device.*", at(40), 1000); err != nil || n < 10 {
		t.Errorf("looked at %d runs, %v", n, err)
	}
	got, _ := drain(t, r, Query{Limit: 7, Cursor: first[4].Cursor})
	if len(got) != 55 || got[0].Sequence != 6 {
		t.Fatalf("behind the fifth: %v", sequences(got))
	}
	for _, e := range got {
		if want := e.Type == "device.xid" && e.Sequence <= 40; e.DetailExpired != want {
			t.Errorf("event %d: expired %v", e.Sequence, e.DetailExpired)
		}
	}
	if _, _, err := Trim(ctx, db, "clu_a", at(20)); err != nil {
		t.Fatal(err)
	}
	if got, _ := drain(t, r, Query{Limit: 200}); len(got) != 40 {
		t.Errorf("%d events are left", len(got))
	}
}

func TestRestoredCursorsOnDynamo(t *testing.T) {
	t.Parallel()
	testRestoredCursors(t, func(t *testing.T) ledger.Ledger { return openTable(t) })
}

func TestLeaveOutRepeatsOnDynamo(t *testing.T) {
	t.Parallel()
	leaveOutRepeats(t, openTable(t))
}

func TestRestoredOnDynamo(t *testing.T) {
	t.Parallel()
	testRestored(t, func(t *testing.T) ledger.Ledger { return openTable(t) })
}
