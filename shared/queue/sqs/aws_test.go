//go:build awstest

package sqs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/queuetest"
)

// localStackEnv names a second local AWS, of another make; everything here runs
// on it too when it is set.
const localStackEnv = "OPSPLANE_LOCALSTACK_URL"

// TestMain runs more tests at once than there are cores, since most of them wait;
// -parallel still has the last word.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	m.Run()
}

// onEach runs a test against the local AWS, and the second one.
func onEach(t *testing.T, run func(t *testing.T, c *sqs.Client)) {
	t.Parallel()
	endpoint := os.Getenv(awsclient.EndpointEnv)
	if endpoint == "" {
		t.Fatal(awsclient.EndpointEnv + " is not set: these tests need the local AWS")
	}
	endpoints := map[string]string{"aws": endpoint}
	if second, ok := os.LookupEnv(localStackEnv); ok {
		endpoints["localstack"] = second
	}
	for name, endpoint := range endpoints {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := awsclient.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			run(t, sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint = &endpoint }))
		})
	}
}

// engine makes an engine with queues of its own, whose queue of dead letters
// exists.
func engine(t *testing.T, c *sqs.Client) *Engine {
	t.Helper()
	e := New(Options{Client: c, Prefix: "t-" + strings.ToLower(rand.Text()[:10]) + "-"})
	ensure(t, e, Dead)
	return e
}

func ensure(t *testing.T, e *Engine, name string) {
	t.Helper()
	if err := e.Ensure(t.Context(), name); err != nil {
		t.Fatalf("Ensure: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := e.Remove(ctx, name); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
}

func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		queuetest.Run(t, func(t *testing.T) queue.Queue { return engine(t, c) }, queuetest.Options{})
	})
}

// agentSide receives as an agent does, by URL.
type agentSide struct {
	*Engine
	c *sqs.Client
}

func (a agentSide) receiver(ctx context.Context, name string) (*Receiver, error) {
	url, err := a.QueueURL(ctx, name)
	return NewReceiver(a.c, url), err
}

func (a agentSide) Receive(ctx context.Context, name string, max int, wait, visibility time.Duration) ([]queue.Message, error) {
	r, err := a.receiver(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.Receive(ctx, "", max, wait, visibility)
}

func (a agentSide) Delete(ctx context.Context, name string, receipts ...string) error {
	r, err := a.receiver(ctx, name)
	if err != nil {
		return err
	}
	return r.Delete(ctx, "", receipts...)
}

func (a agentSide) Extend(ctx context.Context, name, receipt string, d time.Duration) error {
	r, err := a.receiver(ctx, name)
	if err != nil {
		return err
	}
	return r.Extend(ctx, "", receipt, d)
}

func TestConformanceOfReceiver(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		queuetest.Run(t, func(t *testing.T) queue.Queue { return agentSide{engine(t, c), c} }, queuetest.Options{Messages: 200})
	})
}

func TestEnsure(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		e := engine(t, c)
		ensure(t, e, "cluster-east")
		if err := e.Ensure(t.Context(), "cluster-east"); err != nil {
			t.Errorf("a second time: %v", err)
		}
		arn, err := e.QueueARN(t.Context(), "cluster-east")
		if err != nil || !strings.HasSuffix(arn, ":"+e.prefix+"cluster-east") {
			t.Fatalf("ARN %s, %v", arn, err)
		}
		dead, err := e.QueueARN(t.Context(), Dead)
		if err != nil {
			t.Fatal(err)
		}
		url, err := e.QueueURL(t.Context(), "cluster-east")
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"SqsManagedSseEnabled": "true", "MessageRetentionPeriod": "345600", "VisibilityTimeout": "60", "ReceiveMessageWaitTimeSeconds": "0", "Policy": string(tlsOnly(arn))} {
			if got := out.Attributes[name]; got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		var redrive struct {
			To string      `json:"deadLetterTargetArn"`
			N  json.Number `json:"maxReceiveCount"`
		}
		if err := json.Unmarshal([]byte(out.Attributes["RedrivePolicy"]), &redrive); err != nil || redrive.To != dead || redrive.N != number5 {
			t.Errorf("redrive policy %s, %v", out.Attributes["RedrivePolicy"], err)
		}
		tags, err := c.ListQueueTags(t.Context(), &sqs.ListQueueTagsInput{QueueUrl: &url})
		if err != nil || tags.Tags["application"] != "opsplane" || tags.Tags["opsplane:queue"] != "cluster-east" {
			t.Errorf("tags %v, %v", tags, err)
		}
	})
}

