package sqs

import (
	"context"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/shared/queue"
)

// Receiver is an agent's end of its cluster's queue. It knows only the queue's
// URL and makes only the calls that AgentPolicy allows. The queue argument of
// the seam is ignored. Credentials that are refused are a RefusedError, a queue
// that was deleted is queue.ErrNoQueue.
type Receiver struct {
	api caller
	url string
}

var _ queue.Receiver = (*Receiver)(nil)

// NewReceiver returns a receiver of the queue at the URL. It calls nothing yet.
func NewReceiver(client *sqs.Client, url string) *Receiver {
	return &Receiver{api: newCaller(client), url: url}
}

// Receive implements queue.Receiver, as Engine.Receive does.
func (r *Receiver) Receive(ctx context.Context, _ string, max int, wait, visibility time.Duration) (ms []queue.Message, err error) {
	if err := queue.CheckReceive(max, wait, visibility); err != nil {
		return nil, err
	}
	err = r.api.do(ctx, "ReceiveMessage", r.url, wait, func(ctx context.Context) error {
		ms, err = r.api.receive(ctx, r.url, max, wait, visibility)
		return err
	})
	return ms, err
}

// Delete implements queue.Receiver; stale receipts are ignored.
func (r *Receiver) Delete(ctx context.Context, _ string, receipts ...string) error {
	if err := queue.CheckDelete(receipts); err != nil {
		return err
	}
	return r.api.do(ctx, "DeleteMessage", r.url, 0, func(ctx context.Context) error { return r.api.delete(ctx, r.url, receipts) })
}

// Extend implements queue.Receiver. A receipt that SQS knows to be stale is
// queue.ErrStaleReceipt.
func (r *Receiver) Extend(ctx context.Context, _, receipt string, d time.Duration) error {
	if err := queue.CheckExtend(d); err != nil {
		return err
	}
	return r.api.do(ctx, "ChangeMessageVisibility", r.url, 0, func(ctx context.Context) error { return r.api.extend(ctx, r.url, receipt, d) })
}

// FromEvent is the message that Lambda hands to a function.
func FromEvent(m events.SQSMessage) queue.Message {
	return queue.Message{ID: m.MessageId, Receipt: m.ReceiptHandle, Body: []byte(m.Body), Receives: receives(m.Attributes)}
}
