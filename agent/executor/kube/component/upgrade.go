package component

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// again is when a step that could not read the API server looks again.
const again = time.Second

// upgrader carries upgrades out on one cluster.
type upgrader struct {
	*cluster.Cluster
	config  Config
	denials cluster.Denials // of the agent's own rights
}

// Upgrade is component.upgrade on Kubernetes, of version 2: with a choice of what
// follows a failure. An agent whose configuration names no component offers it, too,
// to refuse it at once and by the name of what is off: an operation that waits for
// another agent would wait in vain.
func Upgrade(c *cluster.Cluster, config Config) cluster.Type {
	if config.Timeout == 0 {
		config.Timeout = DefaultTimeout
	}
	u := &upgrader{Cluster: c, config: config}
	return cluster.Type{
		Name: "component.upgrade", Capabilities: []protocol.Capability{{Name: "component.upgrade", Version: 2}},
		Steps: map[string]cluster.Step{
			"preflight": {Probe: u.toCheck, Execute: u.done(u.preflight)},
			"upgrade":   {Probe: u.probe, Execute: u.done(u.upgrade)},
			"verify":    {Probe: u.toCheck, Execute: u.done(u.verify)},
		},
		Observe: u.observe,
		Preview: u.preview,
	}
}

// believed lets a right that the agent lacks end a step only once it is believed. What
// the upgrade's own account lacks is the Job's to tell, and final.
func (u *upgrader) believed(t *executor.Task, o executor.Outcome) executor.Outcome {
	o, first := u.denials.Believed(u.Now(), t.Assignment, o)
	if first {
		t.Note(o.ErrorCode, o.Detail)
	}
	return o
}

// done wraps a step: once it is done, a right that was missing is there.
func (u *upgrader) done(f func(ctx context.Context, t *executor.Task) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return func(ctx context.Context, t *executor.Task) executor.Outcome {
		o := f(ctx, t)
		if o.Class == operation.OutcomeDone {
			return u.believed(t, o)
		}
		return o
	}
}

// toCheck: the step only reads, so it is run again.
func (u *upgrader) toCheck(context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("it only reads, and reads again")
}

// Payload is what component.upgrade is asked for.
type payload struct {
	Component string `json:"component"`
	Version   string `json:"version"`
	Rollback  string `json:"rollback"`
}

// read reads payload and configuration.
func (u *upgrader) read(raw json.RawMessage) (payload, Component, *executor.Outcome) {
	p := payload{Rollback: "on_failure"}
	if err := json.Unmarshal(raw, &p); err != nil {
		o := executor.Permanent("invalid_payload", "read payload: "+err.Error())
		return p, Component{}, &o
	}
	c, known := u.config.Components[p.Component]
	if len(u.config.Components) == 0 {
		o := executor.Permanent("upgrades_off", "the agent upgrades nothing: componentUpgrade.enabled is off in its chart's values, which have to name what may be upgraded")
		return p, c, &o
	}
	if !known {
		o := executor.Permanent("component_not_found", fmt.Sprintf("the agent's configuration lets no operation upgrade %q; it names %s", p.Component, u.config.names()))
		return p, c, &o
	}
	return p, c, nil
}

// preflight asks a Job that only reads what the upgrade would meet.
func (u *upgrader) preflight(ctx context.Context, t *executor.Task) executor.Outcome {
	p, c, bad := u.read(t.Assignment.Payload)
	if bad != nil {
		return *bad
	}
	if o := u.account(ctx, t, c); o != nil {
		return *o
	}
	timeout, o := u.timeout(t, p)
	if o != nil {
		return *o
	}
	if o := u.awaitsAnother(ctx, t, c); o != nil {
		return *o
	}
	q := request{verb: answer.Preflight, component: c, version: p.Version, rollback: p.Rollback == "on_failure", timeout: timeout, attempt: t.Attempt}
	if o := u.make(ctx, t, q); o != nil {
		return *o
	}
	t.Progress(0, 1, "checks", fmt.Sprintf("asking Helm about %s %s", p.Component, p.Version))
	seen := false
	var blocked []protocol.Blocker
	return u.await(ctx, t, func(s scene) *executor.Outcome {
		j := s.named(q.name(t.Assignment))
		if j == nil && seen {
			o := executor.Transient("job_failed", fmt.Sprintf("Job %s was deleted before it answered; nothing was changed", q.name(t.Assignment)))
			return &o
		}
		seen = seen || j != nil
		if j == nil || s.active(j) {
			if j != nil {
				blocked = s.blockers(j)
				tell(t, blocked)
			}
			return nil
		}
		tell(t, nil)
		a, err := s.answer(j)
		var o executor.Outcome
		switch {
		case err != nil && len(s.blockers(j)) > 0:
			o = executor.Permanent(s.blockers(j)[0].Code, s.why(j))
		case err != nil:
			o = executor.Transient("job_failed", s.why(j))
		case a.Code != "":
			o = refusal(a)
		default:
			for _, w := range a.Warnings {
				t.Note(w.Code, w.Detail)
			}
			o = executor.Done(a.Detail)
		}
		return &o
	}, func(why string) executor.Outcome {
		const detail = "stopped while Helm was asked; nothing was changed"
		if why == "interrupted" && len(blocked) > 0 { // which is what its time went into
			return executor.Waiting(blocked[0].Code, detail+": "+blocked[0].Detail)
		}
		return executor.Waiting(why, detail)
	})
}

