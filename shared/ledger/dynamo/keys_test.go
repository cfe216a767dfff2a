package dynamo

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TestRealKeysFit: the longest names that the domain lets in, in every item
// that is in an index, stay within what an index's sort key takes.
func TestRealKeysFit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	store := record.Store{}
	name := strings.Repeat("n", fleet.MaxNameBytes)
	cluster := id.New(id.Cluster, time.Now())
	items := map[string]ledger.Item{
		"operation":   store.StateItem(&operation.State{ID: id.New(id.Operation, time.Now()), Cluster: cluster, ActorID: name, CreatedAt: now, Phase: operation.Running}),
		"cluster":     record.ClusterItem(&fleet.Cluster{ID: cluster, Name: name}),
		"agent":       store.AgentItem(&fleet.Agent{ID: id.New(id.Agent, time.Now()), Cluster: cluster, Name: name, LastSeen: now}),
		"dead letter": record.DeadLetterItem(record.DeadLetter{ID: strings.Repeat("n", 253), At: now}),
	}
	for _, kind := range []string{operation.KindNode, operation.KindDevice, operation.KindComponent} {
		items[kind] = record.ObjectItem(&fleet.Object{ID: id.New(id.Node, time.Now()), Kind: kind, Name: name, Cluster: cluster})
	}
	for what, it := range items {
		if len(it.Index) == 0 {
			t.Errorf("%s: in no index, proves nothing", what)
		}
		if err := ledger.Validate([]ledger.Write{{Item: it}}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for x, k := range it.Index {
			if n := len(storedSort(k.SK, it.Key)); n > maxSortBytes {
				t.Errorf("%s: index %s: %d bytes, DynamoDB takes %d", what, x, n, maxSortBytes)
			}
		}
	}
}

// TestSeamLimitIsDynamoDBs: what the seam lets into an index fits DynamoDB's
// keys, escaped and in parts too.
func TestSeamLimitIsDynamoDBs(t *testing.T) {
	t.Parallel()
	full := ledger.MaxIndexBytes
	for _, c := range []struct{ sort, pk, sk string }{
		{strings.Repeat("a", full-2), "p", "s"},
		{strings.Repeat("\x00", (full-2)/2), "p", "s"},
		{"a", strings.Repeat("\x01", (full-2)/2), "s"},
		{"a", "p", strings.Repeat("\x00", full-2)},
	} {
		it := ledger.Item{Key: ledger.Key{PK: c.pk, SK: c.sk}, Index: map[ledger.Index]ledger.Key{ledger.List: {PK: "l", SK: c.sort}}}
		if err := ledger.Validate([]ledger.Write{{Item: it}}); err != nil {
			t.Error(err)
		}
		if n := len(storedSort(c.sort, it.Key)); n > maxSortBytes || n < maxSortBytes-2 {
			t.Errorf("stored it has %d bytes, want DynamoDB's %d", n, maxSortBytes)
		}
		it.Index[ledger.List] = ledger.Key{PK: "l", SK: c.sort + "aaa"}
		if err := ledger.Validate([]ledger.Write{{Item: it}}); err == nil {
			t.Errorf("%d bytes more are let in", 3)
		}
	}
}

// TestPartsShareTheLoad: the hash spreads operations evenly enough.
func TestPartsShareTheLoad(t *testing.T) {
	t.Parallel()
	var count [DefaultShards]int
	const n = 8000
	for range n {
		count[part(record.StateKey(id.New(id.Operation, time.Now())), DefaultShards)]++
	}
	for i, c := range count {
		if c < n/DefaultShards*3/4 || c > n/DefaultShards*5/4 {
			t.Errorf("part %d has %d of %d", i, c, n)
		}
	}
	// Where an item is must not change with the build: it is stored.
	if got := part(ledger.Key{PK: "op#op_01m8mnkrs5p4xq5a2ebf609qyd", SK: "state"}, DefaultShards); got != 5 {
		t.Errorf("part %d, want 5", got)
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	in := Schema("t")
	var got []string
	for _, x := range in.GlobalSecondaryIndexes {
		got = append(got, *x.IndexName+" "+*x.KeySchema[0].AttributeName+" "+*x.KeySchema[1].AttributeName+" "+string(x.Projection.ProjectionType))
	}
	want := []string{"list lp ls KEYS_ONLY", "scope sp ss KEYS_ONLY", "lookup kp ks KEYS_ONLY", "live vp vs KEYS_ONLY", "due dp ds KEYS_ONLY"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("indexes (-want +got):\n%s", d)
	}
	if len(in.AttributeDefinitions) != 12 || *in.KeySchema[0].AttributeName != "pk" || *in.KeySchema[1].AttributeName != "sk" || TTLAttribute != "x" {
		t.Errorf("%+v", in)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	db, _ := scripted(t, fine)
	for name, o := range map[string]Options{
		"no client":       {Table: "t"},
		"no table":        {Client: db.client},
		"negative shards": {Client: db.client, Table: "t", Shards: -1},
		"too many shards": {Client: db.client, Table: "t", Shards: maxShards + 1},
		"nameless shard":  {Client: db.client, Table: "t", Sharded: []string{""}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
