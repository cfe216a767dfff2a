package eventbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/bus"
)

// put is an entry as it goes over the wire.
type put struct {
	EventBusName, Source, DetailType, Detail string
	Time                                     float64 // epoch seconds
	Resources                                []string
}

// id is the message's, which is in every detail.
func (p put) id() string {
	var d struct{ ID string }
	if err := json.Unmarshal([]byte(p.Detail), &d); err != nil {
		panic(err)
	}
	return d.ID
}

// fake is EventBridge in place of the HTTP client: it keeps the requests and
// answers by code, which tells the error code of an entry ("" for none), or by
// whole, which tells the status and code of a request, or what broke.
type fake struct {
	code  func(p put, request int) string
	whole func(request int) (status int, code string, err error)

	mu       sync.Mutex
	requests [][]put
}

// Do implements the SDK's HTTP client.
func (f *fake) Do(r *http.Request) (*http.Response, error) {
	var in struct{ Entries []put }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, in.Entries)
	n := len(f.requests)
	status, body := http.StatusOK, map[string]any{}
	if f.whole != nil {
		s, code, err := f.whole(n)
		if err != nil {
			return nil, err
		}
		if s != 0 {
			status, body = s, map[string]any{"__type": code, "message": "because"}
		}
	}
	if status == http.StatusOK {
		var entries []map[string]string
		failed := 0
		for _, p := range in.Entries {
			if code := ""; f.code != nil {
				if code = f.code(p, n); code != "" {
					failed++
					entries = append(entries, map[string]string{"ErrorCode": code, "ErrorMessage": "because"})
					continue
				}
			}
			entries = append(entries, map[string]string{"EventId": "e"})
		}
		body = map[string]any{"Entries": entries, "FailedEntryCount": failed}
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
}

func (f *fake) bus() *Bus {
	return New(Options{Bus: "b", Attempts: 3, Client: eventbridge.New(eventbridge.Options{
		Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("AKID", "secret", ""), HTTPClient: f, RetryMaxAttempts: 2,
	})})
}

// sent lists the ids of each request.
func (f *fake) sent() []string {
	var out []string
	for _, r := range f.requests {
		var ids []string
		for _, p := range r {
			ids = append(ids, p.id())
		}
		out = append(out, strings.Join(ids, " "))
	}
	return out
}

func messages(n int) []bus.Message {
	ms := make([]bus.Message, n)
	for i := range ms {
		ms[i] = bus.Message{ID: strconv.Itoa(i), Type: "node.joined", Time: time.Unix(1767225600, 0), Detail: fmt.Appendf(nil, `{"id":"%d"}`, i)}
	}
	return ms
}

func large(m bus.Message, n int) bus.Message {
	m.Detail = fmt.Appendf(nil, `{"id":%q,"text":%q}`, m.ID, strings.Repeat("x", n))
	return m
}

