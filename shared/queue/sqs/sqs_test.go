package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/queue"
)

func outgoing(n int) []queue.Outgoing {
	ms := make([]queue.Outgoing, n)
	for i := range ms {
		ms[i].Body = fmt.Appendf(nil, `{"n":%d}`, i)
	}
	return ms
}

// TestSendAgain: only what SQS failed by its own fault is sent again, and what
// its answer leaves out.
func TestSendAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answers []func(map[string]any) map[string]any // the last one for good
		sent    []string                              // entries of each request
		want    error
	}{
		"two fail once": {
			[]func(map[string]any) map[string]any{
				func(in map[string]any) map[string]any {
					return batch(in, fail("1", "InternalError", false), fail("3", "RequestThrottled", false))
				},
				func(in map[string]any) map[string]any { return batch(in) },
			}, []string{"0,1,2,3", "1,3"}, nil,
		},
		"one is never answered": {
			[]func(map[string]any) map[string]any{
				func(in map[string]any) map[string]any {
					b := batch(in)
					b["Successful"] = b["Successful"].([]map[string]any)[1:]
					return b
				},
				func(in map[string]any) map[string]any { return batch(in) },
			}, []string{"0,1,2,3", "0"}, nil,
		},
		"one fails to the last": {
			[]func(map[string]any) map[string]any{
				func(in map[string]any) map[string]any { return batch(in, fail("2", "InternalError", false)) },
			}, []string{"0,1,2,3", "2", "2", "2"}, queue.ErrUnavailable,
		},
		"one is the sender's fault": {
			[]func(map[string]any) map[string]any{
				func(in map[string]any) map[string]any {
					return batch(in, fail("0", "InternalError", false), fail("2", "InvalidMessageContents", true))
				},
			}, []string{"0,1,2,3"}, queue.ErrInvalid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, n := newFake(t), 0
				f.answer["SendMessageBatch"] = func(in map[string]any) answer {
					n++
					return answer{body: tt.answers[min(n, len(tt.answers))-1](in)}
				}
				err := f.engine().Send(t.Context(), "q", outgoing(4)...)
				if tt.want == nil && err != nil || !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
				var sent []string
				for _, c := range f.made("SendMessageBatch") {
					sent = append(sent, ids(c.in))
				}
				if diff := cmp.Diff(tt.sent, sent); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestSendStopsWithContext: the pause between attempts ends with its caller.
func TestSendStopsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		ctx, cancel := context.WithCancel(t.Context())
		f.answer["SendMessageBatch"] = func(in map[string]any) answer {
			cancel()
			return answer{body: batch(in, fail("0", "InternalError", false))}
		}
		if err := f.engine().Send(ctx, "q", outgoing(1)...); !errors.Is(err, context.Canceled) || errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%v, want the context's error", err)
		}
	})
}

func TestSendFitsRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ms := outgoing(queue.MaxBatch)
	for i := range ms {
		ms[i].Body = []byte(strings.Repeat("x", queue.MaxBodyBytes))
	}
	if err := f.engine().Send(t.Context(), "q", ms...); err != nil {
		t.Fatal(err)
	}
	var sent []string
	for _, c := range f.made("SendMessageBatch") {
		size := 0
		for _, e := range entriesOf(c.in) {
			size += len(e["MessageBody"].(string))
		}
		if size > maxBatchBytes {
			t.Errorf("a request of %d bytes", size)
		}
		sent = append(sent, ids(c.in))
	}
	if diff := cmp.Diff([]string{"0,1,2,3", "4,5,6,7", "8,9"}, sent); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestRefusedBeforeACall: what SQS would refuse, and what emulators take all
