//go:build kubetest

package kubeflow

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// ask is what is asked of the plane.
type ask struct {
	typ, target string
	payload     map[string]any
}

// scene is an operation and what it is about, made anew for each time that it is
// carried out.
type scene struct {
	ask
	kind, name string   // what the inventory has to tell of before it is asked for
	flags      []string // of the agents
	// changes tells which requests of an agent change what the operation is about.
	changes func(r *http.Request) bool
	// step is the one whose effect must not come twice, and effect tells the request
	// that it is by its body. None of a drain: its effects are harmless when repeated.
	step   string
	effect func(r *http.Request, body []byte) bool
	// late looks at that request of an agent which came after another had taken over,
	// as the audit log has it.
	late func(t *testing.T, e kuberig.AuditEvent)
	// proof holds what is there at the end to what one agent alone would have left.
	// struck is the path of the request at which an agent was killed, "" of none.
	proof func(t *testing.T, struck string)
	// next is asked for afterwards and must come through: nothing is locked.
	next ask
}

// work makes a scene on a control plane.
type work struct {
	rig   func(t *testing.T) *kuberig.Rig
	scene func(t *testing.T, s *site) *scene
}

// works are the operations whose agents are killed and stopped, and that the
// shared control plane is enough for.
func works() map[string]work {
	on := func(t *testing.T) *kuberig.Rig { return kuberig.Shared(t) }
	return map[string]work{
		"drain":           {on, drainScene},
		"roll":            {on, rollScene},
		"reset":           {on, func(t *testing.T, s *site) *scene { return resetScene(t, s, false) }},
		"drain and reset": {on, func(t *testing.T, s *site) *scene { return resetScene(t, s, true) }},
	}
}

// drainScene is a node with three pods.
func drainScene(_ *testing.T, s *site) *scene {
	node := s.rig.Node("gpu")
	ns := s.rig.Namespace()
	for i := range 3 {
		s.rig.StatefulSet(ns, fmt.Sprintf("s%d", i), 1, kuberig.OnNode(node.Name), kuberig.Shutdown(time.Second))
	}
	planned := map[types.UID]bool{}
	for _, p := range s.rig.PodsOn(node.Name) {
		planned[p.UID] = true
	}
	return &scene{
		ask: ask{"node.drain", "node:" + node.Name, nil}, kind: "nodes", name: node.Name, changes: inEarnest,
		proof: func(t *testing.T, struck string) {
			for _, p := range s.rig.PodsOn(node.Name) {
				if planned[p.UID] {
					t.Errorf("pod %s is still there", p.Name)
				}
			}
			onceEach(t, s.rig, ns, struck)
		},
		next: ask{"node.uncordon", "node:" + node.Name, nil},
	}
}

// rollScene is a Deployment of two pods.
func rollScene(_ *testing.T, s *site) *scene {
	node := s.rig.Node("gpu")
	ns := s.rig.Namespace()
	s.rig.Deployment(ns, "web", 2, kuberig.OnNode(node.Name))
	again := ask{"deployment.roll", "deployment:" + ns + "/web", nil}
	patched := func() (all []kuberig.AuditEvent) {
		for _, e := range s.rig.Audit() {
			if e.Verb == "patch" && e.Resource == "deployments" && e.Namespace == ns && !dry(e) {
				all = append(all, e)
			}
		}
		return all
	}
	return &scene{
		ask: again, kind: "deployments", name: ns + "/web", changes: inEarnest, next: again,
		step: "restart", effect: func(r *http.Request, _ []byte) bool {
			return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/deployments/web") && inEarnest(r)
		},
		late: func(t *testing.T, e kuberig.AuditEvent) {
			if e.Code != http.StatusConflict {
				t.Errorf("the patch that came late is answered %d, want %d", e.Code, http.StatusConflict)
			}
		},
		proof: func(t *testing.T, struck string) {
			accepted := 0
			for _, e := range patched() {
				if e.Code == http.StatusOK && strings.Contains(string(e.Request), "restartedAt") {
					accepted++
				}
			}
			if accepted != 1 {
				t.Errorf("%d patches of the template were accepted, killed at %q", accepted, struck)
			}
			sets, err := s.rig.Client(kuberig.Admin).AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(sets.Items); n != 2 {
				t.Errorf("%d revisions, want that of before and one more", n)
			}
		},
	}
}

// inEarnest tells whether a request changes something that counts: not when it is
// only to be judged, and an event on an object is told, not done.
func inEarnest(r *http.Request) bool {
	if !changes(r) || strings.Contains(r.URL.RawQuery, "dryRun=All") || strings.HasSuffix(r.URL.Path, "/events") || strings.Contains(r.URL.Path, "accessreviews") {
		return false
	}
	// An eviction says so within. No name has a capital letter.
	return !strings.HasSuffix(r.URL.Path, "/eviction") || !bytes.Contains(body(r), []byte("All"))
}
