//go:build kubetest

package device

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestRights: without any one of the rights something fails that names it. What is
// best effort goes on without, and leaves out what the right is for.
func TestRights(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, lacking := range Rights {
		what := lacking.Verb + " " + lacking.Resource
		if seen[what] { // it has two reasons
			continue
		}
		seen[what] = true
		t.Run(strings.ReplaceAll(what, "/", " "), func(t *testing.T) {
			t.Parallel()
			o := benchOptions{kubelet: true, rights: slices.DeleteFunc(slices.Clone(Rights), func(r cluster.Right) bool { return r.Verb == lacking.Verb && r.Resource == lacking.Resource })}
			if what == "get pods" { // is only asked for when an answer was lost
				o.fault = &kuberig.Fault{Match: kuberig.On(http.MethodPost, "/eviction"), Cut: true}
			}
			b := setup(t, o)
			held := func(opts ...kuberig.PodOption) (ns string) {
				ns = b.r.Namespace()
				b.r.Deployment(ns, "decode", 1, append(opts, kuberig.OnNode(b.node))...)
				b.record(heldBy(b.r.Pods(ns, "decode")...))
				return ns
			}
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
			case "get jobs": // nothing is begun that might have been begun before
				o, _ := b.run("reset", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
				jobs, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{LabelSelector: labelVerb + "=" + report.VerbReset})
				if err != nil || len(jobs.Items) != 0 {
					t.Errorf("%d were begun, %v", len(jobs.Items), err)
				}
			case "delete jobs":
				b.kube.Close()
				task, _ := b.task("reset", "op_rights", 1, 1, `{}`, nil)
				_, outcome := b.begin(task)
				b.status(b.jobPod(report.VerbReset), waitingFor("ImagePullBackOff"))
				o := <-outcome
				want(t, o, operation.OutcomeAmbiguous, "answer_lost")
				says(o.Detail)
			case "list nodes", "watch nodes": // of one whose pods take long
				held(kuberig.Grace(60), kuberig.Shutdown(30*time.Second))
				o, _ := b.run("drain_holders", "op_rights", 1, 1, `{"drain":true}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
			case "list poddisruptionbudgets", "watch poddisruptionbudgets":
				b.r.PDB(held(), "decode", "decode", kuberig.MinAvailable("1"))
				o, _ := b.run("drain_holders", "op_rights", 1, 1, `{"drain":true}`)
				want(t, o, operation.OutcomePermanent, "forbidden")
				says(o.Detail)
			case "create pods/eviction", "get pods":
				held()
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
			case "list events": // that there is no pod is told without, and not why
				b.restrict()
				b.cfg.LookTimeout = 2 * time.Second
				b.typ = Reset(b.c, b.cfg, node.NewDrains(b.c, node.Options{}))
				o, _ := b.run("preflight", "op_rights", 1, 1, `{}`)
				want(t, o, operation.OutcomePermanent, codeNoPod)
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
