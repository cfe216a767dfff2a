package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

func TestLocate(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]place{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/opsplane-prod-x": {region: "eu-central-1"},
		"https://SQS.US-GOV-WEST-1.amazonaws.com/123456789012/q":              {region: "us-gov-west-1"},
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q":              {region: "cn-north-1"},
		"https://sqs.us-east-1.api.aws/123456789012/q":                        {region: "us-east-1"},
		"https://us-west-2.queue.amazonaws.com/123456789012/q":                {region: "us-west-2"},
		"https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com/123456789012/q":  {region: "us-east-1", endpoint: "https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com"},
		"https://queues.example:8443/1/q":                                     {endpoint: "https://queues.example:8443"},
		"http://127.0.0.1:4566/000000000000/q":                                {endpoint: "http://127.0.0.1:4566"},
		"http://localhost:4566/000000000000/q":                                {endpoint: "http://localhost:4566"},
		"https://sqs.us-east-1.amazonaws.com.evil.example/1/q":                {endpoint: "https://sqs.us-east-1.amazonaws.com.evil.example"},
		"https://sqs.us-east-1.amazonaws.com:444/1/q":                         {endpoint: "https://sqs.us-east-1.amazonaws.com:444"},
	} {
		if got, err := locate(url, false); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", url, got, err, want)
		}
	}
	for _, url := range []string{
		"", "q", "sqs://x/1/q", "https://", "https:///1/q", "https://u:p@sqs.us-east-1.amazonaws.com/1/q", "https://sqs.us-east-1.amazonaws.com/1/q?x=1",
		"https://sqs.us-east-1.amazonaws.com/1/q#x", "https://sqs.us-east-1.amazonaws.com/", "https://sqs.us-east-1.amazonaws.com/q",
		"http://sqs.us-east-1.amazonaws.com/1/q", "http://10.0.0.1/1/q", "http://localhost.example/1/q", "https://a b/1/q",
	} {
		if got, err := locate(url, false); err == nil {
			t.Errorf("%q is located at %+v", url, got)
		}
	}
	if _, err := locate("http://10.0.0.1:4566/1/q", true); err != nil {
		t.Errorf("with --insecure: %v", err)
	}
}

// bareAWS takes away what the machine may know of AWS.
func bareAWS(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE", "AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestOpenQueue(t *testing.T) {
	bareAWS(t)
	const loopback = "http://127.0.0.1:1/000000000000/q"
	if _, err := opener(t.Context(), options{})(loopback); err == nil || !strings.Contains(err.Error(), "--aws-region") {
		t.Errorf("without a region: %v", err)
	}
	if _, err := opener(t.Context(), options{awsRegion: "us-east-1"})("http://10.0.0.1/1/q"); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("in the clear: %v", err)
	}
	q, err := opener(t.Context(), options{awsRegion: "us-east-1"})(loopback)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Receive(t.Context(), "", 1, 0, time.Minute); !errors.Is(err, loop.ErrQueueRefused) || !errors.Is(err, errNoCredentials) {
		t.Errorf("without credentials: %v", err)
	}
	if _, ok := q.(interface {
		Bury(context.Context, string, queue.Message, string) error
	}); ok {
		t.Error("an agent can bury")
	}
}

// fakeSQS answers the JSON protocol of Amazon SQS (API Reference, "AWS JSON
// protocol"): it keeps messages, and refuses as told.
type fakeSQS struct {
	mu       sync.Mutex
	url      string
	refuse   string // error code
	bodies   []string
	deleted  []string
	receives int
	auth     string // of the last call
}