// the same, never gets there.
func TestRefusedBeforeACall(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	e, r := f.engine(), NewReceiver(f.client(), fakeURL+"q")
	ctx := t.Context()
	send := func(m queue.Outgoing) error { return e.Send(ctx, "q", outgoing(1)[0], m) }
	for name, err := range map[string]error{
		"zero byte":         send(queue.Outgoing{Body: []byte("a\x00")}),
		"no character":      send(queue.Outgoing{Body: []byte("\uFFFE")}),
		"no UTF-8":          send(queue.Outgoing{Body: []byte("\xff")}),
		"empty":             send(queue.Outgoing{}),
		"too large":         send(queue.Outgoing{Body: make([]byte, queue.MaxBodyBytes+1)}),
		"901 seconds":       send(queue.Outgoing{Body: []byte("x"), Delay: 901 * time.Second}),
		"just over 900":     send(queue.Outgoing{Body: []byte("x"), Delay: 900*time.Second + 1}),
		"name with a dot":   e.Send(ctx, "q.fifo", outgoing(1)...),
		"name with a space": e.Ensure(ctx, "a b"),
		"prefix too much":   e.Ensure(ctx, strings.Repeat("q", queue.MaxNameBytes-1)),
		"no dead letters":   func() error { _, err := e.TakeDead(ctx, 0); return err }(),
		"bury no text":      e.Bury(ctx, "q", queue.Message{ID: "m", Receipt: "r", Body: []byte("\x00")}, "why"),
		"bury nothing":      e.Bury(ctx, "q", queue.Message{ID: "m", Receipt: "r"}, "why"),
		"21 seconds":        func() error { _, err := r.Receive(ctx, "", 1, 21*time.Second, time.Minute); return err }(),
		"13 hours":          r.Extend(ctx, "", "r", 13*time.Hour),
		"eleven receipts":   r.Delete(ctx, "", make([]string, 11)...),
	} {
		if !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if calls := f.made(""); len(calls) > 0 {
		t.Errorf("called SQS: %v", calls)
	}
}

// TestWholeSeconds: durations are rounded up to what SQS counts in.
func TestWholeSeconds(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	e := f.engine()
	ctx := t.Context()
	var sent []queue.Outgoing
	for _, d := range []time.Duration{0, 1, time.Second, 1500 * time.Millisecond, 900 * time.Second} {
		sent = append(sent, queue.Outgoing{Body: []byte("x"), Delay: d})
	}
	_, err1 := e.Receive(ctx, "q", 3, 1100*time.Millisecond, 59500*time.Millisecond)
	_, err2 := e.Receive(ctx, "q", 1, 0, time.Millisecond)
	err := errors.Join(err1, err2, e.Send(ctx, "q", sent...), e.Extend(ctx, "q", "r", 0), e.Extend(ctx, "q", "r", time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	var delays []any
	for _, e := range entriesOf(f.made("SendMessageBatch")[0].in) {
		delays = append(delays, e["DelaySeconds"])
	}
	if diff := cmp.Diff([]any{nil, 1., 1., 2., 900.}, delays); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
	var asked []map[string]any
	for _, c := range f.made("ReceiveMessage") {
		asked = append(asked, c.in)
	}
	count := []any{"ApproximateReceiveCount"}
	want := []map[string]any{
		{"QueueUrl": fakeURL + "p-q", "MaxNumberOfMessages": 3., "WaitTimeSeconds": 2., "VisibilityTimeout": 60., "MessageSystemAttributeNames": count},
		{"QueueUrl": fakeURL + "p-q", "MaxNumberOfMessages": 1., "VisibilityTimeout": 1., "MessageSystemAttributeNames": count},
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("receives (-want +got):\n%s", diff)
	}
	extends := f.made("ChangeMessageVisibility")
	if a, b := extends[0].in["VisibilityTimeout"], extends[1].in["VisibilityTimeout"]; a != 0. || b != 1. {
		t.Errorf("extended by %v and %v, want 0 and 1", a, b)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	kinds := []error{queue.ErrNoQueue, queue.ErrInvalid, queue.ErrStaleReceipt, queue.ErrUnavailable, ErrRefused, context.Canceled}
	for _, tt := range []struct {
		answer answer
		want   error
	}{
		{answer{status: 400, code: "QueueDoesNotExist"}, queue.ErrNoQueue},
		{answer{status: 400, code: "AWS.SimpleQueueService.NonExistentQueue"}, queue.ErrNoQueue},
		{answer{status: 404, code: "InvalidAddress"}, queue.ErrNoQueue},
		{answer{status: 400, code: "RequestThrottled"}, queue.ErrUnavailable},
		{answer{status: 403, code: "OverLimit"}, queue.ErrUnavailable},
		{answer{status: 400, code: "ThrottlingException"}, queue.ErrUnavailable},
		{answer{status: 400, code: "KmsThrottled"}, queue.ErrUnavailable},
		{answer{status: 500, code: "InternalFailure"}, queue.ErrUnavailable},
		{answer{status: 503, code: "ServiceUnavailable"}, queue.ErrUnavailable},
		{answer{status: 502}, queue.ErrUnavailable},
		{answer{status: 400, code: "SomethingNew"}, queue.ErrUnavailable},
		{answer{err: errReset}, queue.ErrUnavailable},
		{answer{err: context.DeadlineExceeded}, queue.ErrUnavailable},
		{answer{status: 403, code: "AccessDeniedException"}, ErrRefused},
		{answer{status: 403, code: "InvalidClientTokenId"}, ErrRefused},
		{answer{status: 400, code: "ExpiredTokenException"}, ErrRefused},
		{answer{status: 400, code: "KmsAccessDenied"}, ErrRefused},
		{answer{status: 403, code: "SomethingNew"}, ErrRefused},
		{answer{status: 400, code: "InvalidParameterValue"}, queue.ErrInvalid},
		{answer{status: 400, code: "InvalidMessageContents"}, queue.ErrInvalid},
	} {
		t.Run(number(tt.answer.status)+tt.answer.code, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			for _, action := range []string{"ReceiveMessage", "SendMessageBatch", "DeleteMessageBatch"} {
				f.answer[action] = func(map[string]any) answer { return tt.answer }
			}
			e := f.engine()
			_, err := e.Receive(t.Context(), "q", 1, time.Second, time.Minute)
			for call, err := range map[string]error{"Receive": err, "Send": e.Send(t.Context(), "q", outgoing(2)...), "Delete": e.Delete(t.Context(), "q", "r")} {
				for _, kind := range kinds {
					if errors.Is(err, kind) != (kind == tt.want) {
						t.Errorf("%s: is %q: %t (%v)", call, kind, errors.Is(err, kind), err)
					}
				}
				if !strings.Contains(err.Error(), "p-q") {
					t.Errorf("%s: error does not name the queue: %v", call, err)
				}
			}
		})
	}
}

// TestCallersContext: who goes away gets the context's error, not an outage.
func TestCallersContext(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.answer["ReceiveMessage"] = func(map[string]any) answer { cancel(); return answer{err: context.Canceled} }
	_, err := f.engine().Receive(ctx, "q", 1, time.Second, time.Minute)
	if !errors.Is(err, context.Canceled) || errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("%v, want the context's error", err)
	}
}

// TestRefusedSaysWho: an agent with another cluster's credentials reads in its
// log which ones it has.
func TestRefusedSaysWho(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:iam::123456789012:user/agent-west"
	for text, who := range map[string]string{
		"User: " + arn + " is not authorized to perform: sqs:receivemessage on resource: arn:aws:sqs:us-east-1:123456789012:p-east": arn,
		"Access to the resource is denied.": "access key AKIA…MPLE",
	} {
		f := newFake(t)
		f.answer["ReceiveMessage"] = refuse(403, "AccessDenied", text)
		_, err := NewReceiver(f.client(), fakeURL+"p-east").Receive(t.Context(), "", 1, 0, time.Minute)
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || refused.Principal != who || refused.Queue != fakeURL+"p-east" || refused.Action != "sqs:ReceiveMessage" || refused.Code != "AccessDenied" || !errors.Is(err, ErrRefused) {
			t.Errorf("%v (%+v), want a refusal of %s", err, refused, who)
		}
		if !strings.Contains(err.Error(), who) || strings.Contains(err.Error(), "IOSFODNN7") {
			t.Errorf("text %q", err)
		}
	}
}

func TestQueueURLIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	e := f.engine()
	for range 3 {
		if err := e.Send(t.Context(), "q", outgoing(1)...); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.made("GetQueueUrl")); n != 1 {
		t.Errorf("looked up %d times", n)
	}
	// A queue that is gone is forgotten, and found again when it is back.
	f.answer["SendMessageBatch"] = refuse(400, "QueueDoesNotExist", "")
	if err := e.Send(t.Context(), "q", outgoing(1)...); !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("%v, want ErrNoQueue", err)
	}
	f.answer["SendMessageBatch"], f.answer["GetQueueUrl"] = nil, refuse(400, "QueueDoesNotExist", "")
	if err := e.Send(t.Context(), "q", outgoing(1)...); !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("%v, want ErrNoQueue", err)
	}
	f.answer["GetQueueUrl"] = nil
	if err := e.Send(t.Context(), "q", outgoing(1)...); err != nil {
		t.Error(err)
	}
	if n := len(f.made("GetQueueUrl")); n != 3 {
		t.Errorf("looked up %d times, want 3", n)
	}
}

