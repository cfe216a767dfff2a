package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/queue"
)

const (
	// retention is how long a doorbell waits that nobody takes: long past the
	// time after which sweep has rung again.
	retention = 4 * 24 * time.Hour
	// deadRetention is the longest that SQS offers. A standard queue counts it
	// from the first send, so it must exceed the other queues'.
	deadRetention = 14 * 24 * time.Hour
	// visibility is the default of a queue; every receive of ours names its own.
	visibility = 60 * time.Second
)

// statement is one of an IAM or queue policy.
type statement struct {
	Sid       string         `json:"Sid"`
	Effect    string         `json:"Effect"`
	Principal string         `json:"Principal,omitempty"`
	Action    []string       `json:"Action"`
	Resource  string         `json:"Resource"`
	Condition map[string]any `json:"Condition,omitempty"`
}

func policy(s statement) []byte {
	b, err := json.Marshal(struct {
		Version   string      `json:"Version"`
		Statement []statement `json:"Statement"`
	}{"2012-10-17", []statement{s}})
	if err != nil {
		panic(fmt.Sprintf("encode policy: %v", err)) // strings always encode
	}
	return b
}

// AgentPolicy is the IAM policy, in JSON, that an agent of the queue's cluster
// needs and no more: receive, delete and extend on its own queue. The batch
// calls are the same actions (Service Authorization Reference, Amazon SQS).
func AgentPolicy(queueARN string) []byte {
	return policy(statement{Sid: "PollOwnQueue", Effect: "Allow", Resource: queueARN,
		Action: []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"}})
}

// tlsOnly is a queue policy that denies what comes over plain HTTP (Amazon SQS
// Developer Guide, security best practices).
func tlsOnly(queueARN string) []byte {
	return policy(statement{Sid: "DenyPlainHTTP", Effect: "Deny", Principal: "*", Resource: queueARN, Action: []string{"sqs:*"},
		Condition: map[string]any{"Bool": map[string]string{"aws:SecureTransport": "false"}}})
}

// Ensure implements queue.Admin: it makes the queue with encryption at rest
// (SSE-SQS), a policy that denies plain HTTP, and its dead letters going to the
// queue Dead, which must exist. Dead itself is made without a policy, which would
// have to name the queue before it is there: on AWS the template makes it, with
// one.
//
// A queue that exists stays as it is. One that was removed less than 60 s ago
// cannot be made yet: queue.ErrUnavailable. SQS asks to wait one second before a
// new queue is used (Amazon SQS API Reference, CreateQueue); until then a call
// may still say queue.ErrNoQueue.
func (e *Engine) Ensure(ctx context.Context, name string) error {
	full, err := e.fullName(name)
	if err != nil {
		return err
	}
	attributes := map[string]string{
		"SqsManagedSseEnabled":   "true",
		"MessageRetentionPeriod": wholeSeconds(retention),
		"VisibilityTimeout":      wholeSeconds(visibility),
	}
	if name == Dead {
		attributes["MessageRetentionPeriod"] = wholeSeconds(deadRetention)
	} else {
		dead, err := e.QueueARN(ctx, Dead)
		if err != nil {
			return fmt.Errorf("make queue %s: find the queue of dead letters: %w", full, err)
		}
		redrive, err := json.Marshal(map[string]any{"deadLetterTargetArn": dead, "maxReceiveCount": queue.MaxReceives})
		if err != nil {
			return fmt.Errorf("make queue %s: %w", full, err)
		}
		attributes["RedrivePolicy"] = string(redrive)
		attributes["Policy"] = string(tlsOnly(strings.TrimSuffix(dead, e.prefix+Dead) + full))
	}
	var url string
	err = e.api.do(ctx, "CreateQueue", full, 0, func(ctx context.Context) error {
		out, err := e.api.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &full, Attributes: attributes,
			Tags: map[string]string{"application": "opsplane", "opsplane:queue": name}})
		if err == nil {
			url = aws.ToString(out.QueueUrl)
		}
		return err
	})
	switch codeOf(err) {
	case "QueueNameExists", "QueueAlreadyExists":
		return nil // made before, by the template or with other settings
	case "QueueDeletedRecently":
		return fmt.Errorf("make queue %s: it was removed less than 60 s ago, try again then: %w", full, err)
	}
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.urls[name] = url
	return nil
}

func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// Remove implements queue.Admin. SQS takes up to 60 s to do it, in which sends
// may still be accepted (Amazon SQS API Reference, DeleteQueue).
func (e *Engine) Remove(ctx context.Context, name string) error {
	defer e.forget(name)
	err := e.at(ctx, "DeleteQueue", name, 0, func(ctx context.Context, url string) error {
		_, err := e.api.client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url})
		return err
	})
	if errors.Is(err, queue.ErrNoQueue) {
		return nil
	}
	return err
}

// counts are the attributes that add up to a queue's depth: what waits, what is
// in flight, what is delayed.
var counts = []types.QueueAttributeName{
	types.QueueAttributeNameApproximateNumberOfMessages,
	types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
	types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
}

// Depth implements queue.Admin. SQS's counts settle within a minute after the
// senders stop.
func (e *Engine) Depth(ctx context.Context, name string) (n int, err error) {
	err = e.at(ctx, "GetQueueAttributes", name, 0, func(ctx context.Context, url string) error {
		out, err := e.api.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: counts})
		if err != nil {
			return err
		}
		n = 0
		for _, a := range counts {
			c, err := strconv.Atoi(out.Attributes[string(a)])
			if err != nil {
				return fmt.Errorf("attribute %s: %w", a, err)
			}
			n += c
		}
		return nil
	})
	return n, err
}
