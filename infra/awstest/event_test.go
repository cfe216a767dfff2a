//go:build awstest

package awstest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	ebtypes "github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// usersRule is the pattern of the docs' worked example.
const usersRule = `{"source":["opsplane"],"detail-type":["operation.timed_out"]}`

// TestUsersRule: a rule that a user attached to the bus brings the timeout of an
// operation into a queue of theirs, and nothing else.
func TestUsersRule(t *testing.T) {
	t.Parallel()
	p, cfg := deployed(t), sdk(t)
	ctx := t.Context()
	queues, rules := sqs.NewFromConfig(cfg), eventbridge.NewFromConfig(cfg)
	name, bus := unique("alerts"), aws.String("opsplane-"+p.stage)
	q, err := queues.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	attributes, err := queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: q.QueueUrl, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameQueueArn}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rules.PutRule(ctx, &eventbridge.PutRuleInput{Name: &name, EventBusName: bus, EventPattern: aws.String(usersRule)}); err != nil {
		t.Fatal(err)
	}
	arn := attributes.Attributes[string(sqstypes.QueueAttributeNameQueueArn)]
	out, err := rules.PutTargets(ctx, &eventbridge.PutTargetsInput{Rule: &name, EventBusName: bus, Targets: []ebtypes.Target{{Id: aws.String("queue"), Arn: &arn}}})
	if err != nil || out.FailedEntryCount != 0 {
		t.Fatalf("put target: %v %+v", err, out)
	}
	n := p.idleNodes("rule", 1)[0]
	o := p.create(request{Type: "node.cordon", Target: n.ID, Reason: "nobody is there", Deadline: in(3 * time.Second)})

	type told struct {
		Source     string          `json:"source"`
		DetailType string          `json:"detail-type"`
		Detail     json.RawMessage `json:"detail"`
	}
	eventually(t, 40*time.Second, "operation.timed_out in the user's queue", func() bool {
		got, err := queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: q.QueueUrl, WaitTimeSeconds: 5, MaxNumberOfMessages: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			var e told
			var about struct {
				Type   string `json:"type"`
				Detail struct {
					Operation string `json:"operation"`
				} `json:"detail"`
			}
			if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &e); err != nil {
				t.Fatalf("%v in %s", err, aws.ToString(m.Body))
			}
			if e.Source != "opsplane" || e.DetailType != "operation.timed_out" {
				t.Fatalf("the rule let through %s", aws.ToString(m.Body))
			}
			if err := json.Unmarshal(e.Detail, &about); err != nil {
				t.Fatalf("%v in %s", err, e.Detail)
			}
			t.Logf("%s", e.Detail)
			if about.Detail.Operation == o.ID {
				return true
			}
		}
		return false
	})
}