func TestQueueURLFromManyCallers(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	e := f.engine()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			name := "q" + number(i%3)
			url, err := e.QueueURL(t.Context(), name)
			arn, err2 := e.QueueARN(t.Context(), name)
			if err := errors.Join(err, err2); err != nil || url != fakeURL+"p-"+name || !strings.HasSuffix(arn, ":p-"+name) {
				t.Errorf("%s: %s, %s, %v", name, url, arn, err)
			}
			if i%4 == 0 {
				e.forget(name)
			}
		})
	}
	wg.Wait()
}

// TestStaleReceipts: the codes of AWS and of emulators for a receipt that is
// good no more.
func TestStaleReceipts(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"ReceiptHandleIsInvalid", "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", "InvalidParameterValue"} {
		f := newFake(t)
		f.answer["ChangeMessageVisibility"] = refuse(400, code, "")
		f.answer["DeleteMessageBatch"] = func(in map[string]any) answer { return answer{body: batch(in, fail("0", code, true))} }
		e := f.engine()
		if err := e.Extend(t.Context(), "q", "r", time.Minute); !errors.Is(err, queue.ErrStaleReceipt) || errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%s: extend: %v, want ErrStaleReceipt", code, err)
		}
		if err := e.Delete(t.Context(), "q", "r", "s"); err != nil {
			t.Errorf("%s: delete: %v", code, err)
		}
	}
}

