//go:build awstest

package awstest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dbtypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/worker"
)

// deadLetter is a dead letter as the API shows it.
type deadLetter struct {
	ID     string `json:"id"`
	Queue  string `json:"queue"`
	Body   string `json:"body"`
	Reason string `json:"reason"`
}

// buried waits until a dead letter with the text in its body is shown. The sweep
// files them at its tick, once a minute.
func (p *plane) buried(text string) deadLetter {
	p.tb.Helper()
	var found deadLetter
	eventually(p.tb, 100*time.Second, "a dead letter with "+text, func() bool {
		for _, d := range list[deadLetter](p, "/v1/dead-letters") {
			if strings.Contains(d.Body, text) {
				found = d
				return true
			}
		}
		return false
	})
	return found
}

// queueURL is the cluster's queue as SQS knows it.
func (p *plane) queueURL(c *sqs.Client, cl rig.Cluster) *string {
	p.tb.Helper()
	out, err := c.GetQueueUrl(p.tb.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(p.prefix() + cl.Queue)})
	if err != nil {
		p.tb.Fatal(err)
	}
	return out.QueueUrl
}

// TestForeignMessages: what others put on a cluster's queue holds no operation
// up, is never deleted, and ends among the dead letters once it was received as
// often as the seam allows.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	p, queues := deployed(t), sqs.NewFromConfig(sdk(t))
	c, nodes := p.idleCluster("foreign", 1)
	url := p.queueURL(queues, c)
	text := unique("not-a-doorbell")
	for _, body := range []string{text, `{"version":99,"kind":"` + text + `"}`} {
		if _, err := queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url, MessageBody: &body}); err != nil {
			t.Fatal(err)
		}
	}
	p.agent(c, world(t, 1, false))
	o := p.create(request{Type: "node.cordon", Target: nodes[0].ID, Reason: "beside foreign messages"})
	if done := p.finish(o.ID, 30*time.Second); done.Phase != operation.Succeeded {
		t.Fatalf("beside foreign messages: %s %+v", done.Phase, done.Result)
	}

	alone := p.register("impatient") // nobody else reads this one
	url = p.queueURL(queues, alone)
	lost := unique("nobody-reads-this")
	if _, err := queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: url, MessageBody: &lost}); err != nil {
		t.Fatal(err)
	}
	for n := 0; n <= queue.MaxReceives; n++ { // at the last one SQS moves it instead
		got, err := queues.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 1, VisibilityTimeout: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			in := &sqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0}
			if _, err := queues.ChangeMessageVisibility(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d := p.buried(lost); d.Queue != alone.Queue || d.Reason == "" {
		t.Errorf("the dead letter says queue %q, reason %q; want queue %q", d.Queue, d.Reason, alone.Queue)
	}
}

// TestDeletedQueue: an operation whose cluster's queue somebody deleted waits and
// ends at its deadline; the cluster can still be taken away.
func TestDeletedQueue(t *testing.T) {
	t.Parallel()
	p, queues := deployed(t), sqs.NewFromConfig(sdk(t))
	c, nodes := p.idleCluster("unrung", 1)
	url := p.queueURL(queues, c)
	if _, err := queues.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: url}); err != nil {
		t.Fatal(err)
	}
	o := p.create(request{Type: "node.cordon", Target: nodes[0].ID, Reason: "no queue", Deadline: in(5 * time.Second)})
	if done := p.finish(o.ID, 30*time.Second); done.Phase != operation.TimedOut {
		t.Errorf("without a queue it ended as %s: %+v", done.Phase, done.Result)
	}
	if a := p.call("DELETE", "/v1/clusters/"+c.ID, nil); a.Status >= 300 {
		t.Errorf("delete the cluster: %d %s", a.Status, a.Body)
	}
}

// TestQueueGoesWithItsCluster: the queue is made with the cluster and deleted with
// it.
func TestQueueGoesWithItsCluster(t *testing.T) {
	t.Parallel()
	p, queues := deployed(t), sqs.NewFromConfig(sdk(t))
	c := p.register("shortlived")
	p.queueURL(queues, c)
	if a := p.call("DELETE", "/v1/clusters/"+c.ID, nil); a.Status >= 300 {
		t.Fatalf("delete the cluster: %d %s", a.Status, a.Body)
	}
	eventually(t, 10*time.Second, "the queue is gone", func() bool {
		_, err := queues.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(p.prefix() + c.Queue)})
		var gone *sqstypes.QueueDoesNotExist
		return errors.As(err, &gone)
	})
}

// TestUnreadableRecord: an item that no ledger wrote comes down the stream; it is
// kept where people look, and what else comes goes on.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	p, db := deployed(t), dynamodb.NewFromConfig(sdk(t))
	n := p.idleNodes("unreadable", 1)[0]
	key := unique("garbled")
	_, err := db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String("opsplane-" + p.stage), Item: map[string]dbtypes.AttributeValue{
		"pk": &dbtypes.AttributeValueMemberS{Value: "garbled"}, "sk": &dbtypes.AttributeValueMemberS{Value: key},
		"v": &dbtypes.AttributeValueMemberS{Value: "not a number"}, "f": &dbtypes.AttributeValueMemberN{Value: "1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	o := p.create(request{Type: "node.cordon", Target: n.ID, Reason: "beside a record that cannot be read", Deadline: in(time.Minute)})
	p.until(o.ID, 20*time.Second, "dispatched", func(o op) bool { return o.Phase == operation.Dispatched })
	if d := p.buried(key); d.Queue != worker.StreamQueue || !strings.HasPrefix(d.Reason, "unreadable") {
		t.Errorf("the dead letter says queue %q, reason %q", d.Queue, d.Reason)
	}
}
