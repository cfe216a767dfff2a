package inproc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/queue"
)

// Faults hurt the functions. The shares are of one; a nil *Faults does nothing.
type Faults struct {
	// Throttle is the share of requests to DynamoDB that are throttled.
	Throttle float64
	// LoseAnswer is the share of requests that are carried out and whose answer
	// is lost.
	LoseAnswer float64
	// Kill is the share of invocations that end between two of their calls: the
	// rest of the calls never happens, and the event comes again.
	Kill float64
	// Redeliver is the share of stream batches that come twice; Reorder shuffles
	// operations within a batch, each item's own records staying in order.
	Redeliver float64
	Reorder   bool
	// Spoil is the share of stream batches that have a record in front which no
	// function can read.
	Spoil float64
	// Lose, Repeat and Late are shares of queue messages that never arrive, arrive
	// twice, or arrive with those that are received some seconds later.
	Lose, Repeat, Late float64

	mu   sync.Mutex
	held map[string][]heldMessage // by queue

	stopped                                             atomic.Bool
	killed, lost, late, throttled, repeated, unreadable atomic.Int64
}

// Stop ends the hurting.
func (f *Faults) Stop() { f.stopped.Store(true) }

// Counts says how much was hurt.
func (f *Faults) Counts() map[string]int64 {
	return map[string]int64{"killed": f.killed.Load(), "lost": f.lost.Load(), "late": f.late.Load(), "throttled": f.throttled.Load(), "repeated": f.repeated.Load(), "unreadable": f.unreadable.Load()}
}

func (f *Faults) strikes(share float64) bool {
	return f != nil && share > 0 && !f.stopped.Load() && rand.Float64() < share
}

type killKey struct{}

// killer ends an invocation after some more calls.
type killer struct {
	mu   sync.Mutex
	left int
}

func (k *killer) dead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left--
	return k.left < 0
}

var errKilled = errors.New("the invocation was killed")

// invoke runs an invocation, which may be killed on the way.
func (f *Faults) invoke(ctx context.Context, run func(context.Context)) {
	if f != nil && f.strikes(f.Kill) {
		f.killed.Add(1)
		ctx = context.WithValue(ctx, killKey{}, &killer{left: rand.IntN(8)})
	}
	run(ctx)
}

// batches are a batch as it is delivered.
func (f *Faults) batches(changes []ledger.Change) [][]ledger.Change {
	if len(changes) == 0 {
		return nil
	}
	if f == nil {
		return [][]ledger.Change{changes}
	}
	if f.Reorder {
		changes = shuffled(changes)
	}
	if f.strikes(f.Redeliver) {
		f.repeated.Add(1)
		return [][]ledger.Change{changes, changes}
	}
	return [][]ledger.Change{changes}
}

// spoiled is a batch, maybe with an unreadable record in front.
func (f *Faults) spoiled(records []json.RawMessage) []json.RawMessage {
	if f == nil || !f.strikes(f.Spoil) {
		return records
	}
	n := f.unreadable.Add(1)
	bad := fmt.Sprintf(`{"eventID":"bad-%d","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"9%012d","NewImage":{"v":{"N":[]}}}}`, n, n)
	return append([]json.RawMessage{json.RawMessage(bad)}, records...)
}

// shuffled mixes the items, each of whose records stay in order.
func shuffled(changes []ledger.Change) []ledger.Change {
	by := map[ledger.Key][]ledger.Change{}
	order := make([]ledger.Key, 0, len(changes))
	for _, c := range changes {
		by[c.Key] = append(by[c.Key], c)
		order = append(order, c.Key)
	}
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	out := make([]ledger.Change, 0, len(changes))
	for _, k := range order {
		out = append(out, by[k][0])
		by[k] = by[k][1:]
	}
	return out
}

// heldMessage is one that arrives late.
type heldMessage struct {
	queue.Message
	until time.Time
}

// messages are a queue's messages as they arrive.
func (f *Faults) messages(name string, ms []queue.Message) []queue.Message {
	if f == nil {
		return ms
	}
	out := f.due(name)
	for _, m := range ms {
		switch {
		case f.strikes(f.Lose):
			f.lost.Add(1)
		case f.strikes(f.Late):
			f.late.Add(1)
			f.hold(name, heldMessage{m, time.Now().Add(time.Duration(1+rand.IntN(8)) * time.Second)})
		case f.strikes(f.Repeat):
			f.repeated.Add(1)
			out = append(out, m, m)
		default:
			out = append(out, m)
		}
	}
	return out
}

func (f *Faults) hold(name string, m heldMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[string][]heldMessage{}
	}
	f.held[name] = append(f.held[name], m)
}

// due takes the held messages whose time has come.
func (f *Faults) due(name string) []queue.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []queue.Message
	var still []heldMessage
	for _, m := range f.held[name] {
		if time.Now().After(m.until) {
			out = append(out, m.Message)
		} else {
			still = append(still, m)
		}
	}
	if f.held != nil {
		f.held[name] = still
	}
	return out
}

func (f *Faults) client(next aws.HTTPClient) aws.HTTPClient { return hurt{f, next} }

type hurt struct {
	f    *Faults
	next aws.HTTPClient
}

// Do implements aws.HTTPClient.
func (h hurt) Do(r *http.Request) (*http.Response, error) {
	if k, ok := r.Context().Value(killKey{}).(*killer); ok && k.dead() {
		return nil, errKilled
	}
	dynamo := strings.HasPrefix(r.Header.Get("X-Amz-Target"), "DynamoDB_")
	if dynamo && h.f.strikes(h.f.Throttle) {
		h.f.throttled.Add(1)
		body := `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"The level of configured provisioned throughput for the table was exceeded."}`
		return &http.Response{StatusCode: http.StatusBadRequest, Status: "400 Bad Request", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}, "X-Amz-Crc32": {fmt.Sprint(crc32.ChecksumIEEE([]byte(body)))}}, Body: io.NopCloser(bytes.NewReader([]byte(body))), ContentLength: int64(len(body))}, nil
	}
	resp, err := h.next.Do(r)
	if err == nil && dynamo && h.f.strikes(h.f.LoseAnswer) {
		h.f.lost.Add(1)
		_ = resp.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	return resp, err
}
