//go:build awstest

package sqs

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/queuetest"
)

// localStackEnv names a second AWS of another make; the suites run on it too
// when it is set.
const localStackEnv = "OPSPLANE_LOCALSTACK_URL"

func client(t *testing.T, endpoint string) *sqs.Client {
	t.Helper()
	if os.Getenv(awsclient.EndpointEnv) == "" {
		t.Fatal(awsclient.EndpointEnv + " is not set: these tests need the local AWS")
	}
	c, err := awsclient.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sqs.NewFromConfig(c, func(o *sqs.Options) {
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	})
}

// engine makes an engine with queues of its own, whose queue of dead letters
// exists.
func engine(t *testing.T, c *sqs.Client) *Engine {
	t.Helper()
	e := New(Options{Client: c, Prefix: "t-" + strings.ToLower(rand.Text()[:10]) + "-"})
	ensure(t, e, Dead)
	return e
}

func ensure(t *testing.T, e *Engine, name string) {
	t.Helper()
	if err := e.Ensure(t.Context(), name); err != nil {
		t.Fatalf("Ensure: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := e.Remove(ctx, name); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	c := client(t, "")
	queuetest.Run(t, func(t *testing.T) queue.Queue { return engine(t, c) }, queuetest.Options{})
}

func TestConformanceOnLocalStack(t *testing.T) {
	t.Parallel()
	endpoint, ok := os.LookupEnv(localStackEnv)
	if !ok {
		return
	}
	c := client(t, endpoint)
	queuetest.Run(t, func(t *testing.T) queue.Queue { return engine(t, c) }, queuetest.Options{})
}
