//go:build awstest

package eventbridge

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/bus/bustest"
)

// localStackEnv names a second local AWS, of another make; everything here runs
// on it too when it is set.
const localStackEnv = "OPSPLANE_LOCALSTACK_URL"

// cloud is one local AWS.
type cloud struct {
	events *eventbridge.Client
	queues *sqs.Client
}

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
func onEach(t *testing.T, run func(t *testing.T, c cloud)) {
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
			run(t, cloud{
				eventbridge.NewFromConfig(c, func(o *eventbridge.Options) { o.BaseEndpoint = &endpoint }),
				sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint = &endpoint }),
			})
		})
	}
}

func name() string { return "t-" + strings.ToLower(rand.Text()[:12]) }

// undo runs when the test has ended.
func undo(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := f(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
}

// bus makes a bus and its publisher.
func (c cloud) bus(t *testing.T) *Bus {
	t.Helper()
	n := name()
	if _, err := c.events.CreateEventBus(t.Context(), &eventbridge.CreateEventBusInput{Name: &n}); err != nil {
		t.Fatal(err)
	}
	undo(t, "delete bus", func(ctx context.Context) error {
		_, err := c.events.DeleteEventBus(ctx, &eventbridge.DeleteEventBusInput{Name: &n})
		return err
	})
	return New(Options{Client: c.events, Bus: n})
}

// rule makes a rule of a user's own to a queue of its own, and returns the
// queue's URL.
func (c cloud) rule(t *testing.T, busName string, p bus.Pattern) string {
	t.Helper()
	ctx, n := t.Context(), name()
	made, err := c.queues.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &n, Attributes: map[string]string{"VisibilityTimeout": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	undo(t, "delete queue", func(ctx context.Context) error {
		_, err := c.queues.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
		return err
	})
	got, err := c.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn}})
	if err != nil {
		t.Fatal(err)
	}
	arn := got.Attributes["QueueArn"]
	put, err := c.events.PutRule(ctx, &eventbridge.PutRuleInput{Name: &n, EventBusName: &busName, EventPattern: aws.String(pattern(t, p))})
	if err != nil {
		t.Fatal(err)
	}
	undo(t, "delete rule", func(ctx context.Context) error {
		if _, err := c.events.RemoveTargets(ctx, &eventbridge.RemoveTargetsInput{Rule: &n, EventBusName: &busName, Ids: []string{"queue"}}); err != nil {
			return err
		}
		_, err := c.events.DeleteRule(ctx, &eventbridge.DeleteRuleInput{Name: &n, EventBusName: &busName})
		return err
	})
	policy := encode(t, map[string]any{"Version": "2012-10-17", "Statement": []any{map[string]any{"Effect": "Allow", "Principal": map[string]any{"Service": "events.amazonaws.com"},
		"Action": "sqs:SendMessage", "Resource": arn, "Condition": map[string]any{"ArnEquals": map[string]any{"aws:SourceArn": *put.RuleArn}}}}})
	if _, err := c.queues.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: made.QueueUrl, Attributes: map[string]string{"Policy": policy}}); err != nil {
		t.Fatal(err)
	}
	targets, err := c.events.PutTargets(ctx, &eventbridge.PutTargetsInput{Rule: &n, EventBusName: &busName, Targets: []types.Target{{Id: aws.String("queue"), Arn: &arn}}})
	if err != nil || targets.FailedEntryCount > 0 {
		t.Fatalf("put target: %v, %v", err, targets)
	}
	return *made.QueueUrl
}

// pattern is the event pattern of a rule.
func pattern(t *testing.T, p bus.Pattern) string {
	m := map[string]any{"source": []string{bus.Source}}
	if prefix, ok := strings.CutSuffix(p.Type, "*"); ok {
		m["detail-type"] = []any{map[string]string{"prefix": prefix}}
	} else if p.Type != "" {
		m["detail-type"] = []string{p.Type}
	}
	return encode(t, m)
}

func encode(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// delivered is what a rule puts on a queue.
type delivered struct {
	Source string          `json:"source"`
	Type   string          `json:"detail-type"`
	Time   time.Time       `json:"time"`
	Detail json.RawMessage `json:"detail"`
}

// read hands what comes on a queue to the handler until the test ends; what it
// fails on comes again.
func (c cloud) read(t *testing.T, url string, h func(context.Context, bus.Message) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	wg.Go(func() {
		for ctx.Err() == nil {
			out, err := c.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 2})
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("receive: %v", err)
				}
				return
			}
			for _, m := range out.Messages {
				var d delivered
				var id struct{ ID string }
				if err := json.Unmarshal([]byte(*m.Body), &d); err != nil {
					t.Errorf("delivered %.200s: %v", *m.Body, err)
					continue
				}
				if err := json.Unmarshal(d.Detail, &id); err != nil || d.Source != bus.Source {
					t.Errorf("delivered %.200s: %v", *m.Body, err)
				}
				if h(ctx, bus.Message{ID: id.ID, Type: d.Type, Time: d.Time, Detail: d.Detail}) != nil {
					continue
				}
				if _, err := c.queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}); err != nil && ctx.Err() == nil {
					t.Errorf("delete: %v", err)
				}
			}
		}
	})
}

// TestConformance: delivery is to a queue behind a rule, as a user of the bus
// has it; the queue is what hands a failed message over again.
func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, c cloud) {
		bustest.Run(t, func(t *testing.T) bustest.Rig {
			b := c.bus(t)
			return bustest.Rig{Publisher: b, Retries: true, Slack: 20 * time.Second,
				Subscribe: func(t *testing.T, p bus.Pattern, h func(context.Context, bus.Message) error) {
					c.read(t, c.rule(t, b.o.Bus, p), h)
				}}
		})
	})
}
