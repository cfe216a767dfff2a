package sqs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/queue"
)

// maxBatchBytes bounds the bodies of one request. SQS takes 1 MiB since August
// 2025 (Amazon SQS Developer Guide, message quotas); the 256 KiB of before work
// everywhere and cost the same, since each 64 KiB is billed as a request.
const maxBatchBytes = 256 << 10

// caller makes the calls that plane and agent have in common.
type caller struct {
	client *sqs.Client
	poll   *sqs.Client // for calls that wait
}

func newCaller(c *sqs.Client) caller { return caller{client: c, poll: polling(c)} }

// polling returns the client with an HTTP timeout that does not cut a longest
// wait off. Zero means none: do bounds every call.
func polling(c *sqs.Client) *sqs.Client {
	const need = queue.MaxWait + slack
	return sqs.New(c.Options(), func(o *sqs.Options) {
		switch h := o.HTTPClient.(type) {
		case *awshttp.BuildableClient:
			if t := h.GetTimeout(); t > 0 && t < need {
				o.HTTPClient = h.WithTimeout(need)
			}
		case *http.Client:
			if h.Timeout > 0 && h.Timeout < need {
				longer := *h
				longer.Timeout = need
				o.HTTPClient = &longer
			}
		}
	})
}

// do calls within wait and slack, and types the error.
func (c caller) do(ctx context.Context, action, name string, wait time.Duration, call func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, wait+slack)
	defer cancel()
	if err := call(bounded); err != nil {
		return c.failure(ctx, action, name, err)
	}
	return nil
}

// seconds rounds up to what SQS counts in.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

func entryID(i int) *string { return aws.String(strconv.Itoa(i)) }

// fits is how many of the entries go into one request: the first one always.
func fits(entries []types.SendMessageBatchRequestEntry) int {
	size := 0
	for i, e := range entries {
		size += len(*e.MessageBody)
		if i == queue.MaxBatch || i > 0 && size > maxBatchBytes {
			return i
		}
	}
	return len(entries)
}

// send sends one batch, and again those entries that SQS failed by its own
// fault.
func (c caller) send(ctx context.Context, url string, entries []types.SendMessageBatchRequestEntry) error {
	return again(ctx, entries, func(e types.SendMessageBatchRequestEntry) string { return *e.Id },
		func(entries []types.SendMessageBatchRequestEntry) ([]string, []types.BatchResultErrorEntry, error) {
			out, err := c.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return nil, nil, err
			}
			done := make([]string, len(out.Successful))
			for i, s := range out.Successful {
				done[i] = aws.ToString(s.Id)
			}
			return done, out.Failed, nil
		})
}

func (c caller) receive(ctx context.Context, url string, max int, wait, visibility time.Duration) ([]queue.Message, error) {
	out, err := c.poll.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: int32(max), WaitTimeSeconds: seconds(wait), VisibilityTimeout: seconds(visibility),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount},
	})
	if err != nil {
		return nil, err
	}
	ms := make([]queue.Message, len(out.Messages))
	for i, m := range out.Messages {
		ms[i] = queue.Message{ID: aws.ToString(m.MessageId), Receipt: aws.ToString(m.ReceiptHandle), Body: []byte(aws.ToString(m.Body)),
			Receives: receives(m.Attributes)}
	}
	return ms, nil
}

// receives reads ApproximateReceiveCount. It is about right, and 1 when SQS
// does not say.
func receives(attributes map[string]string) int {
	n, err := strconv.Atoi(attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

func (c caller) delete(ctx context.Context, url string, receipts []string) error {
	entries := make([]types.DeleteMessageBatchRequestEntry, len(receipts))
	for i, r := range receipts {
		entries[i] = types.DeleteMessageBatchRequestEntry{Id: entryID(i), ReceiptHandle: aws.String(r)}
	}
	return again(ctx, entries, func(e types.DeleteMessageBatchRequestEntry) string { return *e.Id },
		func(entries []types.DeleteMessageBatchRequestEntry) ([]string, []types.BatchResultErrorEntry, error) {
			out, err := c.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return nil, nil, err
			}
			done := make([]string, 0, len(entries))
			for _, s := range out.Successful {
				done = append(done, aws.ToString(s.Id))
			}
			var failed []types.BatchResultErrorEntry
			for _, f := range out.Failed {
				// What is not there to delete is deleted. AWS says so of a receipt
				// that has expired; emulators refuse it.
				if staleCode(aws.ToString(f.Code)) {
					done = append(done, aws.ToString(f.Id))
					continue
				}
				failed = append(failed, f)
			}
			return done, failed, nil
		})
}

func (c caller) extend(ctx context.Context, url, receipt string, d time.Duration) error {
	_, err := c.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &url, ReceiptHandle: &receipt, VisibilityTimeout: seconds(d)})
	if staleCode(codeOf(err)) {
		return fmt.Errorf("%w: %w", queue.ErrStaleReceipt, err)
	}
	return err
}

// again sends a batch until every entry is done, one is refused, or attempts
// are used up. Entries that the answer does not mention count as failed.
func again[E any](ctx context.Context, entries []E, id func(E) string, send func([]E) ([]string, []types.BatchResultErrorEntry, error)) error {
	for attempt := 1; ; attempt++ {
		done, failed, err := send(entries)
		if err != nil {
			return err
		}
		var last error = errors.New("the answer leaves entries out")
		for _, f := range failed {
			e := &EntryError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message), Sender: f.SenderFault}
			if e.Sender {
				return e
			}
			last = e
		}
		left := entries[:0:0]
		ok := make(map[string]bool, len(done))
		for _, d := range done {
			ok[d] = true
		}
		for _, e := range entries {
			if !ok[id(e)] {
				left = append(left, e)
			}
		}
		if entries = left; len(entries) == 0 {
			return nil
		}
		if attempt == attempts {
			return fmt.Errorf("%d entries failed %d times: %w", len(entries), attempt, last)
		}
		if err := pause(ctx, attempt); err != nil {
			return fmt.Errorf("%w: %w", err, last)
		}
	}
}

// pause waits before the next attempt, a random part of a doubling time.
func pause(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(backoff << (attempt - 1)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
