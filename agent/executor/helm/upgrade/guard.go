package upgrade

import (
	"fmt"
	"maps"

	"helm.sh/helm/v4/pkg/release"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// guard stands before Helm's storage. It lets the first new revision pass only if
// it directly follows the one that was judged, and puts the operation's mark on
// all of them: the upgrade, and the rollback should it fail.
type guard struct {
	driver.Driver
	by     Mark
	judged int // the newest revision that was judged
}

// Create stores a new revision under its number; of two writers one loses.
func (g *guard) Create(key string, r release.Releaser) error {
	rel, ok := r.(*releasev1.Release)
	if !ok {
		return fmt.Errorf("store revision %s: a release of type %T", key, r)
	}
	if rel.Version != g.judged+1 {
		return refuse(answer.ReleasePending, "revision %d was judged, and somebody else has made revision %d since", g.judged, rel.Version-1)
	}
	labels := maps.Clone(rel.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, g.by.labels(rel.Version))
	rel.Labels = labels
	if err := g.Driver.Create(key, rel); err != nil {
		return err
	}
	g.judged = rel.Version
	return nil
}