// TestDeleteAgain: entries that fail by SQS's fault are deleted again, those
// that are stale are not.
func TestDeleteAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, n := newFake(t), 0
		f.answer["DeleteMessageBatch"] = func(in map[string]any) answer {
			if n++; n == 1 {
				return answer{body: batch(in, fail("0", "ReceiptHandleIsInvalid", true), fail("1", "InternalError", false))}
			}
			return answer{body: batch(in)}
		}
		if err := f.engine().Delete(t.Context(), "q", "a", "b", "c"); err != nil {
			t.Fatal(err)
		}
		calls := f.made("DeleteMessageBatch")
		if len(calls) != 2 || ids(calls[0].in) != "0,1,2" || ids(calls[1].in) != "1" || entriesOf(calls[1].in)[0]["ReceiptHandle"] != "b" {
			t.Errorf("requests %v", calls)
		}
	})
}

// TestPollingOutlastsTheWait: an HTTP timeout that suits other calls does not
// cut a long poll off.
func TestPollingOutlastsTheWait(t *testing.T) {
	t.Parallel()
	timeout := func(c *sqs.Client) time.Duration {
		switch h := polling(c).Options().HTTPClient.(type) {
		case *awshttp.BuildableClient:
			return h.GetTimeout()
		case *http.Client:
			return h.Timeout
		}
		return -1
	}
	plain := &http.Client{Timeout: 5 * time.Second}
	for _, tt := range []struct {
		client func(*sqs.Options)
		want   time.Duration
	}{
		{func(o *sqs.Options) { o.HTTPClient = awshttp.NewBuildableClient() }, 0},
		{func(o *sqs.Options) { o.HTTPClient = awshttp.NewBuildableClient().WithTimeout(5 * time.Second) }, 30 * time.Second},
		{func(o *sqs.Options) { o.HTTPClient = awshttp.NewBuildableClient().WithTimeout(time.Minute) }, time.Minute},
		{func(o *sqs.Options) { o.HTTPClient = plain }, 30 * time.Second},
	} {
		if got := timeout(newFake(t).client(tt.client)); got != tt.want {
			t.Errorf("timeout %s, want %s", got, tt.want)
		}
	}
	if plain.Timeout != 5*time.Second {
		t.Error("the caller's own client was changed")
	}
}

