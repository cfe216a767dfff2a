// Package record keeps the domain's values in the ledger: which item holds
// what, under which key, in which index. Keys are written here and nowhere else.
//
//	partition        sort                what                              indexes
//	op#ID            state               operation.State                   list, scope, lookup, live, due
//	op#ID            spec                operation.Spec
//	op#ID            j#SEQ               a run of journal entries
//	op#ID            cmd#GEN#N#I         a run of commands
//	op#ID            pub                 how far its journal is in the stream
//	op#ID            late                it could not be published       due
//	op#ID            kids#N              up to 16 children of a plan
//	op#ID            slots               written by every admission of a child
//	res#ID           inv                 an object of the inventory        list, scope, lookup
//	res#ID           lock                operation.LockState
//	res#ID           ref#TIME#OP         an operation that touched it
//	idem#HASH        idem                an idempotency key
//	clu#ID           cluster             a cluster                         list, lookup
//	clu#ID           agent#ID            an agent                          list, due
//	clu#ID           reporter            who reports the inventory
//	clu#ID           events#AGENT        how far its events were taken
//	clu#ID           snap#ID#PART        a part of a full inventory
//	name#NAME        cluster             a cluster's name, taken once
//	str#STREAM       head                event.Head
//	str#STREAM       ev#SEQ              a run of events
//	str#STREAM       bus                 how far it was put on the bus
//	feed#READER      position            how far a reader of the change feed is
//	meta             former#ID           a deleted cluster whose events are left
//	aud#DAY          TIME#ID             an audit record
//	dlq#ID           letter              a dead letter                     list
//	chg#ID           change              a manual change                   list
//	prv#ID           preview             a preview and its answer
//	cur#ID           cursor              positions of an all-streams cursor
//	rx#STREAM        position            how far a stream is judged       due
//	rx#STREAM        g#RULE#HASH         what a rule knows of a group
//	rules            rule#ID             an alert rule, or what is changed
//	                                     of one that ships
//	name#NAME        rule                a rule's name, taken once
//	meta             rules               the mark of all rules and silences
//	alr#ID           alert               an alert                         list, scope, lookup, live
//	alr#ID           ack                 who took it on
//	silences         silence#ID          a silence
//	receivers        receiver#ID         who is told of alerts
//	rcv#ID           secrets             what signs its messages
//	name#NAME        receiver            a receiver's name, taken once
//	meta             receivers           the mark of all receivers
//	meta             probe               written to see whether it can be
//	nt#STREAM        position            how far a stream is told
//	out#ID           lane                who sends to a receiver            due
//	out#ID           d#ID                a message to it                  list, lookup
//	out#ID           p#TIME#N#ID         when it is to be sent
//	out#ID           t#ALERT             it was told that the alert fires
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Sort keys of an operation's partition.
const (
	skState   = "state"
	skSpec    = "spec"
	skPub     = "pub"
	skLate    = "late"
	skJournal = "j#"
	skCommand = "cmd#"
	skKids    = "kids#"
)

// Partitions of the indexes.
const (
	ListOperations = "ops"
	ListClusters   = "clusters"
	ListAgents     = "agents"
	ListDead       = "dead"
	ListChanges    = "changes"
)

// OperationPK is an operation's partition.
func OperationPK(id string) string { return "op#" + id }

// OperationOf returns the operation whose state item the key is, or "".
func OperationOf(k ledger.Key) string {
	if k.SK != skState {
		return ""
	}
	id, ok := strings.CutPrefix(k.PK, "op#")
	if !ok {
		return ""
	}
	return id
}

// StateKey is the key of an operation's state.
func StateKey(id string) ledger.Key { return ledger.Key{PK: OperationPK(id), SK: skState} }

func specKey(id string) ledger.Key { return ledger.Key{PK: OperationPK(id), SK: skSpec} }
func pubKey(id string) ledger.Key  { return ledger.Key{PK: OperationPK(id), SK: skPub} }

func lateKey(id string) ledger.Key { return ledger.Key{PK: OperationPK(id), SK: skLate} }

// LateOf returns the operation whose note the key is that it could not be
// published, or "".
func LateOf(k ledger.Key) string {
	id, ok := strings.CutPrefix(k.PK, "op#")
	if k.SK != skLate || !ok {
		return ""
	}
	return id
}

// seqKey pads a number so that keys sort as numbers do.
func seqKey(prefix string, n int64) string { return fmt.Sprintf("%s%016d", prefix, n) }

func journalKey(id string, first int64) ledger.Key {
	return ledger.Key{PK: OperationPK(id), SK: seqKey(skJournal, first)}
}

// timeKey is an instant as a sort key, in milliseconds.
func timeKey(t time.Time) string { return fmt.Sprintf("%013d", t.UnixMilli()) }

// ResourcePK is a resource's partition.
func ResourcePK(id string) string { return "res#" + id }

// InventoryKey is the key of an object of the inventory.
func InventoryKey(id string) ledger.Key { return ledger.Key{PK: ResourcePK(id), SK: "inv"} }

// LockKey is the key of a resource's lock.
func LockKey(resource string) ledger.Key { return ledger.Key{PK: ResourcePK(resource), SK: "lock"} }

const skRef = "ref#"