// TestEnsureLeavesWhatExists: the template's queues have settings of their own.
func TestEnsureLeavesWhatExists(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		e := engine(t, c)
		full := e.prefix + "sweep"
		made, err := c.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &full, Attributes: map[string]string{"VisibilityTimeout": "77"}})
		if err != nil {
			t.Fatal(err)
		}
		ensure(t, e, "sweep")
		out, err := c.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameVisibilityTimeout}})
		if err != nil || out.Attributes["VisibilityTimeout"] != "77" {
			t.Errorf("the queue was changed: %v, %v", out, err)
		}
	})
}

const number5 = json.Number("5") // queue.MaxReceives

// TestDeletedQueue: somebody deleted the queue behind the engine's and the
// agent's back.
func TestDeletedQueue(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		e := engine(t, c)
		ensure(t, e, "q")
		url, err := e.QueueURL(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: &url}); err != nil {
			t.Fatal(err)
		}
		if err := e.Send(t.Context(), "q", queue.Outgoing{Body: []byte("x")}); !errors.Is(err, queue.ErrNoQueue) {
			t.Errorf("send: %v, want ErrNoQueue", err)
		}
		r := NewReceiver(c, url)
		_, err = r.Receive(t.Context(), "", 1, time.Second, time.Minute)
		for call, err := range map[string]error{"receive": err, "delete": r.Delete(t.Context(), "", "x"), "extend": r.Extend(t.Context(), "", "x", time.Second)} {
			if !errors.Is(err, queue.ErrNoQueue) {
				t.Errorf("%s: %v, want ErrNoQueue", call, err)
			}
		}
	})
}

// TestDeadLetters: what was put aside twice has one id, what somebody else put
// on the queue of dead letters is handed over too, and all of it can be dropped.
func TestDeadLetters(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		ctx, e := t.Context(), engine(t, c)
		ensure(t, e, "q")
		if err := e.Send(ctx, "q", queue.Outgoing{Body: []byte("odd")}); err != nil {
			t.Fatal(err)
		}
		ms, err := e.Receive(ctx, "q", 1, 5*time.Second, time.Minute)
		if err != nil || len(ms) != 1 {
			t.Fatalf("%d messages, %v", len(ms), err)
		}
		// As if the delete had not come through: the letter is there twice.
		again := ms[0]
		if err := errors.Join(e.Extend(ctx, "q", again.Receipt, 0), e.Send(ctx, Dead, queue.Outgoing{Body: []byte("foreign")})); err != nil {
			t.Fatal(err)
		}
		if ms, err = e.Receive(ctx, "q", 1, 5*time.Second, time.Minute); err != nil || len(ms) != 1 || ms[0].ID != again.ID {
			t.Fatalf("%d messages, %v", len(ms), err)
		}
		stray := queue.Message{ID: again.ID, Body: again.Body, Receipt: ms[0].Receipt}
		if err := e.Send(ctx, "q", queue.Outgoing{Body: []byte("other")}); err != nil {
			t.Fatal(err)
		}
		other, err := e.Receive(ctx, "q", 1, 5*time.Second, time.Minute)
		if err != nil || len(other) != 1 {
			t.Fatalf("%d messages, %v", len(other), err)
		}
		copied := queue.Message{ID: again.ID, Body: again.Body, Receipt: other[0].Receipt}
		if err := errors.Join(e.Bury(ctx, "q", stray, "first"), e.Bury(ctx, "q", copied, "first")); err != nil {
			t.Fatal(err)
		}
		letters, err := e.TakeDead(ctx, 50)
		if err != nil || len(letters) != 2 {
			t.Fatalf("%d letters, %v: %v", len(letters), err, letters)
		}
		slices.SortFunc(letters, func(a, b queue.DeadLetter) int { return strings.Compare(a.Reason, b.Reason) })
		if d := letters[0]; d.ID != again.ID || d.Queue != "q" || d.Reason != "first" || !bytes.Equal(d.Body, []byte("odd")) {
			t.Errorf("letter %+v", d)
		}
		if d := letters[1]; d.Queue != Dead || d.Reason != ReasonForeign || !bytes.Equal(d.Body, []byte("foreign")) {
			t.Errorf("letter %+v", d)
		}
		if err := e.DropDead(ctx, letters[0].ID, letters[1].ID); err != nil {
			t.Fatal(err)
		}
		if n, err := e.Depth(ctx, Dead); n != 0 || err != nil {
			t.Errorf("%d letters left, %v", n, err)
		}
		if err := e.Bury(ctx, "q", stray, "again"); err != nil && !errors.Is(err, queue.ErrStaleReceipt) {
			t.Errorf("bury what is gone: %v", err)
		}
	})
}
