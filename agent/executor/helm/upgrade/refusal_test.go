package upgrade

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
