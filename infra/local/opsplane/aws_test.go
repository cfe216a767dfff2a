//go:build awstest

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/infra/aws"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/export"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/record"
)

// newTable makes an empty table and the queue of dead letters, as the template
// does.
func newTable(t *testing.T) (table string, db *dynamodb.Client, d *aws.Deployment) {
	t.Helper()
	ctx := t.Context()
	if os.Getenv(awsclient.EndpointEnv) == "" {
		t.Fatalf("%s does not name a local AWS", awsclient.EndpointEnv)
	}
	cfg, err := awsclient.Load(ctx)
	no(t, err)
	table = id.New("import", time.Now())
	db = dynamodb.NewFromConfig(cfg)
	no(t, dynamo.Create(ctx, db, table))
	client := awssqs.NewFromConfig(cfg)
	no(t, sqs.New(sqs.Options{Client: client, Prefix: table + "-"}).Ensure(ctx, sqs.Dead))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, _ = db.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table})
		out, err := client.ListQueues(ctx, &awssqs.ListQueuesInput{QueueNamePrefix: awssdk.String(table)})
		if err != nil {
			return
		}
		for _, url := range out.QueueUrls {
			_, _ = client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url})
		}
	})
	d, err = aws.Open(ctx, aws.Options{Table: table})
	no(t, err)
	return table, db, d
}

// items counts what is in a table.
func items(t *testing.T, db *dynamodb.Client, table string) (n int) {
	t.Helper()
	p := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{TableName: &table, Select: types.SelectCount, ConsistentRead: awssdk.Bool(true)})
	for p.HasMorePages() {
		out, err := p.NextPage(t.Context())
		no(t, err)
		n += int(out.Count)
	}
	return n
}

// A one-machine ledger moves into a table; the program is killed in the middle
// and goes on from there, and everything is the same on both sides.
func TestMoveToAWS(t *testing.T) {
	ctx := t.Context()
	s := newSite(t)
	for i := range 80 { // years of a small site
		var ws []ledger.Write
		for j := range 100 {
			a := record.Audit{ID: fmt.Sprintf("aud_%d_%d", i, j), At: time.Now().Add(-time.Duration(i) * time.Hour), Action: "test", Path: strings.Repeat("x", j)}
			ws = append(ws, record.AuditWrite(a))
		}
		no(t, s.Store.Ledger.Commit(ctx, ws...))
	}
	op := s.cordon(t, "n0")
	token, err := os.ReadFile(s.tokenFile)
	no(t, err)
	s.close(t)
	file := filepath.Join(t.TempDir(), "export")
	out, err := os.Create(file)
	no(t, err)
	no(t, (&exportCmd{Data: s.data, WithLive: true}).export(ctx, out, io.Discard))
	no(t, out.Close())
	table, db, d := newTable(t)
	run := func(kill func() bool) (string, error) {
		stream, err := os.Open(file)
		no(t, err)
		defer stream.Close()
		cmd := exec.Command(os.Args[0], "import", "--table", table)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stream, &said, &said
		no(t, cmd.Start())
		for !kill() {
			time.Sleep(10 * time.Millisecond)
		}
		if kill() {
			_ = cmd.Process.Kill()
		}
		err = cmd.Wait()
		return said.String(), err
	}
	// Killed twice on the way.
	for _, at := range []int{500, 3000} {
		if said, err := run(func() bool { return items(t, db, table) >= at }); err == nil {
			t.Fatalf("the import had ended before it was killed: %s", said)
		}
		if n := items(t, db, table); n >= 8000 {
			t.Fatalf("killed with %d items there", n)
		}
		if _, err := d.Store.Load(ctx, op); err == nil {
			t.Error("a live operation is there before what is at rest")
		}
	}
	stream, err := os.Open(file)
	no(t, err)
	defer stream.Close()
	var said bytes.Buffer
	no(t, importInto(ctx, d, stream, &said, io.Discard))
	if !strings.Contains(said.String(), "everything holds") || strings.Contains(said.String(), " 0 there from a run before") {
		t.Errorf("the last run says:\n%s", said.String())
	}

	if n := same(t, file, d); n < 8000 {
		t.Errorf("%d items compared", n)
	}
	if _, err := tokensOf(d).Authenticate(ctx, strings.TrimSpace(string(token))); err != nil {
		t.Errorf("the administrator's token on the other side: %v", err)
	}
	if depth, err := d.Queues.Depth(ctx, fleet.QueueName(s.cluster)); err != nil || depth != 0 {
		t.Errorf("the cluster's queue: depth %d, %v", depth, err)
	}

	// Once more changes nothing; another export is refused; so is a table of
	// somebody else.
	before := items(t, db, table)
	said.Reset()
	no(t, importInto(ctx, d, stream, &said, io.Discard))
	if !strings.Contains(said.String(), "nothing changed") || items(t, db, table) != before {
		t.Errorf("once more says: %s", said.String())
	}
	other := newSite(t)
	var second bytes.Buffer
	no(t, (&exportCmd{Data: other.data}).export(ctx, &second, io.Discard))
	if err := importInto(ctx, d, &second, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "another export") {
		t.Errorf("another export: %v", err)
	}
	no(t, d.Verify(ctx, io.Discard))
}