// refusal is the outcome for an answer's code.
func refusal(a answer.Answer) executor.Outcome {
	switch a.Code {
	case answer.Incompatible:
		return executor.Permanent("incompatible_version", a.Detail)
	case answer.Unavailable:
		return executor.Transient("api_unavailable", "the upgrade's pod: "+a.Detail)
	case answer.ChartUnavailable:
		return executor.Transient(a.Code, a.Detail)
	}
	return executor.Permanent(a.Code, a.Detail)
}

// named is the Job of a name; nil if it is not there.
func (s scene) named(name string) *batchv1.Job {
	for _, j := range s.jobs {
		if j.Name == name {
			return j
		}
	}
	return nil
}

// account looks whether the service account is there: without it the Job would
// wait for a pod in vain.
func (u *upgrader) account(ctx context.Context, t *executor.Task, c Component) *executor.Outcome {
	rctx, cancel := u.Read(ctx)
	defer cancel()
	name := u.config.account(c)
	_, err := u.Client.CoreV1().ServiceAccounts(u.Namespace).Get(rctx, name, metav1.GetOptions{})
	var o executor.Outcome
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		o = executor.Permanent("account_missing", fmt.Sprintf("namespace %s has no service account %s, under which upgrades run", u.Namespace, name))
	default:
		o = u.unread(t, err)
	}
	return &o
}

// least is the shortest wait that makes an upgrade worth beginning.
const least = 10 * time.Second

// timeout is how long the new version may take to get ready within what is left
// of the operation's time, a rollback counted in.
func (u *upgrader) timeout(t *executor.Task, p payload) (time.Duration, *executor.Outcome) {
	left := t.Remaining() - 20*time.Second // for the Job to be placed and its answer to be read
	if p.Rollback == "on_failure" {
		left /= 2
	}
	if left < least {
		o := executor.Permanent("deadline_too_near", fmt.Sprintf("%s are left of the operation's time, too little for an upgrade", t.Remaining().Round(time.Second)))
		return 0, &o
	}
	return min(u.config.Timeout, left.Round(time.Second)), nil
}

// make makes a request's Job: an effect of kind (a), by its name. One that is
// there is this lease's own.
func (u *upgrader) make(ctx context.Context, t *executor.Task, q request) *executor.Outcome {
	if halt := executor.Halted(ctx, t); halt != "" {
		o := executor.Waiting(halt, "stopped before a Job was made")
		return &o
	}
	made, reply, stop := u.MakeJob(ctx, t, u.job(t.Assignment, q), q.verb != answer.Upgrade)
	if stop != nil {
		o := u.believed(t, *stop)
		return &o
	}
	var o executor.Outcome
	switch reply.Category {
	case cluster.OK:
		u.Event(ctx, t, corev1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: made.Namespace, Name: made.Name, UID: made.UID},
			corev1.EventTypeNormal, "OpsplaneUpgrade", fmt.Sprintf("Helm %s of release %s/%s", q.verb, q.component.Namespace, q.component.Release))
		return nil
	case cluster.Already:
		return nil
	case cluster.Refused:
		o = executor.Permanent("admission_refused", "the Job is refused: "+reply.Err.Error())
	case cluster.Throttled:
		o = executor.Transient("api_unavailable", "the API server is busy: "+reply.Err.Error())
		o.After = max(reply.RetryAfter, o.After)
	default:
		o = executor.Transient("api_error", reply.Err.Error())
	}
	o.CommandID = reply.Command
	return &o
}

