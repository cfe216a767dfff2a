package upgrade

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// A webhook that the API server cannot call is named, and no API server that is away.
func TestRefusalNamesAnUncalledWebhook(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"EOF", "failed to call webhook: context deadline exceeded"} {
		err := fmt.Errorf("upgrade: %w", apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": `+why)))
		if a := refusal(err); a.Code != answer.Internal || !strings.Contains(a.Detail, `failed calling webhook "guard.example.com"`) {
			t.Errorf("%s: %+v", why, a)
		}
	}
	if a := refusal(apierrors.NewServiceUnavailable("starting")); a.Code != answer.Unavailable {
		t.Errorf("%+v", a)
	}
}

// blind is a storage whose revisions cannot be read.
type blind struct {
	driver.Driver
	err error
}

func (b *blind) Query(map[string]string) ([]release.Releaser, error) { return nil, b.err }

// TestHistoryThatCannotBeRead: a right that is taken away while the upgrade is under way,
// or between two leases, says nothing of what became of it. Before anything was begun it
// is a refusal; so is always that there is no release.
func TestHistoryThatCannotBeRead(t *testing.T) {
	t.Parallel()
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New(`User "up" cannot list resource "secrets" in API group "" in the namespace "n"`))
	for name, tt := range map[string]struct {
		err         error
		first, late string // codes: before the upgrade is begun, and after it or by a later lease
	}{
		"a right is missing":  {denied, answer.Forbidden, answer.Unavailable},
		"the server is away":  {apierrors.NewServiceUnavailable("starting"), answer.Unavailable, answer.Unavailable},
		"who knows":           {errors.New("no"), answer.Internal, answer.Unavailable},
		"there is no release": {driver.ErrReleaseNotFound, answer.ReleaseNotFound, answer.ReleaseNotFound},
	} {
		cfg := action.NewConfiguration()
		cfg.Releases = storage.Init(&blind{err: tt.err})
		j := &job{Options: Options{Release: "r", Namespace: "n", Mark: Mark{Operation: "op_1", Run: 1, Generation: 1}}, cfg: cfg, log: slog.New(slog.DiscardHandler)}
		if a := j.upgrade(t.Context()); a.Code != tt.first {
			t.Errorf("%s, at the beginning: %+v", name, a)
		}
		for _, helm := range []error{nil, errors.New("its time ran out")} {
			if a := j.ended(helm); a.Code != tt.late || !strings.HasPrefix(a.Detail, "what became of the upgrade could not be read: ") {
				t.Errorf("%s, at the end: %+v", name, a)
			}
		}
		j.Mark.Generation = 2
		if a := j.upgrade(t.Context()); a.Code != tt.late {
			t.Errorf("%s, by a later lease: %+v", name, a)
		}
	}
}
