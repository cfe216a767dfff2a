// Package serve keeps what a host says of itself current for the agents of its
// cluster: one ConfigMap a node in the agent's namespace, written when it changes.
// The node owns it, so that it goes when the node does.
//
// Rights: configmaps get, create and update in that namespace alone, and what
// every user may ask: who the API server takes it for.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// Defaults of Options.
const (
	DefaultEvery = 10 * time.Second
	DefaultLeast = 5 * time.Second
	// DefaultAlive is well within report.MaxAge: two writes may be lost before
	// nobody believes the report any more.
	DefaultAlive = time.Minute
	callTimeout  = 10 * time.Second
	backoffMost  = time.Minute
)

// Options configure Run.
type Options struct {
	Client    kubernetes.Interface
	Namespace string
	Node      string
	// Look describes the host; ok is false while it cannot be looked at and what was
	// said last stands.
	Look func(ctx context.Context) (h report.Host, ok bool)
	// Every is how often the host is looked at, Least the time between two writes,
	// and Alive after which it is written although nothing changed.
	Every, Least, Alive time.Duration
	Log                 *slog.Logger
	Now                 func() time.Time
}

// Run looks and writes until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Node == "" || o.Namespace == "" {
		return errors.New("serve: the node and the namespace have to be known")
	}
	k := &keeper{Options: o}
	var said report.Host
	var wrote time.Time
	wait, failed := time.Duration(0), 0
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		wait = jitter(o.Every)
		h, ok := o.Look(ctx)
		if !ok || ctx.Err() != nil {
			continue
		}
		now := o.Now()
		if !wrote.IsZero() && same(said, h) && now.Sub(wrote) < o.Alive {
			continue
		}
		if since := now.Sub(wrote); !wrote.IsZero() && since < o.Least {
			wait = o.Least - since
			continue
		}
		if err := k.write(ctx, h); err != nil {
			failed++
			wait = jitter(min(backoffMost, o.Least<<min(failed, 10)))
			o.Log.Warn("the host's report was not taken by the cluster", slog.Any("err", err), slog.Duration("again_in", wait))
			continue
		}
		if failed > 0 || wrote.IsZero() {
			o.Log.Info("the host's report is kept", slog.String("configmap", o.Namespace+"/"+report.Name(o.Node)), slog.Int("devices", len(h.Devices)))
		}
		said, wrote, failed = h, now, 0
	}
}

func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// same tells whether two reports say the same, at whatever time.
func same(a, b report.Host) bool {
	a.At, b.At = time.Time{}, time.Time{}
	return reflect.DeepEqual(a, b)
}

// JSON is a report for people.
func JSON(h report.Host) []byte {
	b, _ := json.MarshalIndent(h, "", "  ") // plain values always marshal
	return append(b, '\n')
}
