package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// writes counts the calls that write.
func writes(c *fake.Clientset) (n int) {
	for _, a := range c.Actions() {
		if v := a.GetVerb(); (v == "create" || v == "update") && a.GetResource().Resource == "configmaps" {
			n++
		}
	}
	return n
}

func stored(t *testing.T, c *fake.Clientset) report.Host {
	t.Helper()
	m, err := c.CoreV1().ConfigMaps("ops").Get(context.Background(), report.Name("gpu-1"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := report.ParseHost([]byte(m.Data[report.Key]))
	if err != nil || m.Labels[report.Label] != report.Hash("gpu-1") {
		t.Fatalf("%v, labels %v", err, m.Labels)
	}
	return h
}

// TestWritesOnChange: once at the start, then when something changed, not more
// often than allowed, and now and then to show that it lives.
func TestWritesOnChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		var mu sync.Mutex
		driver, busy, failing := "1", false, false
		set := func(d string, b, f bool) {
			mu.Lock()
			defer mu.Unlock()
			driver, busy, failing = d, b, f
		}
		c.PrependReactor("update", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return failing, nil, errors.New("away")
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Options{Client: c, Namespace: "ops", Node: "gpu-1", Every: 10 * time.Second, Least: 5 * time.Second, Alive: 10 * time.Minute,
				Log: slog.New(slog.DiscardHandler), Now: time.Now,
				Look: func(context.Context) (report.Host, bool) {
					mu.Lock()
					defer mu.Unlock()
					return report.Host{Node: "gpu-1", Source: report.SourceRecorded, Driver: driver, At: time.Now().UTC(), Devices: []report.Device{}}, !busy
				}})
		}()
		at := func(d time.Duration, what string, want int, says string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n, got := writes(c), stored(t, c).Driver; n != want || got != says {
				t.Errorf("%s: %d writes, want %d; it says %s, want %s", what, n, want, got, says)
			}
		}
		at(time.Second, "at the start", 1, "1")
		at(time.Minute, "nothing changed", 1, "1")
		set("2", false, false)
		at(12*time.Second, "a change", 2, "2")
		set("3", true, false)
		at(time.Minute, "while a device is reset", 2, "2")
		set("3", false, true)
		for n := 0; n < 12 && writes(c) == 2; n++ { // until the first try: the second comes 9 s after it, or later
			time.Sleep(time.Second)
			synctest.Wait()
		}
		at(0, "the cluster is away", 3, "2")
		set("3", false, false)
		at(time.Minute, "and back", 4, "3")
		at(11*time.Minute, "to show that it lives", 5, "3")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestBelievedWhileItLives: a host of which nothing is new is never so long without
// a word that its report would not be believed, whatever single write is lost.
func TestBelievedWhileItLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		n := 0
		c.PrependReactor("update", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			n++
			return n%2 == 1, nil, errors.New("away")
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Options{Client: c, Namespace: "ops", Node: "gpu-1", Every: DefaultEvery, Least: DefaultLeast, Alive: DefaultAlive,
				Log: slog.New(slog.DiscardHandler), Now: time.Now,
				Look: func(context.Context) (report.Host, bool) {
					return report.Host{Node: "gpu-1", Source: report.SourceRecorded, At: time.Now().UTC(), Devices: []report.Device{}}, true
				}})
		}()
		for range 120 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			h := stored(t, c)
			if why := h.Stale(time.Now()); why != "" {
				t.Fatal(why)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestForeign: a ConfigMap of the name that speaks of another node is left alone.
func TestForeign(t *testing.T) {
	t.Parallel()
	other := report.Host{Node: "gpu-2", Source: report.SourceNVML, Devices: []report.Device{}}
	c := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: report.Name("gpu-1")}, Data: map[string]string{report.Key: string(other.Data())}})
	k := &keeper{Options: Options{Client: c, Namespace: "ops", Node: "gpu-1", Log: slog.New(slog.DiscardHandler), Now: time.Now}}
	err := k.write(t.Context(), report.Host{Node: "gpu-1"})
	if err == nil || writes(c) != 0 {
		t.Errorf("%v, %d writes", err, writes(c))
	}
	if err := Run(t.Context(), Options{Namespace: "ops"}); err == nil {
		t.Error("it served nobody's report")
	}
}
