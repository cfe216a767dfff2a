package sqs

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

const fakeURL = "https://sqs.us-east-1.amazonaws.com/123456789012/"

// fake is SQS as far as a test needs it, in place of the HTTP client. It keeps
// every request and answers by the test's functions, else as SQS does when all
// is well.
type fake struct {
	t      *testing.T
	answer map[string]func(in map[string]any) answer

	mu    sync.Mutex
	calls []request
}

type request struct {
	action string
	in     map[string]any
}

// answer is an HTTP answer: a body and status 200 when status is 0, or an error
// code with its status; or err, when none came.
type answer struct {
	status int
	code   string
	text   string
	body   map[string]any
	err    error
}

func refuse(status int, code, text string) func(map[string]any) answer {
	return func(map[string]any) answer { return answer{status: status, code: code, text: text} }
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, answer: map[string]func(map[string]any) answer{}}
}

func (f *fake) client(with ...func(*sqs.Options)) *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("AKIAIOSFODNN7EXAMPLE", "secret", ""),
		HTTPClient: f, RetryMaxAttempts: 1,
	}, with...)
}

func (f *fake) engine() *Engine { return New(Options{Client: f.client(), Prefix: "p-"}) }

// Do implements the SDK's HTTP client.
func (f *fake) Do(r *http.Request) (*http.Response, error) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.calls = append(f.calls, request{action, in})
	f.mu.Unlock()
	a := answer{}
	if fn := f.answer[action]; fn != nil {
		a = fn(in)
	} else {
		a.body = f.well(action, in)
	}
	if a.err != nil {
		return nil, a.err
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	if a.code != "" {
		a.body = map[string]any{"__type": "com.amazonaws.sqs#" + a.code, "message": a.text}
	}
	b, err := json.Marshal(a.body)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/x-amz-json-1.0"}}
	return &http.Response{StatusCode: a.status, Header: header, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
}

func (f *fake) well(action string, in map[string]any) map[string]any {
	switch action {
	case "GetQueueUrl", "CreateQueue":
		return map[string]any{"QueueUrl": fakeURL + in["QueueName"].(string)}
	case "GetQueueAttributes":
		url := in["QueueUrl"].(string)
		return map[string]any{"Attributes": map[string]any{"QueueArn": "arn:aws:sqs:us-east-1:123456789012:" + url[strings.LastIndex(url, "/")+1:]}}
	case "SendMessage":
		return map[string]any{"MessageId": "m", "MD5OfMessageBody": sum(in["MessageBody"].(string))}
	case "SendMessageBatch", "DeleteMessageBatch":
		return batch(in)
	}
	return map[string]any{}
}

// batch answers a batch: all well but for the entries in failed, by their id.
func batch(in map[string]any, failed ...map[string]any) map[string]any {
	bad := map[string]bool{}
	for _, e := range failed {
		bad[e["Id"].(string)] = true
	}
	var ok []map[string]any
	for _, e := range entriesOf(in) {
		id := e["Id"].(string)
		if bad[id] {
			continue
		}
		done := map[string]any{"Id": id}
		if body, is := e["MessageBody"].(string); is {
			done["MessageId"], done["MD5OfMessageBody"] = "m-"+id, sum(body)
		}
		ok = append(ok, done)
	}
	return map[string]any{"Successful": ok, "Failed": failed}
}

func fail(id, code string, sender bool) map[string]any {
	return map[string]any{"Id": id, "Code": code, "SenderFault": sender, "Message": "because"}
}

func entriesOf(in map[string]any) []map[string]any {
	var out []map[string]any
	for _, e := range in["Entries"].([]any) {
		out = append(out, e.(map[string]any))
	}
	return out
}

// message is one of a receive's answer.
func message(id, body string, attributes map[string]string, own map[string]string) map[string]any {
	attrs := map[string]any{}
	for k, v := range own {
		attrs[k] = map[string]any{"DataType": "String", "StringValue": v}
	}
	return map[string]any{"MessageId": id, "ReceiptHandle": "r-" + id, "Body": body, "MD5OfBody": sum(body), "Attributes": attributes, "MessageAttributes": attrs}
}

func sum(s string) string {
	h := md5.Sum([]byte(s))
	return hex.EncodeToString(h[:])
}

// made lists the requests so far, or those of an action.
func (f *fake) made(action string) []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []request
	for _, c := range f.calls {
		if action == "" || c.action == action {
			out = append(out, c)
		}
	}
	return out
}

func ids(in map[string]any) string {
	var out []string
	for _, e := range entriesOf(in) {
		out = append(out, e["Id"].(string))
	}
	return strings.Join(out, ",")
}

var errReset = errors.New("connection reset by peer")

func number(n int) string { return strconv.Itoa(n) }

var _ aws.HTTPClient = (*fake)(nil)
