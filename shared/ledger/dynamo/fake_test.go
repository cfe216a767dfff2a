package dynamo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/ledger"
)

// quick makes the engine try again at once, and give up soon.
var quick = pauses{attempt: time.Second, budget: 300 * time.Millisecond, settle: 50 * time.Millisecond, base: time.Millisecond, most: 4 * time.Millisecond}

// request is what the engine sent to DynamoDB.
type request struct {
	Op   string // the operation's name
	Raw  string
	Body map[string]any
}

// name is the write's name in the request, base64.
func (r request) name() string {
	_, after, _ := strings.Cut(r.Raw, `":w":{"B":"`)
	name, _, _ := strings.Cut(after, `"`)
	return name
}

// answer is one step of a script.
type answer func(request) (*http.Response, error)

// script is an HTTP client that answers as it was told, the last answer again
// and again.
type script struct {
	mu       sync.Mutex
	answers  []answer
	requests []request
}

func (s *script) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	req := request{Op: op, Raw: string(raw)}
	if err := json.Unmarshal(raw, &req.Body); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	next := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	s.mu.Unlock()
	return next(req)
}

func (s *script) sent() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request(nil), s.requests...)
}

func respond(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{
		"Content-Type": {"application/x-amz-json-1.0"},
		"X-Amz-Crc32":  {strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(body))), 10)}, // as DynamoDB does; the SDK checks it
	}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}, nil
}

func says(status int, body string) answer {
	return func(request) (*http.Response, error) { return respond(status, body) }
}

// fails answers with one of DynamoDB's errors; more is added to its body.
func fails(code, more string) answer {
	return says(http.StatusBadRequest, fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"as the script says"%s}`, code, more))
}

// cancelled answers that a transaction was cancelled for these reasons.
func cancelled(codes ...string) answer {
	reasons := make([]string, len(codes))
	for i, c := range codes {
		reasons[i] = fmt.Sprintf(`{"Code":%q}`, c)
	}
	return fails("TransactionCanceledException", `,"CancellationReasons":[`+strings.Join(reasons, ",")+`]`)
}

var (
	fine = says(http.StatusOK, `{}`)
	lost = func(request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
	// broken is an answer whose end is missing.
	broken = func(request) (*http.Response, error) {
		r, err := respond(http.StatusOK, `{"ConsumedCapacity":{"TableName`)
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader([]byte(`{"Consumed`)), brokenReader{}))
		return r, err
	}
	internal = says(http.StatusInternalServerError, `{"__type":"com.amazonaws.dynamodb.v20120810#InternalServerError","message":"as the script says"}`)
)

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// scripted is an engine over a script.
func scripted(t *testing.T, answers ...answer) (*DB, *script) {
	t.Helper()
	s := &script{answers: answers}
	return over(t, s), s
}

// over is an engine over an HTTP client.
func over(t *testing.T, c aws.HTTPClient) *DB {
	t.Helper()
	client := dynamodb.New(dynamodb.Options{
		Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""), HTTPClient: c,
		Retryer: aws.NopRetryer{}, // a read's own retries are the SDK's affair
	})
	db, err := New(Options{Client: client, Table: "table", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	db.pause = quick
	return db
}

func write(kind ledger.WriteKind, pk, sk string, expect int64) ledger.Write {
	return ledger.Write{Kind: kind, Item: ledger.Item{Key: ledger.Key{PK: pk, SK: sk}, Data: []byte("x")}, Expect: expect}
}
