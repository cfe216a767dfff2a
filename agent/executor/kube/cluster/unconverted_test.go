package cluster

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/opsplane/opsplane/shared/operation"
)

// TestUnconverted: an API server that cannot have objects converted answers, and is not
// away. What it says is told, of one object and of a list as it words them.
func TestUnconverted(t *testing.T) {
	t.Parallel()
	const why = `conversion webhook for leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet failed: Post "https://lws:443/convert?timeout=30s": EOF`
	sets := schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
	list := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Message: "failed to read one or more leaderworkersets from the storage: StorageError: corrupt object: " + why,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse, Message: why}}}}}
	for name, tt := range map[string]struct {
		err error
		is  bool
	}{
		"one object":         {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: why}}, true},
		"a list":             {list, true},
		"a balancer's words": {apierrors.NewGenericServerResponse(500, "get", sets, "llm", why, 0, true), false},
		"no answer":          {errors.New(why), false},
		"another error":      {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), false},
	} {
		o, f := Broken(tt.err), Unread(tt.err)
		u := &Unanswered{Since: time.Now(), Err: tt.err}
		b := u.Blocker()
		if (UnconvertedBy(tt.err) == "leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet") != tt.is || (o.ErrorCode == CodeUnconverted) != tt.is || (u.Code() == CodeUnconverted) != tt.is || (b.Code == CodeUnconverted) != tt.is {
			t.Errorf("%s: %+v, %+v", name, o, b)
		}
		if f.Phase != operation.StepUnknown || f.ErrorCode != map[bool]string{true: CodeUnconverted, false: CodeUnavailable}[tt.is] {
			t.Errorf("%s: found %+v", name, f)
		}
		if tt.is && (o.Class != operation.OutcomeWaiting || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.Detail, "cannot convert leaderworkerset.x-k8s.io/v1") || !strings.Contains(b.Detail, "cannot convert leaderworkerset.x-k8s.io/v1")) {
			t.Errorf("%s: %+v, %+v", name, o, b)
		}
	}
}
