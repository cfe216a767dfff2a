//go:build kubetest

package kube

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// bookmarks is how often an API server sends a bookmark over each watch, out of its cache
// (defaultBookmarkFrequency of its cacher).
const bookmarks = time.Minute

// TestRigEtcdHangs: an API server whose etcd hangs answers much, and serves nobody. That
// is told once, and lasts until etcd goes on.
func TestRigEtcdHangs(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Nodes: 1})
	e, err := Open(Options{Cluster: cluster.Options{Kubeconfig: r.Kubeconfig(kuberig.Admin), Namespace: "default", Version: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched, told := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		watched <- e.Watch(ctx, func(executor.Delta) {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	defer func() {
		cancel()
		<-watched
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := e.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	// Over a watch that has brought nothing yet no bookmark is sent.
	r.Node("later")
	select {
	case <-told:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is told of a new node")
	}
	defer e.cluster.Pulse.Listen()()
	await := func(silent bool, most time.Duration) {
		t.Helper()
		late := time.After(most)
		for {
			u, changed := e.cluster.Pulse.State()
			if (u != nil) == silent {
				return
			}
			select {
			case <-changed:
			case <-late:
				t.Fatalf("not within %s: silent %t; it says %v", most, silent, u)
			}
		}
	}
	r.Stop(kuberig.Etcd)
	await(true, 20*time.Second)
	right := cluster.Right{Verb: "list", Resource: "pods"}
	for lasts := time.After(bookmarks + 5*time.Second); lasts != nil; {
		if _, err := e.cluster.Allowed(ctx, right.Attributes()); err != nil {
			t.Logf("the API server says of the agent's rights: %v", err)
		}
		_, changed := e.cluster.Pulse.State()
		if u, _ := e.cluster.Pulse.State(); u == nil {
			t.Error("etcd hangs, and the API server is said to answer")
			lasts = nil
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Second):
		case <-lasts:
			lasts = nil
		}
	}
	r.Cont(kuberig.Etcd)
	await(false, 20*time.Second)
}
