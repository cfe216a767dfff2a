//go:build kubetest

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// endless is a fence that never says no: what is left is the API server's own.
func endless(ctx context.Context) (context.Context, context.CancelFunc, error) {
	return ctx, func() {}, nil
}

// TestSuccessor lets another agent go on at each step's boundary: with nothing but
// what is on the API server it counts the same pods, and evicts none twice.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	for i, after := range append(steps["node.drain"], "") {
		t.Run(fmt.Sprintf("%d_before_%s", i, after), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("heir", kuberig.GPUs(8)), r.Namespace()
			r.Deployment(ns, "web", 3, kuberig.OnNode(n.Name), kuberig.Shutdown(700*time.Millisecond))
			user := r.User("agent")
			grant(r, user)
			first, second := agentOf(t, r.Kubeconfig(user), nil), agentOf(t, r.Kubeconfig(user), nil)
			j := newJob(r, "node.drain", n, `{}`)
			for _, step := range steps["node.drain"] {
				if step == after {
					break
				}
				if o := first.execute(t.Context(), j, step); o.Class != operation.OutcomeDone {
					t.Fatalf("%s: %+v", step, o)
				}
			}
			<-time.After(1100 * time.Millisecond)
			heir := j.generation(2)
			for k := range heir.Steps { // it knows only what it reads
				heir.Steps[k].Phase = operation.StepPending
			}
			if step, o := second.takeOver(t.Context(), heir); step != "" {
				t.Fatalf("the heir ended at %s with %+v", step, o)
			}
			end, d := second.observe(heir)
			if d.Counts.Planned != 3 || d.Counts.Gone != 3 || !slices.Contains(end.Verified, "3 planned pods gone by UID") || d.Began == nil || d.Planned == nil {
				t.Errorf("verified %q: %s", end.Verified, end.Details)
			}
			if known := i >= 2; known != (len(d.Stages) > 0 && d.Stages[0].Step == earlierLeases && d.Stages[0].MS > 1000) { // once the cordon is there
				t.Errorf("stages %+v", d.Stages)
			}
			once(t, r, user, 3)
		})
	}
}

// TestPausedHolder stops the first holder around its fence while a second one
// finishes the operation, and lets it go on: with a fence that has run out, with a
// call whose time has run out, and with neither, so that the API server itself has
// to refuse.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		typ, step, payload string
		cordoned           bool
	}{
		{"node.cordon", "cordon", `{}`, false},
		{"node.cordon", "cordon", `{}`, true}, // a person's: the mark is what is late
		{"node.uncordon", "uncordon", `{"take_over":true}`, true},
		{"node.drain", "evict", `{}`, false},
		{"node.drain", "restore", `{"on_cancel":"restore"}`, false},
	}
	for _, fence := range []string{"over", "late", "none"} {
		for _, at := range []string{cluster.BeforeFence, cluster.AfterFence} {
			for _, k := range kinds {
				t.Run(fmt.Sprintf("%s_%s_%t/%s/%s", k.typ, k.step, k.cordoned, at, fence), func(t *testing.T) {
					t.Parallel()
					r := kuberig.Shared(t)
					n, ns := r.Node("paused"), r.Namespace()
					r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
					if k.cordoned {
						byHand(t, r, n.Name, cordonPatch)
					}
					early, late := r.User("early"), r.User("late")
					grant(r, early)
					grant(r, late)
					reached, release := make(chan struct{}), make(chan struct{})
					var once atomic.Bool
					var armed atomic.Bool
					first := agentOf(t, r.Kubeconfig(early), func(o *cluster.Options) {
						o.Pause = func(point string, _ *executor.Task) {
							if armed.Load() && point == at && once.CompareAndSwap(false, true) {
								close(reached)
								<-release
							}
						}
					})
					second := agentOf(t, r.Kubeconfig(late), nil)
					j := newJob(r, k.typ, n, k.payload)
					var over atomic.Bool
					switch fence {
					case "none":
						j.fence = endless
					case "over":
						j.fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
							if over.Load() {
								return ctx, func() {}, executor.ErrFenced
							}
							return ctx, func() {}, nil
						}
					case "late":
						j.fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
							c, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
							if !armed.Load() {
								return ctx, cancel, nil
							}
							return c, cancel, nil
						}
					}
					if k.typ == "node.drain" { // the paused one is not about the cordon
						for _, s := range []string{"preflight", "cordon"} {
							if o := first.execute(t.Context(), j, s); o.Class != operation.OutcomeDone {
								t.Fatal(o)
							}
						}
					}
					before := len(changes(r, early))
					armed.Store(true)
					result := make(chan executor.Outcome, 1)
					go func() { result <- first.types[k.typ].Steps[k.step].Execute(context.Background(), j.task(k.step)) }()
					<-reached
					heir := j.generation(2)
					heir.fence = endless
					if k.step == "restore" {
						if o := second.execute(t.Context(), heir, "restore"); o.Class != operation.OutcomeDone {
							t.Fatalf("the heir: %+v", o)
						}
					} else if step, o := second.takeOver(t.Context(), heir); step != "" {
						t.Fatalf("the heir ended at %s with %+v", step, o)
					}
					over.Store(true)
					<-time.After(60 * time.Millisecond) // a late call's time has run out
					close(release)
					o := <-result
					after := changes(r, early)
					for _, e := range after[min(before, len(after)):] {
						if e.Code < 300 {
							t.Errorf("the paused holder's %s %s was accepted", e.Verb, e.URI)
						}
					}
					fenced := at == cluster.BeforeFence && fence == "over" || at == cluster.AfterFence && fence == "late"
					if fenced && o.ErrorCode != "fenced" && o.ErrorCode != "interrupted" {
						t.Errorf("the paused holder ended with %+v", o)
					}
				})
			}
		}
	}
}

// changes are the requests of a user that change the cluster, without events.
func changes(r *kuberig.Rig, user string) (list []kuberig.AuditEvent) {
	for _, e := range r.Audit(user) {
		if slices.Contains([]string{"create", "patch", "update", "delete"}, e.Verb) && e.Resource != "events" &&
			!strings.HasPrefix(e.Resource, "selfsubject") && !strings.Contains(string(e.Request), "dryRun") {
			list = append(list, e)
		}
	}
	return list
}
