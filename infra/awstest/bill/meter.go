package bill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Meter adds up billing units. Its methods may be called by many at once.
type Meter struct {
	mu    sync.Mutex
	units map[Kind]float64
	calls map[string]int     // by service and operation, such as "DynamoDB GetItem"
	items map[string]float64 // units by what was read or written
	table *shadow
}

// NewMeter returns a meter that begins with an empty table: open it before the
// table is written.
func NewMeter() *Meter {
	m := &Meter{table: &shadow{items: map[string]entry{}}}
	m.Reset()
	return m
}

// Beside returns a meter of its own that knows the table as this one does:
// both must see all writes between them.
func (m *Meter) Beside() *Meter {
	other := &Meter{table: m.table}
	other.Reset()
	return other
}

// Reset sets the counts to zero. What is known of the table stays.
func (m *Meter) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.units, m.calls, m.items = map[Kind]float64{}, map[string]int{}, map[string]float64{}
}

// Add counts units that no SDK call shows.
func (m *Meter) Add(k Kind, n float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.units[k] += n
}

// Units returns the units so far.
func (m *Meter) Units() map[Kind]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.units)
}

// Calls returns how often each operation was called, by service and name.
func (m *Meter) Calls() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.calls)
}

// Items returns DynamoDB's units by how items were read or written and of which
// kind they are, by the beginnings of their two keys.
func (m *Meter) Items() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.items)
}

// Client returns the client with the meter around it.
func (m *Meter) Client(next aws.HTTPClient) aws.HTTPClient { return client{m, next} }

type client struct {
	meter *Meter
	next  aws.HTTPClient
}

// Do implements aws.HTTPClient.
func (c client) Do(r *http.Request) (*http.Response, error) {
	body, err := readAll(r)
	if err != nil {
		return nil, err
	}
	resp, err := c.next.Do(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	service, operation, ok := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if !ok {
		return nil, fmt.Errorf("a call without X-Amz-Target cannot be metered: %s %s", r.Method, r.URL.Path)
	}
	if err := c.meter.call(r.Context(), service, operation, body, answer, resp.StatusCode); err != nil {
		return nil, fmt.Errorf("meter %s: %w", operation, err)
	}
	return resp, nil
}

func readAll(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// chunk is how much of an SQS request or an event counts as one.
const chunk = 64 << 10

func chunks(n int) float64 { return float64(max(1, (n+chunk-1)/chunk)) }

func (m *Meter) call(ctx context.Context, service, operation string, body, answer []byte, status int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, latency := "", 0.0
	switch {
	case strings.HasPrefix(service, "DynamoDBStreams"): // read by the event source mapping, free of charge
		return nil
	case strings.HasPrefix(service, "DynamoDB"):
		name = "DynamoDB " + operation
		latency = dynamoLatency[operation]
		if err := m.dynamo(operation, body, answer, status); err != nil {
			return err
		}
	case service == "AmazonSQS":
		name, latency = "SQS "+operation, sqsLatency
		m.units[SQSRequest] += chunks(max(len(body), len(answer)))
	case service == "AWSEvents":
		name, latency = "EventBridge "+operation, busLatency
		var in struct {
			Entries []struct{ Detail, DetailType, Source string }
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return err
		}
		for _, e := range in.Entries {
			m.units[BusEvent] += chunks(len(e.Detail) + len(e.DetailType) + len(e.Source) + 14)
		}
	default:
		return fmt.Errorf("no rule for service %q", service)
	}
	m.calls[name]++
	if inv, ok := ctx.Value(invocationKey{}).(*invocation); ok {
		inv.add(latency)
	}
	return nil
}
