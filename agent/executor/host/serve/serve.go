// Package serve keeps what a host says of itself current for the agents of its
// cluster: one ConfigMap a node in the agent's namespace, written when it changes.
//
// Rights: configmaps get, create and update in that namespace alone.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		if err := write(ctx, o, h); err != nil {
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

// write makes the ConfigMap say h. Only the node's own program writes it; a
// conflict is another instance of it, during its upgrade, and the next round
// settles that.
func write(ctx context.Context, o Options, h report.Host) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	maps := o.Client.CoreV1().ConfigMaps(o.Namespace)
	name, data := report.Name(o.Node), string(h.Data())
	have, err := maps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: labels(o.Node)},
			Data:       map[string]string{report.Key: data},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create configmap %s: %w", name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configmap %s: %w", name, err)
	}
	if was, err := report.ParseHost([]byte(have.Data[report.Key])); err == nil && was.Node != o.Node {
		return fmt.Errorf("configmap %s speaks of node %s", name, was.Node)
	}
	have.Data = map[string]string{report.Key: data}
	if have.Labels == nil {
		have.Labels = map[string]string{}
	}
	for k, v := range labels(o.Node) {
		have.Labels[k] = v
	}
	if _, err := maps.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update configmap %s: %w", name, err)
	}
	return nil
}

func labels(node string) map[string]string {
	return map[string]string{report.Label: report.Hash(node), "app.kubernetes.io/managed-by": "opsplane-host"}
}

// JSON is a report for people.
func JSON(h report.Host) []byte {
	b, _ := json.MarshalIndent(h, "", "  ") // plain values always marshal
	return append(b, '\n')
}
