package cloud

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// TestClocksRunWhileFrozen: what a process remembers ages by the wall clock. The
// monotonic one may stop between two invocations, and both are in a time.Time.
func TestClocksRunWhileFrozen(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Stage: "test", Table: "t", QueuePrefix: "t-", Bus: "b"}, aws.Config{Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, now := range map[string]func() time.Time{"store": p.Store.Now, "waker": p.Waker.Now, "tokens": wall} {
		if at := now(); at != at.Round(0) {
			t.Errorf("%s: %s has a monotonic reading", name, at)
		}
	}
}
