package notify

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// State is where a delivery stands.
type State string

// The states of a delivery.
const (
	// Pending: to be sent. It leaves when it was taken (delivered, or active), when a later
	// one of its alert was (superseded), or after the last try (failed).
	Pending State = "pending"
	// Active: an Alertmanager knows that the alert fires, and is told again before
	// it would forget. It leaves when the alert resolves (pending).
	Active State = "active"
	// Delivered: taken. Only a redelivery leaves it (pending).
	Delivered State = "delivered"
	// Failed: not taken by the last try. Only a redelivery leaves it (pending).
	Failed State = "failed"
	// Superseded: a webhook took a later message of its alert first. Only a redelivery leaves
	// it (pending).
	Superseded State = "superseded"
)

// States lists the states of deliveries.
var States = []State{Pending, Active, Delivered, Failed, Superseded}

// How long deliveries are kept that are over.
const (
	DeliveredKept = 7 * 24 * time.Hour
	FailedKept    = 30 * 24 * time.Hour
)

// Delivery is a message to a receiver: of a webhook a transition of an alert, of
// an Alertmanager what it knows under one set of labels, with the alert that had them
// last.
type Delivery struct {
	ID       string `json:"id"`
	Receiver string `json:"receiver"`
	State    State  `json:"state"`
	// Event is the event that is told, and the webhook's id over all tries; of an
	// Alertmanager that was told of what fired already, the last of the alert's evidence.
	Event string `json:"event"`
	// Type is the event's; of an Alertmanager it says whether the alert fires there or is
	// over, which a silence makes it, too.
	Type     string `json:"type"`
	Alert    string `json:"alert"`
	Rule     string `json:"rule"`
	Cluster  string `json:"cluster,omitempty"`
	Stream   string `json:"stream"`
	Sequence int64  `json:"sequence"`
	// Received is when the plane took the event.
	Received  time.Time `json:"received"`
	CreatedAt time.Time `json:"created_at"`
	// Next is when it is to be sent, of one that is pending or active.
	Next time.Time `json:"next,omitzero"`
	// Tries counts those since it was made, redelivered or, of an Alertmanager's, taken
	// before or told anew; the one that was taken is among them.
	Tries int `json:"tries"`
	// Early are those of them that were made before their time, since the receiver was
	// changed, or that a webhook answered with its pace: by them nothing is given up.
	Early int `json:"early,omitempty"`
	// Paced are those of them by which nothing is known of the message (answer.paces).
	Paced int `json:"paced,omitempty"`
	// Beside are those of them, but for the first, since the one before which the webhook took
	// another message (apart).
	Beside int `json:"beside,omitempty"`
	// Planned is when a webhook's was to be sent that is due since the receiver was changed.
	Planned    time.Time `json:"planned,omitzero"`
	LastAt     time.Time `json:"last_at,omitzero"`
	LastStatus int       `json:"last_status,omitempty"` // HTTP; 0: there was no answer
	LastError  string    `json:"last_error,omitempty"`
	DoneAt     time.Time `json:"done_at,omitzero"`
	Redeliver  int       `json:"redelivered,omitempty"` // how often
	// RedeliveredAt is when it was redelivered last.
	RedeliveredAt time.Time `json:"redelivered_at,omitzero"`
	// First: when a webhook's was made, no message of its alert before it was to be sent any
	// more; else After is the one before it.
	First bool   `json:"first,omitempty"`
	After string `json:"after,omitempty"`
	// Payload is a webhook's body.
	Payload json.RawMessage `json:"payload,omitempty"`
	// Push is what an Alertmanager is told.
	Push *push `json:"push,omitempty"`
	// Waits: it is not due while whoever asked an Alertmanager waits for the answer.
	Waits bool `json:"waits,omitempty"`

	version int64
}

// open tells whether it is to be sent.
func (d *Delivery) open() bool { return d.State == Pending || d.State == Active }

// failed tells whether its last try did, or that there was none. What it says of an
// Alertmanager that has yet to answer (postpone) tells nothing of that: the status is
// still that of the last try.
func (d *Delivery) failed() bool { return d.LastError != "" && d.LastStatus/100 != 2 }

