package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// interrupted begins the description of a revision that an earlier generation
// began and that nobody was left to finish: it has not failed by itself, so the
// upgrade is begun again.
const interrupted = "Interrupted: "

// upgrade brings the release to the version, once for a run of an operation.
func (j *job) upgrade(ctx context.Context) answer.Answer {
	h, err := j.history()
	switch {
	case err != nil && j.Mark.Generation > 1: // an earlier lease may have begun it
		return unread(err)
	case err != nil:
		return refusal(err)
	}
	if n := h.newer(j.Mark); n > 0 {
		a := h.describe(j.Mark)
		a.Code, a.Detail = answer.StaleGeneration, fmt.Sprintf("generation %d of the operation has changed release %s", n, j.Release)
		return a
	}
	if a, done := j.before(h); done {
		return a
	}
	if h, err = j.recover(ctx, h); err != nil {
		return j.ended(err)
	}
	if a, done := j.before(h); done { // a rollback that was taken up
		return a
	}
	c, err := j.chart()
	if err == nil {
		err = j.check(c, h)
	}
	if err != nil {
		return j.ended(err)
	}
	j.cfg.Releases.Driver = &guard{Driver: j.cfg.Releases.Driver, by: j.Mark, judged: h.last().Version}
	if _, err := j.action().RunWithContext(ctx, j.Release, c, map[string]any{}); err != nil {
		return j.ended(err)
	}
	a := j.ended(nil)
	a.To, a.AppTo = c.Metadata.Version, c.Metadata.AppVersion
	if a.Code == "" {
		a.Detail = fmt.Sprintf("release %s went to version %s, revision %d", j.Release, a.To, a.Own.Revision)
	}
	return a
}

// before answers what this run, or somebody else, did already.
func (j *job) before(h history) (answer.Answer, bool) {
	a := h.describe(j.Mark)
	own := h.own(j.Mark)
	switch {
	case own == nil:
		if h.at(j.Version) {
			a.To, a.AppTo, a.Already = version(h.last()), h.last().Chart.Metadata.AppVersion, true
			a.Detail = fmt.Sprintf("release %s is at version %s already", j.Release, a.To)
			return a, true
		}
		return a, false
	case own.Info.Status == common.StatusDeployed, own.Info.Status == common.StatusSuperseded:
		a.To, a.AppTo = version(own), own.Chart.Metadata.AppVersion
		a.Detail = fmt.Sprintf("revision %d of release %s is this operation's, it went to version %s", own.Version, j.Release, a.To)
		return a, true
	case own.Info.Status == common.StatusFailed && !strings.HasPrefix(own.Info.Description, interrupted) && !h.last().Info.Status.IsPending():
		a.To, a.Code = version(own), answer.UpgradeFailed
		a.Detail = fmt.Sprintf("revision %d of release %s, this operation's, failed", own.Version, j.Release)
		return a, true
	}
	return a, false
}

// recover takes over what an older generation of the operation left pending, if
// it is known to be gone. What is anybody else's stays.
func (j *job) recover(ctx context.Context, h history) (history, error) {
	last := h.last()
	if !last.Info.Status.IsPending() {
		return h, nil
	}
	m, marked := markOf(last)
	if !marked || m.Operation != j.Mark.Operation || !slices.Contains(j.Recover, m.Generation) {
		return nil, pending(j.Release, h)
	}
	j.log.Warn("taking over a revision that was left pending", "revision", last.Version, "generation", m.Generation)
	last.SetStatus(common.StatusFailed, fmt.Sprintf("%soperation %s, generation %d, was cut off", interrupted, m.Operation, m.Generation))
	if err := j.cfg.Releases.Update(last); err != nil {
		return nil, fmt.Errorf("take over revision %d: %w", last.Version, err)
	}
	if back := last.Info.RollbackRevision; back != 0 {
		j.cfg.Releases.Driver = &guard{Driver: j.cfg.Releases.Driver, by: j.Mark, judged: last.Version}
		if err := j.rollback(back); err != nil {
			return nil, fmt.Errorf("roll back to revision %d: %w", back, err)
		}
	}
	return j.history()
}

func (j *job) rollback(to int) error {
	r := action.NewRollback(j.cfg)
	r.Version, r.Timeout, r.MaxHistory = to, j.Timeout, 10
	r.WaitStrategy = kube.StatusWatcherStrategy
	r.Description = fmt.Sprintf("Rolled back by Opsplane operation %s", j.Mark.Operation)
	return r.Run(j.Release)
}

// unread is the answer of an upgrade that could not read what became of it. Whatever keeps
// it from that, a right that was taken away as well as a server that is away, says nothing
// of the release, which may be left half way: that has to be asked for again.
func unread(err error) answer.Answer {
	a := refusal(err)
	if a.Code != answer.ReleaseNotFound {
		a.Code = answer.Unavailable
	}
	a.Detail = "what became of the upgrade could not be read: " + a.Detail
	return a
}

// ended reads the history once more and answers how the upgrade went: err is what
// Helm said, the history is what happened.
func (j *job) ended(err error) answer.Answer {
	if err != nil {
		j.log.Error("upgrade", "err", full(err))
	}
	h, herr := j.history()
	if herr != nil {
		return unread(herr)
	}
	a := h.describe(j.Mark)
	own := h.own(j.Mark)
	made := false // by this program
	if own != nil {
		m, _ := markOf(own)
		made = m == j.Mark
	}
	var r *refused
	worded := errors.As(err, &r)
	switch {
	case err == nil && made && own.Info.Status == common.StatusDeployed:
		return a
	case !made || worded:
		switch {
		case err == nil:
			err = refuse(answer.Internal, "Helm made no revision")
		case worded:
		case h.last().Info.Status.IsPending(): // it lost the race for the revision
			err = pending(j.Release, h)
		default:
			err = notRendered(err)
		}
		x := refusal(err)
		a.Code, a.Detail = x.Code, x.Detail
		return a
	}
	a.To, a.Code = version(own), answer.UpgradeFailed
	a.Detail = fmt.Sprintf("revision %d of release %s failed: %s; %s", own.Version, j.Release, j.why(err), back(a, own))
	if f := forbidden(err); f != "" {
		a.Code, a.Detail = answer.Forbidden, fmt.Sprintf("revision %d of release %s failed: %s; %s", own.Version, j.Release, f, back(a, own))
	}
	return a
}

func (j *job) why(err error) string {
	if err == nil {
		return "Helm does not say why"
	}
	return kindOf(err)
}

func back(a answer.Answer, own *release.Release) string {
	if a.RolledBack {
		return "rolled back to version " + a.From
	}
	if a.Release.Revision > own.Version {
		return fmt.Sprintf("the rollback is %s", a.Release.Status)
	}
	return "not rolled back"
}
