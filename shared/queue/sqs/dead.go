package sqs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/queue"
)

// Message attributes of a letter that was put aside by Bury. One that SQS moved
// itself has its DeadLetterQueueSourceArn instead.
const (
	attrQueue  = "opsplane_queue" // the seam name
	attrReason = "opsplane_reason"
	attrID     = "opsplane_id" // the id that the message had
)

const (
	// ReasonMaxReceives is the reason of letters that SQS moved: received
	// queue.MaxReceives times and never deleted.
	ReasonMaxReceives = "max_receives"
	// ReasonForeign is the reason of letters of which nothing tells where they
	// come from: somebody put them on the queue of dead letters.
	ReasonForeign = "foreign"

	// buryHold is how long a message stays hidden while it is put aside.
	buryHold = 30 * time.Second
	// deadHold is how long a letter that was handed over is hidden: time to keep
	// it and to drop it.
	deadHold = 5 * time.Minute
	// deadWait has a receive ask all of SQS's servers, not some.
	deadWait = time.Second
	// maxReason bounds a reason, in bytes.
	maxReason = 1024
)

// held is the right to drop a letter.
type held struct {
	receipt string
	until   time.Time
}

// Bury implements queue.Admin: it sends the message to the queue of dead
// letters and then deletes it. Nothing is sent for a message that is gone or was
// handed out again, as far as SQS tells: queue.ErrStaleReceipt. When the delete
// fails the message comes again, and a second letter has the same id.
func (e *Engine) Bury(ctx context.Context, name string, m queue.Message, reason string) error {
	if at, ok := queue.CheckText(m.Body); !ok || len(m.Body) == 0 {
		return fmt.Errorf("bury message %s: %w: body is empty or no text at byte %d", m.ID, queue.ErrInvalid, at)
	}
	if err := e.Extend(ctx, name, m.Receipt, buryHold); err != nil {
		return fmt.Errorf("bury message %s: %w", m.ID, err)
	}
	attributes := map[string]types.MessageAttributeValue{}
	for key, value := range map[string]string{attrQueue: name, attrReason: reason, attrID: m.ID} {
		// An attribute takes the characters of a body, and is not empty.
		if value = text(value, maxReason); value != "" {
			attributes[key] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
		}
	}
	err := e.at(ctx, "SendMessage", Dead, 0, func(ctx context.Context, url string) error {
		_, err := e.api.client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(string(m.Body)), MessageAttributes: attributes})
		return err
	})
	if err != nil {
		return fmt.Errorf("bury message %s: %w", m.ID, err)
	}
	if err := e.Delete(ctx, name, m.Receipt); err != nil {
		return fmt.Errorf("bury message %s: delete it: %w", m.ID, err)
	}
	return nil
}

// text makes s fit for an attribute, of at most limit bytes.
func text(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !queue.Carries(r) {
			return '\uFFFD'
		}
		return r
	}, s) // Map turns broken UTF-8 into U+FFFD by itself
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// TakeDead implements queue.Admin. A letter is hidden for 5 minutes and then
// handed over again, with the same id. At is when the letter was sent: for one
// that SQS moved itself, which tells no later time, when the message was.
func (e *Engine) TakeDead(ctx context.Context, max int) ([]queue.DeadLetter, error) {
	if max < 1 {
		return nil, fmt.Errorf("%w: take %d dead letters", queue.ErrInvalid, max)
	}
	e.forgetHeld(time.Now())
	var letters []queue.DeadLetter
	for len(letters) < max {
		got, err := e.receiveDead(ctx, min(max-len(letters), queue.MaxBatch))
		if err != nil && len(letters) == 0 {
			return nil, err
		}
		if err != nil {
			// Those in hand are hidden from everybody else by now.
			e.log.WarnContext(ctx, "not all dead letters were read", "err", err)
		}
		if len(got) == 0 {
			break
		}
		for _, d := range got {
			// A message that was buried twice is two letters with one id.
			if !slices.ContainsFunc(letters, func(l queue.DeadLetter) bool { return l.ID == d.ID }) {
				letters = append(letters, d)
			}
		}
	}
	return letters, nil
}

func (e *Engine) receiveDead(ctx context.Context, max int) (letters []queue.DeadLetter, err error) {
	var out *sqs.ReceiveMessageOutput
	err = e.at(ctx, "ReceiveMessage", Dead, deadWait, func(ctx context.Context, url string) error {
		out, err = e.api.poll.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: int32(max), WaitTimeSeconds: seconds(deadWait), VisibilityTimeout: seconds(deadHold),
			MessageAttributeNames: []string{attrQueue, attrReason, attrID},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{
				types.MessageSystemAttributeNameSentTimestamp, types.MessageSystemAttributeNameDeadLetterQueueSourceArn},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(deadHold)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range out.Messages {
		d := e.letter(m)
		e.dead[d.ID] = append(e.dead[d.ID], held{aws.ToString(m.ReceiptHandle), until})
		letters = append(letters, d)
	}
	return letters, nil
}

// letter reads a message of the queue of dead letters.
func (e *Engine) letter(m types.Message) queue.DeadLetter {
	attr := func(name string) string { return aws.ToString(m.MessageAttributes[name].StringValue) }
	d := queue.DeadLetter{ID: aws.ToString(m.MessageId), Queue: Dead, Body: []byte(aws.ToString(m.Body)), Reason: ReasonForeign, At: time.Now()}
	if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
		d.At = time.UnixMilli(ms)
	}
	switch source := m.Attributes[string(types.MessageSystemAttributeNameDeadLetterQueueSourceArn)]; {
	case attr(attrQueue) != "":
		d.Queue, d.Reason = attr(attrQueue), attr(attrReason)
		if id := attr(attrID); id != "" {
			d.ID = id
		}
	case source != "":
		// The last part of an SQS ARN is the queue's name.
		d.Queue = strings.TrimPrefix(source[strings.LastIndexByte(source, ':')+1:], e.prefix)
		d.Reason = ReasonMaxReceives
	}
	return d
}

// forgetHeld drops receipts that are good no more.
func (e *Engine) forgetHeld(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, receipts := range e.dead {
		if receipts = slices.DeleteFunc(receipts, func(h held) bool { return !now.Before(h.until) }); len(receipts) == 0 {
			delete(e.dead, id)
			continue
		}
		e.dead[id] = receipts
	}
}

// DropDead implements queue.Admin. It knows the letters that this engine handed
// over within the last 5 minutes; others are ignored and come again.
func (e *Engine) DropDead(ctx context.Context, ids ...string) error {
	var receipts []string
	e.mu.Lock()
	for _, id := range ids {
		for _, h := range e.dead[id] {
			receipts = append(receipts, h.receipt)
		}
	}
	e.mu.Unlock()
	for batch := range slices.Chunk(receipts, queue.MaxBatch) {
		if err := e.Delete(ctx, Dead, batch...); err != nil {
			return fmt.Errorf("drop dead letters: %w", err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		delete(e.dead, id)
	}
	return nil
}