func refKey(resource, op string, created time.Time) ledger.Key {
	return ledger.Key{PK: ResourcePK(resource), SK: skRef + timeKey(created) + "#" + op}
}

// InventoryScope is the index partition of one kind in one cluster, and
// InventoryList that of the kind in all.
func InventoryScope(kind, cluster string) string { return "inv#" + kind + "#" + cluster }

// InventoryList is the index partition of one kind in all clusters.
func InventoryList(kind string) string { return "inv#" + kind }

// InventoryName is the index partition of the objects of a kind with a name.
func InventoryName(kind, name string) string { return "name#" + kind + "#" + name }

// idemKey is the key of an idempotency key in its scope.
func idemKey(principal, method, path, key string) ledger.Key {
	h := sha256.New()
	for _, p := range []string{principal, method, path, key} {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return ledger.Key{PK: "idem#" + hex.EncodeToString(h.Sum(nil)), SK: "idem"}
}

// ClusterPK is a cluster's partition.
func ClusterPK(id string) string { return "clu#" + id }

// ClusterKey is the key of a cluster.
func ClusterKey(id string) ledger.Key { return ledger.Key{PK: ClusterPK(id), SK: "cluster"} }

// ClusterNameKey is the key that makes a cluster's name unique.
func ClusterNameKey(name string) ledger.Key { return ledger.Key{PK: "name#" + name, SK: "cluster"} }

const skAgent = "agent#"

// AgentKey is the key of an agent.
func AgentKey(cluster, agent string) ledger.Key {
	return ledger.Key{PK: ClusterPK(cluster), SK: skAgent + agent}
}

// ReporterKey is the key of a cluster's reporter lease.
func ReporterKey(cluster string) ledger.Key {
	return ledger.Key{PK: ClusterPK(cluster), SK: "reporter"}
}

// AgentEventsKey is the key of how far an agent's events were taken.
func AgentEventsKey(cluster, agent string) ledger.Key {
	return ledger.Key{PK: ClusterPK(cluster), SK: "events#" + agent}
}

// BootEventsKey is the key of how far the events of an agent's process were taken
// that is not the last one.
func BootEventsKey(cluster, agent, boot string) ledger.Key {
	return ledger.Key{PK: ClusterPK(cluster), SK: "events#" + agent + "#" + boot}
}

// SnapshotKey is the key of one part of a full inventory.
func SnapshotKey(cluster, snapshot string, part int) ledger.Key {
	return ledger.Key{PK: ClusterPK(cluster), SK: fmt.Sprintf("snap#%s#%05d", snapshot, part)}
}

// StreamPK is a stream's partition.
func StreamPK(stream string) string { return "str#" + stream }

// StreamHeadKey is the key of a stream's head.
func StreamHeadKey(stream string) ledger.Key { return ledger.Key{PK: StreamPK(stream), SK: "head"} }

// StreamRunKey is the key of the run of events that begins at seq.
func StreamRunKey(stream string, seq int64) ledger.Key {
	return ledger.Key{PK: StreamPK(stream), SK: seqKey("ev#", seq)}
}

// StreamBusKey is the key of how far a stream was put on the bus.
func StreamBusKey(stream string) ledger.Key { return ledger.Key{PK: StreamPK(stream), SK: "bus"} }

// StreamDetailsKey is the key of how far a stream's details were taken by
// retention.
func StreamDetailsKey(stream string) ledger.Key {
	return ledger.Key{PK: StreamPK(stream), SK: "details"}
}

// StreamOf returns the stream whose head the key is, or "".
func StreamOf(k ledger.Key) string {
	if k.SK != "head" {
		return ""
	}
	name, _ := strings.CutPrefix(k.PK, "str#")
	return name
}

// FeedKey is the key of how far a reader of the change feed is.
func FeedKey(reader string) ledger.Key { return ledger.Key{PK: "feed#" + reader, SK: "position"} }

// AgentOf returns cluster and agent whose item the key is, or "".
func AgentOf(k ledger.Key) (cluster, agent string) {
	cluster, ok := strings.CutPrefix(k.PK, "clu#")
	if !ok {
		return "", ""
	}
	agent, ok = strings.CutPrefix(k.SK, skAgent)
	if !ok {
		return "", ""
	}
	return cluster, agent
}

// AuditKey is the key of an audit record.
func AuditKey(at time.Time, id string) ledger.Key {
	return ledger.Key{PK: AuditPK(at), SK: timeKey(at) + "#" + id}
}

// AuditPK is the partition of a day's audit records.
func AuditPK(at time.Time) string { return "aud#" + at.UTC().Format("2006-01-02") }

// DeadLetterKey is the key of a dead letter.
func DeadLetterKey(id string) ledger.Key { return ledger.Key{PK: "dlq#" + id, SK: "letter"} }

// ChangeKey is the key of a manual change.
func ChangeKey(id string) ledger.Key { return ledger.Key{PK: "chg#" + id, SK: "change"} }

// PreviewKey is the key of a preview.
func PreviewKey(id string) ledger.Key { return ledger.Key{PK: "prv#" + id, SK: "preview"} }

// CursorKey is the key of a stored cursor.
func CursorKey(id string) ledger.Key { return ledger.Key{PK: "cur#" + id, SK: "cursor"} }

// TimeSort is an index sort key by time.
func TimeSort(t time.Time, id string) string { return timeKey(t) + "#" + id }
