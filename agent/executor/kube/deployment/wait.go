package deployment

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// probeWait reads once how far the rollout is.
func (r *roller) probeWait(ctx context.Context, t *executor.Task) executor.Finding {
	ctx = cluster.Operation(ctx, t.Assignment)
	d, err := r.find(ctx, t.Assignment)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case d == nil:
		return executor.Lost("deployment_gone", gone(t.Assignment))
	case !d.restarted(cluster.MarkOf(t)):
		return executor.ToRun(d.String())
	case d.superseded() != "":
		return executor.Lost("superseded", supersededBy(d))
	}
	s, err := r.look(ctx, d)
	if err != nil {
		return cluster.Unread(err)
	}
	v := s.judge(cluster.MarkOf(t), r.bounds, false, map[string]time.Time{}, r.Now())
	switch {
	case v.code != "":
		return executor.Lost(v.code, v.why)
	case v.rolled:
		return executor.Found(d.String())
	}
	return executor.ToRun(d.String())
}

func supersededBy(d *rollout) string {
	if d.record != nil && d.record.Unrehearsed {
		return fmt.Sprintf("%s: %s by somebody else after this operation's restart, or by admission with it, which took no dry run", d.name(), d.superseded())
	}
	return fmt.Sprintf("%s: %s by somebody else after this operation's restart", d.name(), d.superseded())
}

// wait follows the rollout until the new replicas are ready, or it has failed.
func (r *roller) wait(ctx context.Context, t *executor.Task) executor.Outcome {
	return r.follow(ctx, t, func(s *scene, v verdict) *executor.Outcome {
		s.progress(t)
		if !v.rolled {
			tell(t, v.blockers(r.Now()))
			return nil
		}
		o := executor.Done(s.String())
		return &o
	})
}

// confirm observes the end state: all replicas are new and ready, and the pods
// of before are gone.
func (r *roller) confirm(ctx context.Context, t *executor.Task) executor.Outcome {
	return r.follow(ctx, t, func(s *scene, v verdict) *executor.Outcome {
		switch {
		case !v.rolled && !s.emptied(): // scaled down since it was rolled out: what was observed then stays so
			tell(t, v.blockers(r.Now()))
			s.progress(t)
			return nil
		case len(v.leaving) > 0: // no partition keeps them
			tell(t, stopping(v.leaving, r.Now()))
			t.Progress(0, len(v.leaving), "old pods", fmt.Sprintf("%s, %d old pods are stopping", s, len(v.leaving)))
			return nil
		}
		s.progress(t) // how it ended, not which pods it waited for
		o := executor.Done(fmt.Sprintf("%s is rolled out: %s", s.name(), s))
		return &o
	})
}

// progress tells how far the rollout is.
func (r *rollout) progress(t *executor.Task) {
	t.Progress(min(r.updated, r.target()), r.target(), "replicas", r.String())
}

// tell says what stands in the way; nothing if the task has no ear for it.
func tell(t *executor.Task, now []protocol.Blocker) {
	if t.Blocked != nil {
		t.Blocked(now)
	}
}

// follow reads the rollout and watches it until end says how the step ended, it
// has failed or was superseded, or the step has to stop.
func (r *roller) follow(ctx context.Context, t *executor.Task, end func(*scene, verdict) *executor.Outcome) executor.Outcome {
	ctx, stop := context.WithCancel(cluster.Operation(ctx, t.Assignment))
	defer stop()
	by := cluster.MarkOf(t)
	p, err := payload(t.Assignment.Payload)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	seen, known := map[string]time.Time{}, map[types.UID]words{}
	var v verdict
	judge := func(s *scene) *executor.Outcome {
		var o executor.Outcome
		switch {
		case s == nil:
			o = executor.Permanent("deployment_gone", gone(t.Assignment))
		case !s.restarted(by):
			o = executor.Permanent("superseded", fmt.Sprintf("%s no longer carries this operation's restart", s.name()))
		case s.superseded() != "":
			o = executor.Permanent("superseded", supersededBy(s.rollout))
		default:
			v = r.weigh(ctx, s, known, func() verdict { return s.judge(by, r.bounds, p.Undo == "on_failure", seen, r.Now()) })
			if p.Undo == "on_failure" && t.Remaining != nil {
				v.giveUp(*s, r.bounds, t.Remaining(), r.Now())
			}
			if v.code == "" {
				return end(s, v)
			}
			tell(t, v.blockers(r.Now()))
			o = failed(v.code, v.why)
		}
		return &o
	}

	d, err := r.find(ctx, t.Assignment)
	if err != nil {
		return unread(err)
	}
	var s *scene
	if d != nil {
		if s, err = r.look(ctx, d); err != nil {
			return unread(err)
		}
	}
	if o := judge(s); o != nil {
		if o.Class == operation.OutcomeDone {
			tell(t, nil)
		}
		return *o
	}
	w := r.watch(ctx, d)
	var away *cluster.Unanswered
	for {
		fire, release := timer(v.wake, r.Now())
		select {
		case <-w.Changed():
		case <-fire:
		case <-ctx.Done():
		case <-boundary(t):
		}
		release()
		if halt := executor.Halted(ctx, t); halt != "" {
			return r.halted(halt, s, v, away)
		}
		was := away
		var denied error
		away, denied = w.Trouble()
		switch {
		case denied != nil:
			return cluster.Broken(denied)
		case away != nil:
			t.Progress(min(s.updated, s.target()), s.target(), "replicas", "the API server does not answer; "+s.String()+" when it last did")
			tell(t, []protocol.Blocker{away.Blocker()})
		case was != nil:
			tell(t, nil) // until it is judged again
		}
		v.wake = time.Time{} // until it is judged again
		if away != nil || !w.Ready() {
			continue
		}
		now, err := w.scene()
		if err != nil {
			return executor.Permanent("api_error", err.Error())
		}
		if now != nil && now.before(d) { // a cache of the API server that lags behind
			continue
		}
		if now != nil {
			s = now
		}
		o := judge(now)
		if o != nil && o.Class != operation.OutcomeDone { // a cache may lag behind, after an outage by much
			fresh, err := r.anew(ctx, t.Assignment, now)
			if halt := executor.Halted(ctx, t); halt != "" {
				return r.halted(halt, s, v, nil)
			}
			if err != nil {
				return unread(err)
			}
			o = judge(fresh)
		}
		if o != nil {
			if o.Class == operation.OutcomeDone {
				tell(t, nil)
			}
			return *o
		}
	}
}

// anew reads the scene once more, past the cache. What the controller's events
// said stays.
func (r *roller) anew(ctx context.Context, a *protocol.Assignment, cached *scene) (*scene, error) {
	d, err := r.find(ctx, a)
	if err != nil || d == nil {
		return nil, err
	}
	s, err := r.look(ctx, d)
	if err == nil && cached != nil {
		s.events = cached.events
	}
	return s, err
}

// boundary is closed on a cancel that counts for the step.
func boundary(t *executor.Task) <-chan struct{} {
	if t.Step.Cleanup {
		return nil
	}
	return t.Cancelled
}
