//go:build awstest

package agentcmd

import (
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

// The agent polls a real queue: it deletes a doorbell, leaves what is none, says
// when the queue is gone, and follows to the next one.
func TestAgentOnRealSQS(t *testing.T) {
	if os.Getenv(awsclient.EndpointEnv) == "" {
		t.Fatalf("%s does not name a local AWS", awsclient.EndpointEnv)
	}
	t.Setenv(TokenEnv, "opt_test")
	ctx := t.Context()
	cfg, err := awsclient.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	client := awssqs.NewFromConfig(cfg)
	queueOf := func(name string) string {
		out, err := client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: aws.String(id.New("opsplane-agenttest-"+name, time.Now()))})
		if err != nil {
			t.Fatal(err)
		}
		return aws.ToString(out.QueueUrl)
	}
	count := func(url string) string {
		out, err := client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}})
		if err != nil {
			return err.Error()
		}
		return out.Attributes["ApproximateNumberOfMessages"] + " visible, " + out.Attributes["ApproximateNumberOfMessagesNotVisible"] + " hidden"
	}
	send := func(url, body string) {
		if _, err := client.SendMessage(ctx, &awssqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}); err != nil {
			t.Fatal(err)
		}
	}
	bell, err := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: protocol.KindAttention, Operation: id.Derive(id.Operation, "o"), Cluster: id.Derive(id.Cluster, "c")})
	if err != nil {
		t.Fatal(err)
	}
	first, second := queueOf("a"), queueOf("b")
	t.Cleanup(func() {
		_, _ = client.DeleteQueue(context.WithoutCancel(ctx), &awssqs.DeleteQueueInput{QueueUrl: &second})
	})
	send(first, string(bell))
	send(first, "no doorbell")

	p := &cloudPlane{url: first}
	plane := httptest.NewServer(p)
	defer plane.Close()
	stdin, stop := io.Pipe()
	var log syncBuffer
	code := make(chan int)
	go func() {
		code <- Main(t.Context(), []string{"--plane", plane.URL, "--name", "a1", "--sim-state", t.TempDir(), "--parent-pipe"}, stdin, &log, Sim())
	}()
	eventually(t, "the doorbell deleted and the other message left, hidden", func() bool { return count(first) == "0 visible, 1 hidden" })
	if !strings.Contains(log.String(), "left to become a dead letter") {
		t.Error("nothing said about the foreign message")
	}
	if _, err := client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &first}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a word about the queue that is gone", func() bool { return strings.Contains(log.String(), "the queue does not exist") })
	send(second, string(bell))
	p.mu.Lock()
	p.url = second
	p.mu.Unlock()
	eventually(t, "the second queue's doorbell deleted", func() bool { return count(second) == "0 visible, 0 hidden" })
	_ = stop.Close()
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, log.String())
	}
}