// pointer is the key by which it is found when it is due.
func (d *Delivery) pointer() ledger.Key {
	return record.PendingKey(d.Receiver, d.Next, d.Sequence, d.ID)
}

func (d *Delivery) item() ledger.Item {
	sort := record.TimeSort(d.CreatedAt, d.ID)
	it := ledger.Item{Key: record.DeliveryKey(d.Receiver, d.ID), Data: record.Encode(d), Index: map[ledger.Index]ledger.Key{
		ledger.List:   {PK: record.DeliveriesOf(d.Receiver, ""), SK: sort},
		ledger.Lookup: {PK: record.DeliveriesOf(d.Receiver, string(d.State)), SK: sort},
	}}
	switch d.State {
	case Delivered, Superseded:
		it.Expires = d.DoneAt.Add(DeliveredKept)
	case Failed:
		it.Expires = d.DoneAt.Add(FailedKept)
	}
	return it
}

// isOpen tells whether an item, if any, is a delivery that is to be sent.
func isOpen(it ledger.Item) bool {
	d, err := decodeDelivery(it)
	return err == nil && d.open()
}

func wasGivenUp(it ledger.Item) bool {
	d, err := decodeDelivery(it)
	return err == nil && d.State == Failed
}

func decodeDelivery(it ledger.Item) (*Delivery, error) {
	d, err := record.Decode[Delivery](it)
	d.version = it.Version
	return &d, err
}

// moved returns the writes that put a delivery as it is now in the place of what
// was.
func moved(was, d *Delivery) []ledger.Write {
	writes := []ledger.Write{{Expect: was.version, Item: d.item()}}
	if was.open() && !(d.open() && d.pointer() == was.pointer()) {
		writes = append(writes, ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: was.pointer()}})
	}
	if d.open() && !(was.open() && d.pointer() == was.pointer()) {
		writes = append(writes, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: d.pointer(), Data: record.Encode(pointedAt(d))}})
	}
	return writes
}

// Message is a webhook's body (Standard Webhooks 1.0.0, "Payload structure").
type Message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // when it happened
	Data      Data      `json:"data"`
}

// Data is what a webhook tells: the alert as it is after what happened, without its
// history, and where it is found. Stream and Sequence tell which of two messages is
// the later one.
type Data struct {
	alert.Alert
	Sequence int64 `json:"sequence"`
	Links    Links `json:"links"`
	// These hide the alert's: webhooks are to have less than 20 kB.
	History  *struct{} `json:"history,omitempty"`
	GroupKey *struct{} `json:"group_key,omitempty"`
}

// Links lead to the plane; paths where it does not know its own URL.
type Links struct {
	Alert     string `json:"alert"`
	Rule      string `json:"rule"`
	Operation string `json:"operation,omitempty"`
	// Runbook is the rule's, where it has one.
	Runbook string `json:"runbook,omitempty"`
}

// runbook is an alert's link to its runbook. One that is a path leads to the plane.
func (s *Service) runbook(a *alert.Alert) string {
	if isPath(a.Runbook) {
		return s.Base + a.Runbook
	}
	return a.Runbook
}

func isPath(link string) bool { return strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "//") }

func (s *Service) links(a *alert.Alert) Links {
	l := Links{Alert: s.Base + "/v1/alerts/" + a.ID, Rule: s.Base + "/v1/rules/" + a.RuleID, Runbook: s.runbook(a)}
	if a.Operation != "" {
		l.Operation = s.Base + "/v1/operations/" + a.Operation
	}
	return l
}

// webhookID is the id of a webhook's delivery of an event.
func webhookID(receiver, event string) string { return id.Derive(id.Delivery, receiver, event) }

func newDelivery(id string, r *ready, e *event.Event, a *alert.Alert, now time.Time) *Delivery {
	return &Delivery{ID: id, Receiver: r.ID, State: Pending, Event: e.ID, Type: e.Type, Alert: a.ID, Rule: a.Rule, Cluster: a.Cluster,
		Stream: e.Stream, Sequence: e.Sequence, Received: e.ReceivedAt, CreatedAt: now, Next: now}
}