// tell says what stands in the way; nothing if the task has no ear for it.
func tell(t *executor.Task, now []protocol.Blocker) {
	if t.Blocked != nil {
		t.Blocked(now)
	}
}

// upgrade brings the upgrade to its end: it takes up a Job that is under way,
// reads the answer of one that ended, or makes one.
func (u *upgrader) upgrade(ctx context.Context, t *executor.Task) executor.Outcome {
	a := t.Assignment
	p, c, bad := u.read(a.Payload)
	// The Job that this call made, the last that was under way, and the last that was gone
	// while its pod was under way.
	var made, under, orphaned string
	return u.await(ctx, t, func(s scene) *executor.Outcome {
		if j := s.busy(answer.Upgrade); j != nil {
			under = j.Name
			tell(t, onlyBefore(s, j))
			t.Progress(0, 1, "components", fmt.Sprintf("upgrading %s to %s (Job %s)", p.Component, p.Version, j.Name))
			return nil
		}
		if o := s.orphan(answer.Upgrade); o != nil {
			orphaned = jobOf(o)
			tell(t, []protocol.Blocker{{Code: "in_progress", Resource: "pod/" + o.Namespace + "/" + o.Name, Rule: "Job " + orphaned, Detail: deleted(o)}})
			return nil
		}
		if said, j := s.settled(a.Operation, a.Run); j != nil {
			tell(t, nil)
			o := u.outcome(t, said)
			return &o
		}
		if bad != nil {
			return bad
		}
		before := orphaned
		if before == made { // the watch of pods may be ahead of that of Jobs
			before = ""
		}
		if job := cmp.Or(under, before); job != "" && s.named(job) == nil {
			tell(t, nil)
			o := executor.Ambiguous(fmt.Sprintf("Job %s was deleted before it answered", job))
			return &o
		}
		q := request{verb: answer.Upgrade, component: c, version: p.Version, rollback: p.Rollback == "on_failure", recover: s.dead()}
		name := q.name(a)
		switch j := s.named(name); {
		case j != nil && made == "":
			o := executor.Ambiguous(s.why(j)) // of an earlier attempt under this lease
			return &o
		case j != nil:
			o := executor.Ambiguous(s.why(j))
			if said, err := s.answer(j); err == nil {
				o = unsettled(said)
			}
			return &o
		case made != "": // the watch has not seen it yet
			return nil
		}
		if o := u.awaitsAnother(ctx, t, c); o != nil { // since the preflight
			return o
		}
		timeout, o := u.timeout(t, p)
		if o != nil {
			return o
		}
		q.timeout, q.left = timeout, t.Remaining()
		made = name
		return u.make(ctx, t, q)
	}, func(why string) executor.Outcome {
		job := cmp.Or(made, under, orphaned)
		if job == "" {
			return executor.Waiting(why, "stopped before the upgrade was begun")
		}
		return executor.Ambiguous(fmt.Sprintf("the upgrade of %s was begun and had not ended when its time was up; Job %s goes on", p.Component, job))
	})
}

// deleted words a pod that outlives its Job.
func deleted(p *corev1.Pod) string {
	return fmt.Sprintf("Job %s was deleted; its pod %s has not ended and may change the release yet", jobOf(p), p.Name)
}

// onlyBefore are a Job's blockers as long as its pod has not begun.
func onlyBefore(s scene, j *batchv1.Job) []protocol.Blocker {
	for _, p := range s.podsOf(j) {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil || c.State.Terminated != nil {
				return nil
			}
		}
	}
	return s.blockers(j)
}

// unsettled is the outcome when this lease's own Job lost to another's, or could
// not read how it ended.
func unsettled(a answer.Answer) executor.Outcome {
	if a.Code == answer.StaleGeneration {
		return executor.Transient("fenced", a.Detail)
	}
	return executor.Ambiguous(a.Detail)
}

// outcome is how the upgrade ended, by its answer.
func (u *upgrader) outcome(t *executor.Task, a answer.Answer) executor.Outcome {
	if a.Code != "" {
		o := refusal(a)
		o.Class = operation.OutcomePermanent // a run of the operation upgrades once
		return o
	}
	for _, w := range a.Warnings {
		t.Note(w.Code, w.Detail)
	}
	return executor.Done(a.Detail)
}
