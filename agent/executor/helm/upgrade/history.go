package upgrade

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// Labels of a revision's secret that this program made.
const (
	labelOperation  = "opsplane.io/operation"
	labelRun        = "opsplane.io/run"
	labelGeneration = "opsplane.io/generation"
	// labelRevision is the revision's own number: Helm copies labels from revision
	// to revision, so a mark counts only where it was set.
	labelRevision = "opsplane.io/revision"
)

// history is a release's revisions, oldest first; there is at least one.
type history []*release.Release

func (j *job) history() (history, error) {
	list, err := j.cfg.Releases.History(j.Release)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, fmt.Errorf("read the history of release %s: %w", j.Release, err)
	}
	var h history
	for _, r := range list {
		if r, ok := r.(*release.Release); ok && r.Info != nil && r.Chart != nil && r.Chart.Metadata != nil {
			h = append(h, r)
		}
	}
	if len(h) == 0 {
		return nil, refuse(answer.ReleaseNotFound, "namespace %s has no Helm release %s", j.Namespace, j.Release)
	}
	slices.SortFunc(h, func(a, b *release.Release) int { return cmp.Compare(a.Version, b.Version) })
	return h, nil
}

func (h history) last() *release.Release { return h[len(h)-1] }

// deployed is the revision that is in force; nil if none is.
func (h history) deployed() *release.Release {
	for _, r := range slices.Backward(h) {
		if r.Info.Status == common.StatusDeployed {
			return r
		}
	}
	return nil
}

// markOf reads a revision's mark.
func markOf(r *release.Release) (Mark, bool) {
	if r.Labels[labelOperation] == "" || r.Labels[labelRevision] != strconv.Itoa(r.Version) {
		return Mark{}, false
	}
	run, err := strconv.Atoi(r.Labels[labelRun])
	generation, err2 := strconv.ParseInt(r.Labels[labelGeneration], 10, 64)
	if err != nil || err2 != nil {
		return Mark{}, false
	}
	return Mark{Operation: r.Labels[labelOperation], Run: run, Generation: generation}, true
}

func (m Mark) labels(revision int) map[string]string {
	return map[string]string{labelOperation: m.Operation, labelRun: strconv.Itoa(m.Run),
		labelGeneration: strconv.FormatInt(m.Generation, 10), labelRevision: strconv.Itoa(revision)}
}

// own is the newest upgrade that the run of the operation made: a rollback is no
// upgrade.
func (h history) own(by Mark) *release.Release {
	for _, r := range slices.Backward(h) {
		if m, ok := markOf(r); ok && m.Operation == by.Operation && m.Run == by.Run && r.Info.RollbackRevision == 0 {
			return r
		}
	}
	return nil
}

// newer is a generation of the operation above by's that has made a revision; 0:
// none.
func (h history) newer(by Mark) int64 {
	most := int64(0)
	for _, r := range h {
		if m, ok := markOf(r); ok && m.Operation == by.Operation && m.Generation > by.Generation {
			most = max(most, m.Generation)
		}
	}
	return most
}

// rolledBack tells whether the release is back at what was before own failed.
func (h history) rolledBack(own *release.Release) bool {
	last := h.last()
	return last.Version > own.Version && last.Info.Status == common.StatusDeployed && last.Info.RollbackRevision != 0 && last.Info.RollbackRevision < own.Version
}

// describe tells what is known of the release.
func (h history) describe(by Mark) answer.Answer {
	a := answer.Answer{Release: view(h.last())}
	if d := h.deployed(); d != nil {
		a.From = version(d)
	}
	if own := h.own(by); own != nil {
		a.Own = view(own)
		a.RolledBack = own.Info.Status == common.StatusFailed && h.rolledBack(own)
	}
	return a
}

func view(r *release.Release) *answer.Release {
	v := &answer.Release{Revision: r.Version, Status: r.Info.Status.String(), Chart: version(r), App: r.Chart.Metadata.AppVersion}
	if m, ok := markOf(r); ok {
		v.Operation, v.Run, v.Generation = m.Operation, m.Run, m.Generation
	}
	return v
}

func version(r *release.Release) string { return r.Chart.Metadata.Version }
