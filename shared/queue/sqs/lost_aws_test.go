//go:build awstest

package sqs

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/shared/queue"
)

// lossy carries requests out and loses the first answer of each action that it
// is told to: SQS has done it, and the caller does not know.
type lossy struct {
	next sqs.HTTPClient

	mu   sync.Mutex
	lose map[string]bool
}

func (l *lossy) Do(r *http.Request) (*http.Response, error) {
	resp, err := l.next.Do(r)
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || !l.lose[action] {
		return resp, err
	}
	delete(l.lose, action)
	return nil, errors.Join(errLost, resp.Body.Close())
}

var errLost error = lostError{}

// lostError is a connection that broke, as package net tells it.
type lostError struct{}

func (lostError) Error() string   { return "connection reset by peer" }
func (lostError) Temporary() bool { return true }
func (lostError) Timeout() bool   { return false }

// TestLostAnswers: the SDK makes a call again whose answer was lost, and that
// must be as good as one that came: only a send is then there twice, which the
// seam allows.
func TestLostAnswers(t *testing.T) {
	onEach(t, func(t *testing.T, c *sqs.Client) {
		ctx := t.Context()
		l := &lossy{next: c.Options().HTTPClient, lose: map[string]bool{}}
		e := engine(t, sqs.New(c.Options(), func(o *sqs.Options) { o.HTTPClient = l }))
		losing := func(action string, call func() error) {
			t.Helper()
			l.mu.Lock()
			l.lose[action] = true
			l.mu.Unlock()
			if err := call(); err != nil {
				t.Errorf("%s: %v", action, err)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.lose[action] {
				t.Errorf("%s was not called", action)
			}
		}
		take := func(visibility time.Duration) queue.Message {
			t.Helper()
			ms, err := e.Receive(ctx, "q", 1, 5*time.Second, visibility)
			if err != nil || len(ms) != 1 {
				t.Fatalf("%d messages, %v", len(ms), err)
			}
			return ms[0]
		}
		losing("CreateQueue", func() error { return e.Ensure(ctx, "q") })
		losing("SendMessageBatch", func() error { return e.Send(ctx, "q", queue.Outgoing{Body: []byte("x")}) })
		first, second := take(time.Minute), take(time.Minute)
		losing("DeleteMessageBatch", func() error { return e.Delete(ctx, "q", first.Receipt) })
		losing("ChangeMessageVisibility", func() error { return e.Extend(ctx, "q", second.Receipt, time.Minute) })
		losing("DeleteMessageBatch", func() error { return e.Bury(ctx, "q", second, "why") })
		losing("GetQueueAttributes", func() error { _, err := e.Depth(ctx, "q"); return err })
		letters, err := e.TakeDead(ctx, 10)
		if err != nil || len(letters) != 1 || letters[0].ID != second.ID {
			t.Fatalf("letters %v, %v", letters, err)
		}
		losing("DeleteMessageBatch", func() error { return e.DropDead(ctx, letters[0].ID) })
		// A receive whose answer is lost hides its messages until they come again.
		if err := e.Send(ctx, "q", queue.Outgoing{Body: []byte("y")}); err != nil {
			t.Fatal(err)
		}
		losing("ReceiveMessage", func() error {
			ms, err := e.Receive(ctx, "q", 1, 4*time.Second, time.Second)
			if err == nil && (len(ms) != 1 || ms[0].Receives != 2) {
				t.Errorf("received %v, want the message a second time", ms)
			}
			return err
		})
		losing("DeleteQueue", func() error { return e.Remove(ctx, "q") })
	})
}

var _ aws.HTTPClient = (*lossy)(nil)
