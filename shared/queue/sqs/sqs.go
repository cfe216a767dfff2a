// Package sqs is the AWS engine of the queue seam: standard queues of Amazon
// SQS, one for each cluster, one for the plane, one for wake-ups, and one for
// everybody's dead letters.
//
// It stands between relay and sweep, who ring (Engine), and the agents, who
// poll their cluster's queue themselves (Receiver, which knows nothing but a
// queue's URL). SQS delivers at least once, in no order and now and then twice
// at once: the record in the ledger decides.
//
// A seam's queue name becomes an SQS name by the prefix of the stage. Every
// receive names its wait and its visibility time: the SDK leaves a wait of zero
// out of the request, so a queue of ours must not have a wait of its own
// (ReceiveMessageWaitTimeSeconds stays 0), or looking once would wait.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/queue"
)

// Dead is the seam name of the queue that holds all dead letters. It is made
// before any other: by the template on AWS, else by Ensure.
const Dead = "dead"

const (
	// slack is how long an answer may take beyond the wait that was asked for.
	slack = 10 * time.Second
	// attempts is how often one entry of a batch is tried while SQS fails it by
	// its own fault; a failed request is tried again by the SDK.
	attempts = 4
	// backoff is the longest pause after a first failed attempt; it doubles.
	backoff = 100 * time.Millisecond
)

// Options configure an engine.
type Options struct {
	// Client calls SQS. Its credentials need, for what is used of the seam:
	// sqs:GetQueueUrl always; SendMessage; ReceiveMessage, DeleteMessage and
	// ChangeMessageVisibility; and for Admin CreateQueue, TagQueue, DeleteQueue
	// and GetQueueAttributes.
	Client *sqs.Client
	// Prefix comes before every queue's name, such as "opsplane-prod-".
	Prefix string
	// Logger is told of what is not worth an error; nil means nobody.
	Logger *slog.Logger
}

// Engine is the plane's end of the queues; make one with New. It is safe for
// concurrent use.
type Engine struct {
	api    caller
	prefix string
	log    *slog.Logger

	mu   sync.Mutex
	urls map[string]string // by seam name
	arns map[string]string // likewise
	dead map[string][]held // receipts of dead letters that were handed over, by their id
}

var _ queue.Queue = (*Engine)(nil)

// New returns an engine over the client. It calls nothing yet.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Engine{
		api: newCaller(o.Client), prefix: o.Prefix, log: o.Logger,
		urls: map[string]string{}, arns: map[string]string{}, dead: map[string][]held{},
	}
}

// QueueURL finds the queue by its seam name. It is looked up once and kept
// until SQS says that the queue is gone; queue.ErrNoQueue when there is none.
func (e *Engine) QueueURL(ctx context.Context, name string) (string, error) {
	full, err := e.fullName(name)
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	url, ok := e.urls[name]
	e.mu.Unlock()
	if ok {
		return url, nil
	}
	err = e.api.do(ctx, "GetQueueUrl", full, 0, func(ctx context.Context) error {
		out, err := e.api.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &full})
		if err == nil {
			url = aws.ToString(out.QueueUrl)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.urls[name] = url
	return url, nil
}

// QueueARN is the queue's Amazon Resource Name, as policies need it; kept like
// the URL.
func (e *Engine) QueueARN(ctx context.Context, name string) (string, error) {
	e.mu.Lock()
	arn, ok := e.arns[name]
	e.mu.Unlock()
	if ok {
		return arn, nil
	}
	err := e.at(ctx, "GetQueueAttributes", name, 0, func(ctx context.Context, url string) error {
		out, err := e.api.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url,
			AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
		if err != nil {
			return err
		}
		if arn = out.Attributes[string(types.QueueAttributeNameQueueArn)]; arn == "" {
			return errors.New("answer has no QueueArn")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arns[name] = arn
	return arn, nil
}

// at calls SQS about a queue within slack and wait, types the error, and
// forgets a queue that is gone.
func (e *Engine) at(ctx context.Context, action, name string, wait time.Duration, call func(ctx context.Context, url string) error) error {
	url, err := e.QueueURL(ctx, name)
	if err != nil {
		return err
	}
	err = e.api.do(ctx, action, e.prefix+name, wait, func(ctx context.Context) error { return call(ctx, url) })
	if errors.Is(err, queue.ErrNoQueue) {
		e.forget(name)
	}
	return err
}

func (e *Engine) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.urls, name)
	delete(e.arns, name)
}

// fullName is the queue's name on SQS: up to 80 letters, digits, hyphens and
// underscores (Amazon SQS API Reference, CreateQueue).
func (e *Engine) fullName(name string) (string, error) {
	if err := queue.CheckName(name); err != nil {
		return "", err
	}
	full := e.prefix + name
	if len(full) > queue.MaxNameBytes {
		return "", fmt.Errorf("%w: queue name %q: %d bytes, SQS takes %d", queue.ErrInvalid, full, len(full), queue.MaxNameBytes)
	}
	if i := strings.IndexFunc(full, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}); i >= 0 {
		return "", fmt.Errorf("%w: queue name %q: SQS takes letters, digits, hyphens and underscores", queue.ErrInvalid, full)
	}
	return full, nil
}

// Send implements queue.Sender. After an error some of the messages may have
// been accepted.
func (e *Engine) Send(ctx context.Context, name string, ms ...queue.Outgoing) error {
	if err := queue.CheckSend(ms); err != nil {
		return err
	}
	entries := make([]types.SendMessageBatchRequestEntry, len(ms))
	for i, m := range ms {
		entries[i] = types.SendMessageBatchRequestEntry{Id: entryID(i), MessageBody: aws.String(string(m.Body)), DelaySeconds: seconds(m.Delay)}
	}
	for len(entries) > 0 {
		n := fits(entries)
		err := e.at(ctx, "SendMessage", name, 0, func(ctx context.Context, url string) error {
			return e.api.send(ctx, url, entries[:n])
		})
		if err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// Receive implements queue.Receiver. Wait and visibility are rounded up to
// whole seconds. A wait of zero asks only some of SQS's servers and may miss
// what is there (Amazon SQS Developer Guide, short and long polling).
func (e *Engine) Receive(ctx context.Context, name string, max int, wait, visibility time.Duration) (ms []queue.Message, err error) {
	if err := queue.CheckReceive(max, wait, visibility); err != nil {
		return nil, err
	}
	err = e.at(ctx, "ReceiveMessage", name, wait, func(ctx context.Context, url string) error {
		ms, err = e.api.receive(ctx, url, max, wait, visibility)
		return err
	})
	return ms, err
}

// Delete implements queue.Receiver; stale receipts are ignored.
func (e *Engine) Delete(ctx context.Context, name string, receipts ...string) error {
	if err := queue.CheckDelete(receipts); err != nil {
		return err
	}
	return e.at(ctx, "DeleteMessage", name, 0, func(ctx context.Context, url string) error {
		return e.api.delete(ctx, url, receipts)
	})
}

// Extend implements queue.Receiver. A receipt that SQS knows to be stale is
// queue.ErrStaleReceipt.
func (e *Engine) Extend(ctx context.Context, name, receipt string, d time.Duration) error {
	if err := queue.CheckExtend(d); err != nil {
		return err
	}
	return e.at(ctx, "ChangeMessageVisibility", name, 0, func(ctx context.Context, url string) error {
		return e.api.extend(ctx, url, receipt, d)
	})
}
