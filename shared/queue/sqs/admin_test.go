package sqs

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/queue"
)

const east = "arn:aws:sqs:us-east-1:123456789012:p-cluster-east"

func TestEnsureAsks(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	if err := f.engine().Ensure(t.Context(), "cluster-east"); err != nil {
		t.Fatal(err)
	}
	in := f.made("CreateQueue")[0].in
	attributes := in["Attributes"].(map[string]any)
	var redrive map[string]any
	if err := json.Unmarshal([]byte(attributes["RedrivePolicy"].(string)), &redrive); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:p-dead", "maxReceiveCount": float64(queue.MaxReceives)}, redrive); diff != "" {
		t.Errorf("redrive policy (-want +got):\n%s", diff)
	}
	if got, want := attributes["Policy"], string(tlsOnly(east)); got != want {
		t.Errorf("policy %s, want %s", got, want)
	}
	delete(attributes, "RedrivePolicy")
	delete(attributes, "Policy")
	// No wait of its own: see the package's doc.
	want := map[string]any{"QueueName": "p-cluster-east", "Attributes": map[string]any{"SqsManagedSseEnabled": "true", "MessageRetentionPeriod": "345600", "VisibilityTimeout": "60"},
		"tags": map[string]any{"application": "opsplane", "opsplane:queue": "cluster-east"}}
	if diff := cmp.Diff(want, in); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestEnsureDead(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	if err := f.engine().Ensure(t.Context(), Dead); err != nil {
		t.Fatal(err)
	}
	attributes := f.made("CreateQueue")[0].in["Attributes"].(map[string]any)
	want := map[string]any{"SqsManagedSseEnabled": "true", "MessageRetentionPeriod": "1209600", "VisibilityTimeout": "60"}
	if diff := cmp.Diff(want, attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

func TestEnsureFailures(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"QueueNameExists":                             nil, // by the template, with settings of its own
		"QueueAlreadyExists":                          nil,
		"QueueDeletedRecently":                        queue.ErrUnavailable,
		"AWS.SimpleQueueService.QueueDeletedRecently": queue.ErrUnavailable,
		"InvalidAttributeValue":                       queue.ErrInvalid,
		"AccessDenied":                                ErrRefused,
	} {
		f := newFake(t)
		f.answer["CreateQueue"] = refuse(400, code, "")
		err := f.engine().Ensure(t.Context(), "q")
		if want == nil && err != nil || !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", code, err, want)
		}
		if strings.HasSuffix(code, "QueueDeletedRecently") && !strings.Contains(err.Error(), "60 s") {
			t.Errorf("%s: %v does not say how long to wait", code, err)
		}
	}
	f := newFake(t)
	f.answer["GetQueueUrl"] = refuse(400, "QueueDoesNotExist", "")
	if err := f.engine().Ensure(t.Context(), "q"); !errors.Is(err, queue.ErrNoQueue) || !strings.Contains(err.Error(), "dead letters") {
		t.Errorf("without a queue of dead letters: %v", err)
	}
	if n := len(f.made("CreateQueue")); n > 0 {
		t.Error("made a queue whose dead letters go nowhere")
	}
}

func TestRemoveForgets(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	e := f.engine()
	if err := errors.Join(e.Ensure(t.Context(), "q"), e.Remove(t.Context(), "q")); err != nil {
		t.Fatal(err)
	}
	f.answer["GetQueueUrl"] = refuse(400, "QueueDoesNotExist", "")
	if _, err := e.QueueURL(t.Context(), "q"); !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("a removed queue has a URL: %v", err)
	}
	if err := e.Remove(t.Context(), "q"); err != nil {
		t.Errorf("Remove of a queue that is gone: %v", err)
	}
}

func TestDepthAddsUp(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	attributes := map[string]any{"ApproximateNumberOfMessages": "3", "ApproximateNumberOfMessagesNotVisible": "4", "ApproximateNumberOfMessagesDelayed": "5"}
	f.answer["GetQueueAttributes"] = func(map[string]any) answer { return answer{body: map[string]any{"Attributes": attributes}} }
	if n, err := f.engine().Depth(t.Context(), "q"); n != 12 || err != nil {
		t.Errorf("depth %d, %v; want 12", n, err)
	}
	delete(attributes, "ApproximateNumberOfMessagesDelayed")
	if _, err := f.engine().Depth(t.Context(), "q"); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("half an answer: %v", err)
	}
}

// TestPolicies: what is written here is what a person reads in the console.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for want, got := range map[string][]byte{
		`{"Version":"2012-10-17","Statement":[{"Sid":"PollOwnQueue","Effect":"Allow","Action":["sqs:ReceiveMessage","sqs:DeleteMessage","sqs:ChangeMessageVisibility"],"Resource":"` + east + `"}]}`:       AgentPolicy(east),
		`{"Version":"2012-10-17","Statement":[{"Sid":"DenyPlainHTTP","Effect":"Deny","Principal":"*","Action":["sqs:*"],"Resource":"` + east + `","Condition":{"Bool":{"aws:SecureTransport":"false"}}}]}`: tlsOnly(east),
	} {
		if string(got) != want {
			t.Errorf("policy %s\nwant   %s", got, want)
		}
	}
}