func TestEntry(t *testing.T) {
	t.Parallel()
	f := &fake{}
	if err := f.bus().Publish(t.Context(), messages(1)...); err != nil {
		t.Fatal(err)
	}
	want := [][]put{{{EventBusName: "b", Source: "opsplane", DetailType: "node.joined", Detail: `{"id":"0"}`, Time: 1767225600}}}
	if diff := cmp.Diff(want, f.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if err := f.bus().Publish(t.Context()); err != nil || len(f.requests) != 1 {
		t.Errorf("nothing to publish: %v, %d requests", err, len(f.requests))
	}
}

func TestFitsRequests(t *testing.T) {
	t.Parallel()
	f := &fake{}
	ms := messages(25)
	ms[2] = large(ms[2], 150<<10) // together with the next too large
	ms[3] = large(ms[3], 120<<10)
	if err := f.bus().Publish(t.Context(), ms...); err != nil {
		t.Fatal(err)
	}
	want := []string{"0 1 2", "3 4 5 6 7 8 9 10 11 12", "13 14 15 16 17 18 19 20 21 22", "23 24"}
	if diff := cmp.Diff(want, f.sent()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestSizeOf(t *testing.T) {
	t.Parallel()
	text := func(n int) *string { return aws.String(strings.Repeat("ä", n)) } // two bytes each
	for _, tt := range []struct {
		entry types.PutEventsRequestEntry
		want  int
	}{
		{types.PutEventsRequestEntry{}, 0},
		{types.PutEventsRequestEntry{Source: text(1), DetailType: text(10), Detail: text(100)}, 222},
		{types.PutEventsRequestEntry{Time: aws.Time(time.Now()), Resources: []string{"abc", "d"}}, 18},
		{types.PutEventsRequestEntry{EventBusName: text(5), TraceHeader: text(5)}, 0}, // not counted
	} {
		if got := sizeOf(tt.entry); got != tt.want {
			t.Errorf("%+v: %d bytes, want %d", tt.entry, got, tt.want)
		}
	}
	largest := types.PutEventsRequestEntry{Source: aws.String(bus.Source), DetailType: aws.String(strings.Repeat("t", bus.MaxTypeBytes)),
		Time: aws.Time(time.Now()), Detail: aws.String(strings.Repeat("x", bus.MaxDetailBytes))}
	if n := sizeOf(largest); n > maxRequestBytes {
		t.Errorf("the largest message that the seam allows has %d bytes", n)
	}
}

// TestFailedEntries: an answer of 200 says which entries came to nothing; only
// those are put again, if that is of use.
func TestFailedEntries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code   func(p put, request int) string
		sent   []string
		failed []int
		want   error
	}{
		"two come through later": {
			func(p put, request int) string {
				return map[string]string{"1/1": "ThrottlingException", "4/1": "InternalFailure", "4/2": "InternalException"}[p.id()+"/"+strconv.Itoa(request)]
			}, []string{"0 1 2 3 4", "1 4", "4"}, nil, nil,
		},
		"one never does": {
			func(p put, _ int) string { return map[string]string{"3": "InternalFailure"}[p.id()] },
			[]string{"0 1 2 3 4", "3", "3"}, []int{3}, bus.ErrUnavailable,
		},
		"a new code": {
			func(p put, _ int) string { return map[string]string{"3": "SomethingNew"}[p.id()] },
			[]string{"0 1 2 3 4", "3", "3"}, []int{3}, bus.ErrUnavailable,
		},
		"malformed": {
			func(p put, _ int) string { return map[string]string{"0": "MalformedDetail"}[p.id()] },
			[]string{"0 1 2 3 4", "0"}, []int{0}, bus.ErrInvalid, // by reference too
		},
		"malformed but for its reference": {
			func(p put, _ int) string {
				if p.id() == "0" && !strings.Contains(p.Detail, "detail_omitted") {
					return "MalformedDetail"
				}
				return ""
			}, []string{"0 1 2 3 4", "0"}, nil, nil,
		},
		"not allowed": {
			func(put, int) string { return "NotAuthorizedForSourceException" },
			[]string{"0 1 2 3 4"}, []int{0, 1, 2, 3, 4}, ErrRefused,
		},
		"of all kinds": {
			func(p put, request int) string {
				return map[string]string{"1/1": "ThrottlingException", "2/1": "InvalidArgument", "3/1": "InternalFailure", "3/2": "AccessDeniedException"}[p.id()+"/"+strconv.Itoa(request)]
			}, []string{"0 1 2 3 4", "1 2 3"}, []int{3}, ErrRefused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{code: tt.code}
				check(t, f.bus().Publish(t.Context(), messages(5)...), tt.failed, tt.want)
				if diff := cmp.Diff(tt.sent, f.sent()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestFailedRequestAmongAttempts: what was accepted before stays accepted when a
// later attempt comes to nothing.
func TestFailedRequestAmongAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			code: func(p put, _ int) string { return map[string]string{"3": "ThrottlingException"}[p.id()] },
			whole: func(n int) (int, string, error) {
				if n > 1 {
					return 400, "AccessDeniedException", nil
				}
				return 0, "", nil
			},
		}
		check(t, f.bus().Publish(t.Context(), messages(12)...), []int{3, 10, 11}, ErrRefused)
	})
}

// check compares an error with the indexes and the kind it should have.
func check(t *testing.T, err error, failed []int, want error) {
	t.Helper()
	if want == nil {
		if err != nil {
			t.Errorf("Publish: %v", err)
		}
		return
	}
	partial, ok := errors.AsType[*bus.PartialError](err)
	if !ok || !slices.Equal(partial.Failed, failed) {
		t.Fatalf("%v, want a PartialError of %v: %#v", err, failed, partial)
	}
	for _, kind := range []error{bus.ErrUnavailable, bus.ErrInvalid, bus.ErrTooLarge, ErrRefused} {
		if errors.Is(err, kind) != (kind == want) {
			t.Errorf("is %q: %t (%v)", kind, errors.Is(err, kind), err)
		}
	}
}

// TestFailedRequests: a request as a whole comes to nothing. The SDK tries it
// once more here; then what is left is not tried.
func TestFailedRequests(t *testing.T) {
	t.Parallel()
	rest := make([]int, 15)
	for i := range rest {
		rest[i] = i + 10
	}
	for name, tt := range map[string]struct {
		status   int
		code     string
		err      error
		from, to int // requests that fail
		requests int
		want     error
	}{
		"throttled once":      {400, "ThrottlingException", nil, 2, 2, 4, nil},
		"throttled for good":  {400, "ThrottlingException", nil, 2, 99, 3, bus.ErrUnavailable},
		"unavailable once":    {503, "ServiceUnavailable", nil, 2, 2, 4, nil},
		"internal error":      {500, "InternalException", nil, 2, 99, 3, bus.ErrUnavailable},
		"no JSON at all":      {502, "", nil, 2, 99, 3, bus.ErrUnavailable},
		"reset once":          {0, "", errReset, 2, 2, 4, nil},
		"reset for good":      {0, "", errReset, 2, 99, 3, bus.ErrUnavailable},
		"no such bus":         {400, "ResourceNotFoundException", nil, 2, 99, 2, bus.ErrUnavailable},
		"access denied":       {400, "AccessDeniedException", nil, 2, 99, 2, ErrRefused},
		"credentials expired": {400, "ExpiredTokenException", nil, 2, 99, 2, ErrRefused},
		"too large":           {413, "RequestEntityTooLarge", nil, 2, 99, 2, bus.ErrTooLarge},
		"not understood":      {400, "ValidationException", nil, 2, 99, 2, bus.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{whole: func(n int) (int, string, error) {
					if n < tt.from || n > tt.to {
						return 0, "", nil
					}
					return tt.status, tt.code, tt.err
				}}
				check(t, f.bus().Publish(t.Context(), messages(25)...), rest, tt.want)
				if len(f.requests) != tt.requests {
					t.Errorf("%d requests, want %d: %v", len(f.requests), tt.requests, f.sent())
				}
			})
		})
	}
}

