package deployment

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestRightsBeforeTheRestart: a right that is needed after the restart alone is missed
// before it, in the dry run as well, and one that this kind does not need is not.
func TestRightsBeforeTheRestart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind, undo string
		lacks      []string
		want       []string // the rights that are named; empty: it goes on
	}{
		"ReplicaSets of a Deployment":     {"Deployment", "never", []string{"list replicasets", "watch replicasets"}, []string{"list replicasets.apps", "watch replicasets.apps"}},
		"ReplicaSets of a StatefulSet":    {"StatefulSet", "never", []string{"list replicasets", "watch replicasets"}, nil},
		"watch of pods":                   {"Deployment", "never", []string{"watch pods"}, []string{"watch pods"}},
		"watch of the object":             {"StatefulSet", "never", []string{"watch statefulsets"}, []string{"watch statefulsets.apps"}},
		"restart":                         {"Deployment", "never", []string{"patch deployments"}, []string{"patch deployments.apps"}},
		"events of a StatefulSet":         {"StatefulSet", "never", []string{"list events"}, []string{"list events"}},
		"events of a Deployment":          {"Deployment", "never", []string{"list events", "watch events", "create events"}, nil},
		"events on the object":            {"StatefulSet", "never", []string{"create events"}, nil},
		"deletion of pods, with undo":     {"StatefulSet", "on_failure", []string{"delete pods"}, []string{"delete pods"}},
		"deletion of pods":                {"StatefulSet", "never", []string{"delete pods"}, nil},
		"deletion of a Deployment's pods": {"Deployment", "on_failure", []string{"delete pods"}, nil},
		"another kind":                    {"Deployment", "on_failure", []string{"get statefulsets", "patch statefulsets"}, nil},
		// A role that may not ask for reviews is refused each; so it is for what it has.
		"reviews that deny everything": {"Deployment", "never", []string{"get deployments", "list replicasets"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := serve(t, tt.kind, nil)
			s.lacks = tt.lacks
			now := time.Now()
			c.Now = func() time.Time { return now }
			typ, tk := Roll(c), rollTask()
			tk.Assignment.Payload = []byte(`{"undo":"` + tt.undo + `"}`)
			var named []string
			list, err := typ.Preview(within(t, 10*time.Second), protocol.PreviewRequest{ID: "pre_1", TargetName: "deployment:web/web", TargetUID: "u1", Payload: tk.Assignment.Payload})
			for _, b := range list {
				if b.Code == "forbidden" && b.Rule == "rbac" && b.Resource == "deployment/web/web" {
					named = append(named, b.Detail)
				}
			}
			if err != nil || len(named) != len(tt.want) {
				t.Fatalf("preview %+v %v", list, err)
			}
			o := typ.Steps["preflight"].Execute(within(t, 10*time.Second), tk)
			if len(tt.want) == 0 {
				if o.Class != operation.OutcomeDone {
					t.Errorf("preflight: %+v", o)
				}
				return
			}
			if o.Class != operation.OutcomeWaiting || o.ErrorCode != "forbidden" {
				t.Errorf("preflight at first: %+v", o)
			}
			now = now.Add(executor.DeniedFor)
			if o = typ.Steps["preflight"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" {
				t.Errorf("preflight: %+v", o)
			}
			for i, want := range tt.want {
				if want = "lacks the right to " + want + ","; !strings.Contains(named[i], want) || !strings.Contains(o.Detail, want) {
					t.Errorf("preview %q and preflight %q do not both say %q", named[i], o.Detail, want)
				}
			}
		})
	}
}

// TestRightsThatNobodyTold: what was not answered is no missing right, and no right.
func TestRightsThatNobodyTold(t *testing.T) {
	t.Parallel()
	_, c := serve(t, "Deployment", func(s *apiServer) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
				refuse(w, 503, metav1.StatusReasonServiceUnavailable)
				return
			}
			s.ServeHTTP(w, r)
		})
	})
	if o := Roll(c).Steps["preflight"].Execute(within(t, 10*time.Second), rollTask()); o.Class != operation.OutcomeWaiting || o.ErrorCode != "api_unavailable" {
		t.Errorf("preflight: %+v", o)
	}
}
