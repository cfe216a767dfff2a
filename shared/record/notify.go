package record

import (
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// ReceiversPK is the partition of all receivers: there are few, and who tells of
// alerts must see them all.
const ReceiversPK = "receivers"

const (
	skLane    = "lane"
	skPending = "p#"
	skSent    = "d#"
	skTold    = "t#"
)

const skReceiver = "receiver#"

// ReceiverKey is the key of a receiver of notifications, without its secrets.
func ReceiverKey(id string) ledger.Key { return ledger.Key{PK: ReceiversPK, SK: skReceiver + id} }

// ReceiverOf returns the receiver whose key it is.
func ReceiverOf(k ledger.Key) string { return strings.TrimPrefix(k.SK, skReceiver) }

// ReceiverNameKey is the key that makes a receiver's name unique.
func ReceiverNameKey(name string) ledger.Key { return ledger.Key{PK: "name#" + name, SK: "receiver"} }

// ReceiverSecretsKey is the key of what signs a receiver's messages.
func ReceiverSecretsKey(id string) ledger.Key { return ledger.Key{PK: "rcv#" + id, SK: "secrets"} }

// ReceiversKey is the key of the mark that each change of a receiver moves.
var ReceiversKey = ledger.Key{PK: "meta", SK: "receivers"}

// ToldKey is the key of how far a stream is told to the receivers.
func ToldKey(stream string) ledger.Key { return ledger.Key{PK: "nt#" + stream, SK: skPosition} }

// OutboxPK is the partition of what is to be sent, and was, to a receiver.
func OutboxPK(receiver string) string { return "out#" + receiver }

// LaneKey is the key of who sends to a receiver, and when there is something to.
func LaneKey(receiver string) ledger.Key { return ledger.Key{PK: OutboxPK(receiver), SK: skLane} }

// LaneOf returns the receiver whose lane the key is, or "".
func LaneOf(k ledger.Key) string {
	id, ok := strings.CutPrefix(k.PK, "out#")
	if k.SK != skLane || !ok {
		return ""
	}
	return id
}

// DeliveryKey is the key of a message to a receiver.
func DeliveryKey(receiver, id string) ledger.Key {
	return ledger.Key{PK: OutboxPK(receiver), SK: skSent + id}
}

// PendingKey is the key by which a message is found that is to be sent at the
// time; number orders those of one time.
func PendingKey(receiver string, next time.Time, number int64, id string) ledger.Key {
	return ledger.Key{PK: OutboxPK(receiver), SK: fmt.Sprintf("%s%s#%016d#%s", skPending, timeKey(next), number, id)}
}

// PendingSpan bounds the sort keys of a receiver's messages that are to be sent:
// from included, to not.
func PendingSpan() (from, to string) { return skPending, skPending + "~" }

// PendingOf returns the message that the key is to be found by, or "".
func PendingOf(k ledger.Key) string {
	if !strings.HasPrefix(k.SK, skPending) {
		return ""
	}
	return k.SK[strings.LastIndexByte(k.SK, '#')+1:]
}

// ToldOfKey is the key of the mark that a receiver was told that an alert fires.
func ToldOfKey(receiver, alert string) ledger.Key {
	return ledger.Key{PK: OutboxPK(receiver), SK: skTold + alert}
}

// ToldOfSpan bounds the sort keys of a receiver's marks: from included, to not.
func ToldOfSpan() (from, to string) { return skTold, skTold + "~" }

// ToldOf returns the alert that a mark is of.
func ToldOf(k ledger.Key) string { return strings.TrimPrefix(k.SK, skTold) }

// DeliveriesOf is the index partition of a receiver's messages in a state, or in
// all of them with "".
func DeliveriesOf(receiver, state string) string { return "deliveries#" + receiver + "#" + state }