var errReset = resetError{}

// resetError is a connection that broke, as package net tells it.
type resetError struct{}

func (resetError) Error() string   { return "connection reset by peer" }
func (resetError) Temporary() bool { return true }
func (resetError) Timeout() bool   { return false }

// TestShortAnswer: entries that the answer leaves out were not accepted as far
// as anybody knows.
func TestShortAnswer(t *testing.T) {
	t.Parallel()
	b := New(Options{Bus: "b", Client: eventbridge.New(eventbridge.Options{Region: "us-east-1", RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("AKID", "secret", ""), HTTPClient: doer(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"Entries":[{"EventId":"e"}],"FailedEntryCount":0}`)), Request: r}, nil
		})})})
	check(t, b.Publish(t.Context(), messages(2)...), []int{0, 1}, bus.ErrUnavailable)
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// TestCallerGoesAway: what is not known to be accepted is listed, with the
// context's error.
func TestCallerGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		f := &fake{code: func(p put, _ int) string {
			if p.id() == "12" {
				return "ThrottlingException"
			}
			return ""
		}}
		b := f.bus()
		b.o.Backoff = 1000 * time.Hour // the pause before the next attempt is when the caller goes
		err := b.Publish(ctx, messages(25)...)
		check(t, err, []int{12, 20, 21, 22, 23, 24}, bus.ErrUnavailable)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's error", err)
		}
	})
}

// TestSilence: an EventBridge that never answers holds a publish up for one
// request's time.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{Bus: "b", Client: eventbridge.New(eventbridge.Options{Region: "us-east-1",
			Credentials: credentials.NewStaticCredentialsProvider("AKID", "secret", ""), HTTPClient: doer(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})})})
		start := time.Now()
		check(t, b.Publish(t.Context(), messages(11)...), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, bus.ErrUnavailable)
		if took := time.Since(start); took != callTime {
			t.Errorf("took %s, want %s", took, callTime)
		}
	})
}

// TestOwnLimits: what is refused here never reaches EventBridge, whose
// emulators would take it, and holds nothing else back.
func TestOwnLimits(t *testing.T) {
	t.Parallel()
	f := &fake{}
	ms := messages(4)
	ms[1].Detail = json.RawMessage(`{"id":"1"`)
	ms[2] = large(ms[2], bus.MaxDetailBytes)
	check(t, f.bus().Publish(t.Context(), ms...), []int{1}, bus.ErrInvalid)
	if diff := cmp.Diff([]string{"0 2 3"}, f.sent()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if d := f.requests[0][1].Detail; len(d) > 1<<10 || !strings.Contains(d, `"detail_omitted":true`) {
		t.Errorf("detail of %d bytes: %.500s", len(d), d)
	}
}

// TestEveryMessageIsAcceptedOrTold: whatever fails, each message is accepted
// once or listed, never both and never neither, and no request is over a limit.
func TestEveryMessageIsAcceptedOrTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ms := messages(rapid.IntRange(0, 35).Draw(rt, "messages"))
		for i := range ms {
			if n := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 60 << 10, 199 << 10, 201 << 10, -1}).Draw(rt, "bytes"); n < 0 {
				ms[i].Detail = nil
			} else if n > 0 {
				ms[i] = large(ms[i], n)
			}
		}
		codes := rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "", "ThrottlingException", "InternalFailure", "MalformedDetail"}), 1, 60).Draw(rt, "codes")
		accepted, k := map[string]int{}, 0
		f := &fake{code: func(p put, _ int) string {
			code := codes[k%len(codes)]
			if k++; code == "" {
				accepted[p.id()]++
			}
			return code
		}}
		b := f.bus()
		b.o.Backoff = 1
		told := map[string]bool{}
		if err := b.Publish(t.Context(), ms...); err != nil {
			partial, ok := errors.AsType[*bus.PartialError](err)
			if !ok || len(partial.Failed) == 0 || !slices.IsSorted(partial.Failed) {
				rt.Fatalf("%v (%+v)", err, partial)
			}
			for _, i := range partial.Failed {
				told[ms[i].ID] = true
			}
		}
		for _, m := range ms {
			if n := accepted[m.ID]; n > 1 || (n == 1) == told[m.ID] {
				rt.Fatalf("message %s: accepted %d times, told as failed: %t", m.ID, n, told[m.ID])
			}
		}
		for _, r := range f.requests {
			size := 0
			for _, p := range r {
				size += len(p.Source) + len(p.DetailType) + len(p.Detail) + 14
			}
			if len(r) > 10 || size >= 256<<10 {
				rt.Fatalf("request of %d entries, %d bytes", len(r), size)
			}
		}
	})
}
