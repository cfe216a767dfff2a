//go:build kubetest

package device

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestRights: without any one of the rights something fails that names it. What is
// best effort goes on without, and leaves out what the right is for.
func TestRights(t *testing.T) {
	t.Parallel()
	for i, lacking := range Rights {
		t.Run(strings.ReplaceAll(lacking.Verb+" "+lacking.Resource, "/", " "), func(t *testing.T) {
			t.Parallel()
			b := setup(t, benchOptions{kubelet: true, rights: slices.Concat(Rights[:i], Rights[i+1:])})
			what := lacking.Verb + " " + lacking.Resource
			says := func(detail string) {
				t.Helper()
				if !strings.Contains(detail, lacking.Resource) && !strings.Contains(detail, strings.Split(lacking.Resource, "/")[0]) || !strings.Contains(detail, lacking.Verb) {
					t.Errorf("the failure does not name %s: %s", what, detail)
				}
			}
			switch what {
			case "create jobs", "get nodes", "list pods", "watch pods":
				o, _ := b.run("preflight", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
			case "list jobs":
				f := b.probe("reset", "op_rights", 1, 1)
				if f.Phase != operation.StepUnknown || f.ErrorCode != "forbidden" {
					t.Errorf("%+v", f)
				}
				says(f.Detail)
			case "get jobs": // the name is taken
				o, _ := b.run("reset", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomeDone, "")
				o, _ = b.run("reset", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
			case "delete jobs":
				b.kube.Close()
				task, _ := b.task("reset", "op_rights", 1, 1, `{}`, nil)
				_, outcome := b.begin(task)
				b.status(b.jobPod(report.VerbReset), waitingFor("ImagePullBackOff"))
				o := <-outcome
				want(t, o, operation.OutcomeAmbiguous, "answer_lost")
				says(o.Detail)
			case "create pods/eviction":
				ns := b.r.Namespace()
				b.r.Deployment(ns, "decode", 1, kuberig.OnNode(b.node))
				b.record(heldBy(b.r.Pods(ns, "decode")...))
				o, _ := b.run("drain_holders", "op_rights", 1, 1, `{"drain":true}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
			case "get configmaps":
				_, err := b.typ.Preview(t.Context(), protocol.PreviewRequest{Type: "device.reset", TargetUID: testUUID, NodeName: b.node})
				if err == nil {
					t.Fatal("a preview without the right")
				}
				says(err.Error())
			case "create events":
				o, _ := b.run("reset", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomeDone, "")
				list, err := b.r.Client(kuberig.Admin).CoreV1().Events(corev1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + b.node + ",reason=DeviceReset"})
				if err != nil || len(list.Items) != 0 {
					t.Errorf("events %v: %v", list.Items, err)
				}
			default:
				t.Errorf("no case for %s: is it needed?", what)
			}
		})
	}
	for _, r := range Rights {
		if r.Namespace != "" && r.Namespace != cluster.OwnNamespace || r.Why == "" {
			t.Errorf("%+v", r)
		}
	}
}