// same compares every item of an export with the table's, and counts them.
func same(t *testing.T, file string, d *aws.Deployment) (compared int) {
	t.Helper()
	ctx := t.Context()
	db, err := ledgersqlite.Open(ctx, ledgersqlite.Options{Path: filepath.Join(t.TempDir(), "l.db")})
	no(t, err)
	defer db.Close()
	stream, err := os.Open(file)
	no(t, err)
	defer stream.Close()
	no(t, replay(ctx, stream, db))
	for after := ""; ; {
		p, err := db.Scan(ctx, after, 100)
		no(t, err)
		keys := make([]ledger.Key, len(p.Items))
		for i, it := range p.Items {
			keys[i] = it.Key
		}
		have, err := d.Ledger.GetMany(ctx, keys)
		no(t, err)
		for _, want := range p.Items {
			it, ok := have[want.Key]
			if record.Kind(want.Key) == record.KindImport {
				continue // it has the run's times
			}
			compared++
			if !ok || it.Version != 1 || !bytes.Equal(it.Data, want.Data) || !it.Due.Equal(want.Due) || !it.Expires.Equal(want.Expires) || len(it.Index) != len(want.Index) {
				t.Fatalf("item %s: there %v, version %d", want.Key, ok, it.Version)
			}
		}
		if after = p.Next; after == "" {
			return compared
		}
	}
}

// The first administrator's token is made once, and works.
func TestAdminToken(t *testing.T) {
	ctx := t.Context()
	_, _, d := newTable(t)
	_, bearer, err := d.AdminToken(ctx, false)
	no(t, err)
	p, err := tokensOf(d).Authenticate(ctx, bearer)
	if err != nil || !p.Force || len(p.Roles) != 1 || p.Roles[0] != "admin" {
		t.Errorf("authenticates as %+v, %v", p, err)
	}
	if _, _, err := d.AdminToken(ctx, false); err == nil || !strings.Contains(err.Error(), "--another") {
		t.Errorf("a second first token: %v", err)
	}
	_, again, err := d.AdminToken(ctx, true)
	no(t, err)
	if again == bearer {
		t.Error("the same token again")
	}
	records, _, err := d.Store.Audits(ctx, "", time.Now().Add(time.Minute), time.Now().Add(-time.Hour), 10)
	no(t, err)
	if len(records) != 2 || records[0].Actor.Kind != "aws" || !strings.HasPrefix(records[0].Actor.ID, "arn:aws:") {
		t.Errorf("audit records %+v", records)
	}
	// Neither an agent's token nor one of a cluster's administrator is in the way.
	_, _, fresh := newTable(t)
	_, _, err = tokensOf(fresh).Create(ctx, agentToken)
	no(t, err)
	if _, _, err := fresh.AdminToken(ctx, false); err != nil {
		t.Errorf("beside an agent's token: %v", err)
	}
}

var agentToken = auth.TokenSpec{Name: "agents of c", AgentCluster: "clu_1"}

func tokensOf(d *aws.Deployment) *auth.Store { return auth.NewStore(d.Ledger, time.Now) }

// replay imports an export into a ledger of its own.
func replay(ctx context.Context, stream io.ReadSeeker, db *ledgersqlite.DB) error {
	_, err := export.Import(ctx, stream, export.Target{Ledger: db, Now: time.Now,
		Occupied: func(context.Context) (ledger.Key, bool, error) { return ledger.Key{}, false, nil }})
	return err
}

// A table moves into another one, as after a restore or to another region: live
// operations are fenced off first, and the rest is the same.
func TestMoveTable(t *testing.T) {
	ctx := t.Context()
	s := newSite(t)
	op := s.cordon(t, "n0")
	s.close(t)
	var moved bytes.Buffer
	no(t, (&exportCmd{Data: s.data, WithLive: true}).export(ctx, &moved, io.Discard))
	_, _, from := newTable(t)
	no(t, importInto(ctx, from, &moved, io.Discard, io.Discard))
	before, err := from.Store.Load(ctx, op)
	no(t, err)

	var live *liveError
	if err := (&exportCmd{}).exportTable(ctx, from, io.Discard, io.Discard); !errors.As(err, &live) || live.live[0].ID != op {
		t.Errorf("with a live operation: %v", err)
	}
	file := filepath.Join(t.TempDir(), "export")
	out, err := os.Create(file)
	no(t, err)
	no(t, (&exportCmd{WithLive: true}).exportTable(ctx, from, out, io.Discard))
	no(t, out.Close())
	_, _, to := newTable(t)
	stream, err := os.Open(file)
	no(t, err)
	defer stream.Close()
	no(t, importInto(ctx, to, stream, io.Discard, io.Discard))
	if n := same(t, file, to); n < 15 {
		t.Errorf("%d items compared", n)
	}
	after, err := to.Store.Load(ctx, op)
	no(t, err)
	if after.State.Generation < before.State.Generation+1_000_000 {
		t.Errorf("generation %d after %d", after.State.Generation, before.State.Generation)
	}
}
