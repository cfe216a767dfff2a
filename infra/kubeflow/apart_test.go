//go:build kubetest

package kubeflow

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// wire stands between an agent and the API server, and carries bytes as they are. While
// it is cut connections are taken and nothing gets through, as behind a firewall that
// drops packets.
type wire struct {
	mu  sync.Mutex
	cut bool
	// mended is closed when nothing is cut.
	mended chan struct{}
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut == cut {
		return
	}
	if w.cut = cut; cut {
		w.mended = make(chan struct{})
	} else {
		close(w.mended)
	}
}

func (w *wire) carry(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		w.mu.Lock()
		cut, mended := w.cut, w.mended
		w.mu.Unlock()
		if cut {
			<-mended
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// wireTo opens a wire to the rig's API server, and returns the kubeconfig of whoever
// goes over it.
func wireTo(t *testing.T, s *site) (*wire, string) {
	t.Helper()
	to, err := url.Parse(s.rig.Config(s.user).Host)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{}
	t.Cleanup(func() {
		w.set(false)
		_ = l.Close()
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.Host)
			if err != nil {
				_ = in.Close()
				continue
			}
			go w.carry(out, in)
			go w.carry(in, out)
		}
	}()
	text, err := os.ReadFile(s.rig.Kubeconfig(s.user))
	if err == nil && !strings.Contains(string(text), to.Host) {
		err = io.ErrUnexpectedEOF
	}
	file := filepath.Join(s.dir, "wire.kubeconfig")
	if err == nil {
		err = os.WriteFile(file, []byte(strings.ReplaceAll(string(text), to.Host, l.Addr().String())), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w, file
}

// TestTwoOfWhichOneIsCutOff: an agent that is cut off from the API server takes nothing
// new while another is there, and gives a drain that it holds to that one.
func TestTwoOfWhichOneIsCutOff(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	drained := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(drained.Name))
	rig.PDB(ns, "keep", "web", kuberig.MinAvailable("2"))
	var nodes []string
	for range 8 {
		nodes = append(nodes, rig.Node("gpu").Name)
	}
	apart, kubeconfig := wireTo(t, s)
	s.agent(kubeconfig)
	for _, n := range append(nodes, drained.Name) {
		s.thing("nodes", n)
	}
	asked := s.want("node.drain", "node:"+drained.Name, nil, 10*time.Minute)
	o := s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	first := o.Assignments[0].Agent
	s.agent("")
	apart.set(true)
	cut := time.Now()
	if err := rig.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "keep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Second) // the fault itself: until the agent knows of it
	for _, n := range nodes {
		o := s.ended(s.want("node.cordon", "node:"+n, nil, 2*time.Minute).ID, 3*time.Minute)
		// A machine that stalls may cost leases: how many there were says nothing here.
		if o.Phase != operation.Succeeded || slices.ContainsFunc(o.Assignments, func(a operation.Assignment) bool { return a.Agent == first }) {
			t.Errorf("the cordon: %s", o)
		}
	}
	o = s.ended(asked.ID, time.Until(cut.Add(2*time.Minute)))
	t.Logf("the drain ended %s after its agent was cut off", time.Since(cut).Round(time.Second))
	if o.Phase != operation.Succeeded || o.Assignments[len(o.Assignments)-1].Agent == first {
		t.Errorf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}

// TestCleanupOfOneThatIsCutOff: an agent that is cut off from the API server while it takes
// a cancelled drain's cordon back leaves that to another one.
func TestCleanupOfOneThatIsCutOff(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	drained := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 1, kuberig.OnNode(drained.Name))
	rig.PDB(ns, "keep", "web", kuberig.MinAvailable("1"))
	apart, kubeconfig := wireTo(t, s)
	s.agent(kubeconfig)
	s.thing("nodes", drained.Name)
	asked := s.want("node.drain", "node:"+drained.Name, map[string]any{"on_cancel": "restore"}, 10*time.Minute)
	s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	s.agent("")
	apart.set(true)
	cut := time.Now()
	if status, b := s.call(http.MethodDelete, "/v1/operations/"+asked.ID, nil); status != http.StatusAccepted {
		t.Fatalf("it cannot be cancelled: %d %s", status, b)
	}
	o := s.ended(asked.ID, 3*time.Minute)
	t.Logf("the drain ended %s after its agent was cut off", time.Since(cut).Round(time.Second))
	if last := o.Assignments[len(o.Assignments)-1].Agent; o.Phase != operation.Cancelled || o.Result.Cleanup.State != operation.CleanupDone || last == o.Assignments[0].Agent {
		t.Errorf("the drain: %s, cleanup %+v", o, o.Result.Cleanup)
	}
	n, err := rig.Client(kuberig.Admin).CoreV1().Nodes().Get(t.Context(), drained.Name, metav1.GetOptions{})
	if err != nil || n.Spec.Unschedulable {
		t.Errorf("the node is cordoned: %v", err)
	}
}