func (f *fakeSQS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var in struct {
		QueueUrl string
		Entries  []struct{ Id, ReceiptHandle string }
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	f.auth = r.Header.Get("Authorization")
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if f.refuse != "" || in.QueueUrl != f.url {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":"User: arn:aws:sts::1:assumed-role/other is not authorized to perform: sqs:receivemessage"}`, f.refuse)
		return
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	switch action {
	case "ReceiveMessage":
		f.receives++
		type message struct {
			MessageId, ReceiptHandle, Body string
			Attributes                     map[string]string
		}
		var out struct{ Messages []message }
		for i, b := range f.bodies {
			out.Messages = append(out.Messages, message{MessageId: fmt.Sprint("m", i), ReceiptHandle: fmt.Sprint("r", i), Body: b, Attributes: map[string]string{"ApproximateReceiveCount": "1"}})
		}
		f.bodies = nil
		_ = json.NewEncoder(w).Encode(out)
	case "DeleteMessageBatch":
		type entry struct{ Id string }
		var out struct {
			Successful []entry
			Failed     []entry
		}
		for _, e := range in.Entries {
			f.deleted = append(f.deleted, e.ReceiptHandle)
			out.Successful = append(out.Successful, entry{e.Id})
		}
		_ = json.NewEncoder(w).Encode(out)
	default:
		http.Error(w, action, http.StatusNotImplemented)
	}
}

// cloudPlane answers heartbeats with a queue's URL, and every claim with gone.
type cloudPlane struct {
	mu    sync.Mutex
	url   string
	beats int
}

func (p *cloudPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.Copy(io.Discard, r.Body)
	switch r.URL.Path {
	case "/v1/agent/heartbeat":
		p.beats++
		_ = json.NewEncoder(w).Encode(protocol.HeartbeatAnswer{AgentID: "agt_1", Cluster: id.Derive(id.Cluster, "c"), LeaseMS: 30_000, CallDeadlineMS: 10_000, HeartbeatMS: 1000, QueueURL: p.url})
	case "/v1/agent/queue/receive":
		http.Error(w, "an agent on AWS polls here", http.StatusTeapot)
	default:
		http.NotFound(w, r)
	}
}

// The agent signs its calls to the queue that the plane names, with its own
// credentials and for the queue's region, deletes what is done with, and leaves
// what is no doorbell. With another cluster's credentials it stays alive and says
// what is wrong.
func TestAgentOnSQS(t *testing.T) {
	bareAWS(t)
	t.Setenv(TokenEnv, "opt_test")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDTESTTESTTEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-agent")
	bell, err := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: protocol.KindAttention, Operation: id.Derive(id.Operation, "o"), Cluster: id.Derive(id.Cluster, "c")})
	if err != nil {
		t.Fatal(err)
	}
	q := &fakeSQS{refuse: "AccessDenied", bodies: []string{string(bell), "no doorbell"}}
	sqsServer := httptest.NewServer(q)
	defer sqsServer.Close()
	q.url = sqsServer.URL + "/123456789012/opsplane-test-c"
	p := &cloudPlane{url: q.url}
	plane := httptest.NewServer(p)
	defer plane.Close()

	stdin, stop := io.Pipe()
	var log syncBuffer
	code := make(chan int)
	go func() {
		code <- Main(t.Context(), []string{"--plane", plane.URL, "--name", "a1", "--sim-state", t.TempDir(), "--aws-region", "eu-west-3", "--parent-pipe"}, stdin, &log, Sim())
	}()
	eventually(t, "a refusal in the log", func() bool {
		return strings.Contains(log.String(), "refuses this agent's credentials") && strings.Contains(log.String(), "assumed-role/other")
	})
	p.mu.Lock()
	beats := p.beats
	p.url = q.url + "-moved" // the plane registers the cluster anew
	p.mu.Unlock()
	q.mu.Lock()
	q.refuse, q.url = "", q.url+"-moved"
	q.mu.Unlock()
	eventually(t, "the doorbell deleted", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.deleted) == 1
	})
	_ = stop.Close()
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, log.String())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted[0] != "r0" || len(q.deleted) != 1 {
		t.Errorf("deleted %q, want the doorbell alone", q.deleted)
	}
	if !strings.Contains(q.auth, "AKIDTESTTESTTEST/") || !strings.Contains(q.auth, "/eu-west-3/sqs/") {
		t.Errorf("signed as %q", q.auth)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if beats == 0 || p.beats <= beats {
		t.Errorf("%d heartbeats, %d while the queue refused", p.beats, beats)
	}
	for _, secret := range []string{"opt_test", "secret-of-the-agent"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
}
