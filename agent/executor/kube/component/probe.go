package component

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
)

// probe reads what became of the upgrade.
func (u *upgrader) probe(ctx context.Context, t *executor.Task) executor.Finding {
	a := t.Assignment
	p, c, bad := u.read(a.Payload) // an agent that knows the component no longer still sees what was begun
	s, err := u.look(ctx, a.Operation)
	if err != nil {
		return cluster.Unread(err)
	}
	if j := s.busy(answer.Upgrade); j != nil {
		if a.Cancel { // not cancelled while it goes on
			return executor.Unknown("in_progress", fmt.Sprintf("the upgrade of %s is still under way (Job %s)", p.Component, j.Name))
		}
		return executor.ToRun(fmt.Sprintf("Job %s is under way: it is taken up", j.Name))
	}
	if o := s.orphan(answer.Upgrade); o != nil {
		return executor.Unknown("in_progress", deleted(o))
	}
	if said, j := s.settled(a.Operation, a.Run); j != nil {
		return finding(said)
	}
	if len(s.of(answer.Upgrade, a.Run)) == 0 {
		return executor.ToRun("there is no upgrade of this run")
	}
	switch b, err := u.another(ctx, a, c); {
	case err != nil:
		return cluster.Unread(err)
	case b != nil:
		f := executor.Unknown(b.Code, b.Detail)
		f.Blocker = b
		return f
	}
	if bad != nil {
		return executor.Unknown(bad.ErrorCode, "the upgrade's answer is lost, and Helm's history cannot be asked for: "+bad.Detail)
	}
	said, err := u.history(ctx, t, s, c)
	if err != nil {
		return untold(err)
	}
	switch own := said.Own; {
	case own != nil && own.Status == "pending-upgrade" && !slices.Contains(s.dead(), own.Generation):
		return executor.Unknown("in_progress", fmt.Sprintf("%s; the pod of generation %d, which made it, was not seen to end", said.Detail, own.Generation))
	case own == nil || own.Status == "pending-upgrade" || own.Status == "pending-rollback":
		return executor.ToRun("the upgrade was cut off: " + said.Detail)
	case own.Status == "failed":
		said.Code = answer.UpgradeFailed
		return finding(said)
	}
	return executor.Found(said.Detail)
}

func finding(a answer.Answer) executor.Finding {
	if a.Code == "" {
		return executor.Found(a.Detail)
	}
	o := refusal(a)
	if o.Class == operation.OutcomeTransient { // nothing was changed
		return executor.ToRun(a.Detail)
	}
	return executor.Lost(o.ErrorCode, o.Detail)
}

// unheard is that a Job which only reads told nothing.
type unheard struct{ executor.Outcome }

func (u *unheard) Error() string { return u.ErrorCode + ": " + u.Detail }

// untold is the finding of a probe that Helm's history was not read to.
func untold(err error) executor.Finding {
	f := cluster.Unread(err)
	if u := (*unheard)(nil); errors.As(err, &u) {
		f = executor.Unknown(u.ErrorCode, u.Detail)
		if u.Class == operation.OutcomeWaiting { // the probe's time is over, the Job goes on
			f.ErrorCode = "in_progress"
		}
	}
	f.Detail = "the upgrade's answer is lost, and Helm's history was not read: " + f.Detail
	return f
}

// history asks Helm what became of a run whose upgrade left no answer. A probe may
// end before a pod is there, so what an earlier one asked is taken up, whichever
// lease that was under: the run's revisions are the same as long as no upgrade of it
// was begun since.
func (u *upgrader) history(ctx context.Context, t *executor.Task, s scene, c Component) (answer.Answer, error) {
	a := t.Assignment
	q := request{verb: answer.Status, component: c, after: s.tried(a.Run), attempt: 1}
	for _, j := range s.of(answer.Status, a.Run) {
		if j.Annotations[annotationAfter] == "" {
			continue
		}
		said, err := s.answer(j)
		if j.Annotations[annotationAfter] == q.after && (s.active(j) || err == nil && said.Code == "") {
			return u.hear(ctx, t, j.Name)
		}
		if generationOf(j) == a.Generation { // its answer is of no use any more
			q.attempt = max(q.attempt, cmp.Or(attemptOf(j), q.attempt)+1) // earlier ones may be gone
		}
	}
	return u.ask(ctx, t, q)
}

// ask runs a Job that only reads and returns its answer. It is harmless when
// repeated, so it needs no fence: a probe may ask.
func (u *upgrader) ask(ctx context.Context, t *executor.Task, q request) (answer.Answer, error) {
	job := u.job(t.Assignment, q)
	_, err := u.AskJob(ctx, job.Name, job)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return answer.Answer{}, err
	}
	return u.hear(ctx, t, job.Name)
}

// hear waits for a Job's answer.
func (u *upgrader) hear(ctx context.Context, t *executor.Task, name string) (answer.Answer, error) {
	var got answer.Answer
	seen := false
	o := u.await(ctx, &executor.Task{Assignment: t.Assignment, Step: t.Step, Progress: func(int, int, string, string) {}, Note: func(string, string) {}}, func(s scene) *executor.Outcome {
		j := s.named(name)
		if j == nil && seen {
			o := executor.Permanent("job_failed", "Job "+name+" was deleted before it answered")
			return &o
		}
		seen = seen || j != nil
		if j == nil || s.active(j) {
			return nil
		}
		o := executor.Done("")
		var err error
		if got, err = s.answer(j); err != nil {
			o = executor.Permanent("job_failed", s.why(j))
		} else if got.Code != "" {
			o = refusal(got)
		}
		return &o
	}, func(why string) executor.Outcome {
		return executor.Waiting(why, "Job "+name+" has not answered yet")
	})
	if o.Class != operation.OutcomeDone {
		return got, &unheard{o}
	}
	return got, nil
}