// TestSilence: an SQS that never answers holds a receive up for its wait and the
// slack, no longer.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		silent := f.client(func(o *sqs.Options) { o.HTTPClient = silence{} })
		start := time.Now()
		_, err := NewReceiver(silent, fakeURL+"q").Receive(t.Context(), "", 1, 20*time.Second, time.Minute)
		if took := time.Since(start); !errors.Is(err, queue.ErrUnavailable) || took != 30*time.Second {
			t.Errorf("%v after %s, want ErrUnavailable after 30s", err, took)
		}
	})
}

type silence struct{}

func (silence) Do(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestReceiverMakesOnlyItsCalls: what AgentPolicy allows is enough.
func TestReceiverMakesOnlyItsCalls(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer["ReceiveMessage"] = func(map[string]any) answer {
		return answer{body: map[string]any{"Messages": []any{message("m1", "x", map[string]string{"ApproximateReceiveCount": "3"}, nil)}}}
	}
	r := NewReceiver(f.client(), fakeURL+"q")
	ms, err := r.Receive(t.Context(), "ignored", 1, time.Second, time.Minute)
	if err := errors.Join(err, r.Extend(t.Context(), "ignored", "r", time.Second), r.Delete(t.Context(), "ignored", "r")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]queue.Message{{ID: "m1", Receipt: "r-m1", Body: []byte("x"), Receives: 3}}, ms); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	var actions []string
	for _, c := range f.made("") {
		actions = append(actions, c.action)
		if c.in["QueueUrl"] != fakeURL+"q" {
			t.Errorf("%s of %v", c.action, c.in["QueueUrl"])
		}
	}
	if diff := cmp.Diff([]string{"ReceiveMessage", "ChangeMessageVisibility", "DeleteMessageBatch"}, actions); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestFromEvent(t *testing.T) {
	t.Parallel()
	in := events.SQSMessage{MessageId: "m", ReceiptHandle: "r", Body: "b", Attributes: map[string]string{"ApproximateReceiveCount": "4"}}
	if diff := cmp.Diff(queue.Message{ID: "m", Receipt: "r", Body: []byte("b"), Receives: 4}, FromEvent(in)); diff != "" {
		t.Errorf("message (-want +got):\n%s", diff)
	}
	for _, count := range []string{"", "many", "0", "-1"} {
		in.Attributes["ApproximateReceiveCount"] = count
		if got := FromEvent(in).Receives; got != 1 {
			t.Errorf("count %q: %d receives, want 1", count, got)
		}
	}
}
