package upgrade

import (
	"errors"
	"testing"

	chart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

func TestInstallable(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		of   *chart.Metadata
		code string
	}{
		"as asked":        {&chart.Metadata{Version: "1.1.0"}, ""},
		"with a v":        {&chart.Metadata{Version: "v1.1.0"}, ""},
		"another version": {&chart.Metadata{Version: "1.0.0"}, answer.ChartNotFound},
		"a library":       {&chart.Metadata{Version: "1.1.0", Type: "library"}, answer.ChartInvalid},
		"no metadata":     {nil, answer.ChartInvalid},
	} {
		err, code := installable(&chart.Chart{Metadata: tt.of}, "demo", "1.1.0"), ""
		if r, ok := errors.AsType[*refused](err); ok {
			code = r.code
		}
		if code != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
