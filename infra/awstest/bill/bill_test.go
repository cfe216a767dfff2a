package bill

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// server answers every call with one text.
type server struct {
	status int
	answer string
}

func (s *server) Do(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: s.status, Body: io.NopCloser(strings.NewReader(s.answer))}, nil
}

var _ aws.HTTPClient = (*server)(nil)

// send makes a call through the meter.
func send(t *testing.T, m *Meter, target, body string, status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Target", target)
	resp, err := m.Client(&server{status, answer}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
}

const dynamodb = "DynamoDB_20120810."

// item is an item of about n bytes with a place in the list index.
func item(sk string, n int, place string) string {
	b, err := json.Marshal(map[string]map[string]string{"pk": {"S": "p"}, "sk": {"S": sk}, "d": {"S": strings.Repeat("x", n)}, "lp": {"S": "ops"}, "ls": {"S": place}})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestUnits(t *testing.T) {
	t.Parallel()
	put := func(it string) string { return `{"TableName":"t","Item":` + it + `}` }
	transact := func(parts ...string) string { return `{"TransactItems":[` + strings.Join(parts, ",") + `]}` }
	key := `{"pk":{"S":"p"},"sk":{"S":"a"}}`
	big := item("a", 1500, "1")
	for _, tt := range []struct {
		name         string
		target, body string
		status       int
		answer       string
		want         map[Kind]float64
	}{
		{"a small put makes an index entry", dynamodb + "PutItem", put(item("a", 10, "1")), 200, "{}", map[Kind]float64{DynamoWrite: 2}},
		{"a put of 1.5 KB", dynamodb + "PutItem", put(big), 200, "{}", map[Kind]float64{DynamoWrite: 3}},
		{"a refused put has no index entry", dynamodb + "PutItem", put(big), 400, "{}", map[Kind]float64{DynamoWrite: 2}},
		{"a transaction is twice", dynamodb + "TransactWriteItems", transact(`{"Put":`+put(big)+`}`, `{"ConditionCheck":{"Key":`+key+`}}`), 200, "{}",
			map[Kind]float64{DynamoWrite: 2*2 + 1 + 2*2}},
		{"an update that leaves 1.5 KB and an index entry", dynamodb + "UpdateItem", `{"Key":` + key + `,"UpdateExpression":"SET w = :w, b = if_not_exists(w, :none), v = if_not_exists(v, :zero) + :one, d = :d, lp = :lp, ls = :lp REMOVE dp, ds",
			"ExpressionAttributeValues":{":w":{"B":"AAAA"},":none":{"B":"AA=="},":d":{"S":"` + strings.Repeat("x", 1500) + `"},":lp":{"S":"ops"}}}`, 200, "{}", map[Kind]float64{DynamoWrite: 3}},
		{"a get of 5 KB", dynamodb + "GetItem", `{"ConsistentRead":true}`, 200, `{"Item":` + item("a", 5000, "1") + `}`, map[Kind]float64{DynamoRead: 2}},
		{"a get of nothing", dynamodb + "GetItem", `{}`, 200, `{}`, map[Kind]float64{DynamoRead: 0.5}},
		{"a batch counts each item, missing ones too", dynamodb + "BatchGetItem", `{"RequestItems":{"t":{"ConsistentRead":true,"Keys":[` + key + `,` + key + `]}}}`, 200,
			`{"Responses":{"t":[` + item("a", 10, "1") + `]}}`, map[Kind]float64{DynamoRead: 2}},
		{"a query counts the sum", dynamodb + "Query", `{"ConsistentRead":true}`, 200, `{"Items":[` + big + `,` + big + `,` + big + `]}`, map[Kind]float64{DynamoRead: 2}},
		{"SQS by 64 KB", "AmazonSQS.SendMessageBatch", strings.Repeat("x", 65<<10), 200, "{}", map[Kind]float64{SQSRequest: 2}},
		{"each event", "AWSEvents.PutEvents", `{"Entries":[{"Detail":"{}"},{"Detail":"` + strings.Repeat("x", 64<<10) + `"}]}`, 200, "{}", map[Kind]float64{BusEvent: 3}},
		{"streams are free", "DynamoDBStreams_20120810.GetRecords", `{}`, 200, "{}", map[Kind]float64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := NewMeter()
			send(t, m, tt.target, tt.body, tt.status, tt.answer)
			if d := cmp.Diff(tt.want, m.Units(), cmpopts.EquateApprox(0, 1e-9)); d != "" {
				t.Errorf("units (-want +got):\n%s", d)
			}
		})
	}
}

// TestWritesRememberTheItem: a write costs by the larger of before and after, and
// an index only when the item's place in it changes.
func TestWritesRememberTheItem(t *testing.T) {
	t.Parallel()
	m := NewMeter()
	write := func(body string) float64 {
		m.Reset()
		operation := "PutItem"
		if strings.Contains(body, `"Key"`) {
			operation = "DeleteItem"
		}
		send(t, m, dynamodb+operation, body, 200, "{}")
		return m.Units()[DynamoWrite]
	}
	for i, tt := range []struct {
		body string
		want float64
	}{
		{`{"Item":` + item("a", 3000, "1") + `}`, 3 + 1},
		{`{"Item":` + item("a", 10, "1") + `}`, 3},
		{`{"Item":` + item("a", 10, "2") + `}`, 1 + 2},
		{`{"Key":{"pk":{"S":"p"},"sk":{"S":"a"}}}`, 1 + 1},
		{`{"Key":{"pk":{"S":"p"},"sk":{"S":"a"}}}`, 1},
	} {
		if got := write(tt.body); got != tt.want {
			t.Errorf("write %d: got %v units, want %v", i, got, tt.want)
		}
	}
}

func TestPrice(t *testing.T) {
	t.Parallel()
	for _, k := range Kinds {
		p, ok := ListPrices[k]
		if !ok || p.Source == "" || p.USD <= 0 {
			t.Errorf("%s: no price with a source", k)
		}
	}
	if got := ListPrices[DynamoWrite].Of(2e6); math.Abs(got-1.25) > 1e-9 {
		t.Errorf("2 million write units: US$ %v", got)
	}
}
