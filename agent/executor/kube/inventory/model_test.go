package inventory

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

// plane keeps what is told as the plane does: of each object the newest revision.
type plane struct {
	t       interface{ Fatalf(string, ...any) }
	objects map[string]any
	newest  map[string]int64
}

func newPlane(t interface{ Fatalf(string, ...any) }) *plane {
	return &plane{t: t, objects: map[string]any{}, newest: map[string]int64{}}
}

func (p *plane) each(in protocol.Inventory, f func(key string, revision int64, o any)) {
	for _, o := range in.Nodes {
		f("node/"+o.UID, o.Revision, o)
	}
	for _, o := range in.Devices {
		f("device/"+o.UID, o.Revision, o)
	}
	for _, o := range in.Deployments {
		f("deployment/"+o.UID, o.Revision, o)
	}
	for _, o := range in.Components {
		f("component/"+o.UID, o.Revision, o)
	}
}

// take takes a delta: every object in it must be newer than it was.
func (p *plane) take(d executor.Delta) {
	p.each(d.Objects, func(key string, revision int64, o any) {
		if revision <= p.newest[key] {
			p.t.Fatalf("%s is told again at revision %d after %d", key, revision, p.newest[key])
		}
		p.objects[key], p.newest[key] = o, revision
	})
	for _, key := range d.Gone {
		delete(p.objects, key) // it may have come and gone untold
	}
}

// full takes a snapshot: what is newer, and what it does not name is gone.
func (p *plane) full(in protocol.Inventory) {
	named := map[string]bool{}
	p.each(in, func(key string, revision int64, o any) {
		named[key] = true
		if revision > p.newest[key] {
			p.objects[key], p.newest[key] = o, revision
		}
	})
	for key := range p.objects {
		if !named[key] {
			delete(p.objects, key)
		}
	}
}

// same tells what of the plane's inventory is not as it should be.
func (p *plane) diff(in protocol.Inventory) string {
	want := map[string]any{}
	p.each(in, func(key string, _ int64, o any) { want[key] = o })
	return cmp.Diff(bare(want), bare(p.objects))
}

// bare leaves out revisions: an older agent may have told the same at
// another one.
func bare(in map[string]any) map[string]any {
	out := map[string]any{}
	for key, o := range in {
		switch x := o.(type) {
		case protocol.Node:
			x.Revision = 0
			o = x
		case protocol.Device:
			x.Revision = 0
			o = x
		case protocol.Deployment:
			x.Revision = 0
			o = x
		case protocol.Component:
			x.Revision = 0
			o = x
		}
		out[key] = o
	}
	return out
}

// server is an API server: objects with one counter of versions, and for each
// resource what has happened, which agents read at their own pace.
type server struct {
	version int64
	objects [4]map[string]metav1.Object
	log     [4][]happening
}

type happening struct {
	gone    bool
	object  metav1.Object
	version int64
}

func newServer() *server {
	s := &server{version: 100}
	for i := range s.objects {
		s.objects[i] = map[string]metav1.Object{}
	}
	return s
}

func (s *server) do(kind int, o metav1.Object, gone bool) {
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	key := string(o.GetUID())
	if gone {
		delete(s.objects[kind], key)
	} else {
		s.objects[kind][key] = o
	}
	s.log[kind] = append(s.log[kind], happening{gone, o, s.version})
}

// any makes a change of its own accord.
func (s *server) change(t *rapid.T, born *int) {
	pick := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(t, name) }
	name := "n" + strconv.Itoa(pick("node", 3))
	uidOf := func() string { // the node's that is there under the name, or a new one's
		for uid := range s.objects[0] {
			if strings.HasPrefix(uid, name+"-") {
				return uid
			}
		}
		*born++
		return fmt.Sprintf("%s-%d", name, *born)
	}
	switch kind := pick("kind", 4); kind {
	case 0:
		o := aNode(name, uidOf(), pick("gpus", 3))
		o.Spec.Unschedulable = pick("cordoned", 2) == 1
		if pick("ready", 2) == 1 {
			setReady(o, corev1.ConditionFalse)
		}
		s.do(kind, o, pick("gone", 4) == 0 && s.objects[0][string(o.UID)] != nil)
	case 1:
		o := aPod("p"+strconv.Itoa(pick("pod", 6)), name, "d")
		s.do(kind, o, pick("gone", 3) == 0 && s.objects[1][string(o.UID)] != nil)
	case 2:
		o := aDeployment("default", "d"+strconv.Itoa(pick("deployment", 2)), 2)
		setStatus(o, pick("ready", 3), 2, "x")
		if pick("part", 2) == 1 {
			o.Labels["helm.sh/chart"] = "gpu-operator-v1.0." + strconv.Itoa(pick("version", 2))
		}
		s.do(kind, o, pick("gone", 4) == 0 && s.objects[2][string(o.UID)] != nil)
	case 3:
		o := aSlice("s-"+name, name, map[string]string{"uuid": uuid(pick("gpu", 4)), "index": "#0"})
		s.do(kind, o, pick("gone", 3) == 0 && s.objects[3][string(o.UID)] != nil)
	}
}

// agent follows a server.
type agent struct {
	*world
	stores [4]store
	read   [4]int // happenings that were taken
}

// newAgent reads its first lists. What happens between two of them is meanwhile's.
func newAgent(t testing.TB, s *server, meanwhile func()) *agent {
	w := newWorld(Options{})
	a := &agent{world: w, stores: [4]store{w.nodes, w.pods, w.deployments, w.slices}}
	for i := range a.stores {
		a.list(t, s, i)
		if meanwhile != nil {
			meanwhile()
		}
	}
	w.settle()
	return a
}

func (a *agent) list(t testing.TB, s *server, i int) {
	var all []any
	for _, o := range s.objects[i] {
		all = append(all, clone(o))
	}
	a.read[i] = len(s.log[i])
	if err := a.stores[i].Replace(all, strconv.FormatInt(s.version, 10)); err != nil {
		t.Fatal(err)
	}
}

// clone makes sure that what a server does later does not show in a fact.
func clone(o metav1.Object) metav1.Object {
	switch x := o.(type) {
	case *corev1.Node:
		return x.DeepCopy()
	case *corev1.Pod:
		return x.DeepCopy()
	case *appsv1.Deployment:
		return x.DeepCopy()
	}
	return o
}

// follow takes up to n happenings of a resource.
func (a *agent) follow(t testing.TB, s *server, i, n int) {
	for ; n > 0 && a.read[i] < len(s.log[i]); n-- {
		h := s.log[i][a.read[i]]
		a.read[i]++
		do := a.stores[i].Update
		if h.gone {
			do = a.stores[i].Delete
		}
		if err := do(clone(h.object)); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever happens in whichever order the watches tell it, with lists in between
// and another agent taking over in the middle, the plane ends with what is there,
// and no revision ever falls.
func TestThePlaneFollows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, born := newServer(), 0
		for range rapid.IntRange(0, 20).Draw(rt, "before") {
			s.change(rt, &born)
		}
		p, a := newPlane(rt), newAgent(t, s, nil)
		a.raise(s.version)
		a.begin()
		p.full(a.snapshot())
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2, 3:
				s.change(rt, &born)
			case 4, 5, 6:
				a.follow(t, s, rapid.IntRange(0, 3).Draw(rt, "resource"), rapid.IntRange(1, 4).Draw(rt, "some"))
			case 7:
				p.take(a.told())
			case 8:
				a.list(t, s, rapid.IntRange(0, 3).Draw(rt, "list"))
			case 9: // the agent dies with what it had not told; leases go on being renewed
				s.version++
				old := a
				a = newAgent(t, s, func() {
					for range rapid.IntRange(0, 2).Draw(rt, "meanwhile") { // the old one still lives
						s.change(rt, &born)
						old.follow(t, s, rapid.IntRange(0, 3).Draw(rt, "resource"), rapid.IntRange(0, 4).Draw(rt, "some"))
						p.take(old.told())
					}
				})
				a.raise(s.version)
				a.begin()
				p.full(a.snapshot())
			}
		}
		for i := range a.stores {
			a.follow(t, s, i, 1000)
		}
		p.take(a.told())
		if d := p.diff(a.snapshot()); d != "" {
			rt.Fatalf("the plane has something else: %s", d)
		}
		fresh := newAgent(t, s, nil)
		if d := p.diff(fresh.snapshot()); d != "" {
			rt.Fatalf("an agent that comes new sees something else: %s", d)
		}
	})
}

// What happens while nobody watches is told to the next Watch if it is young
// enough, once.
func TestEventsWaitForTheNextWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.nodes, aNode("a", "a", 0))
	if diff := cmp.Diff([]string{"node.joined a"}, w.happened()); diff != "" {
		t.Error(diff)
	}
	w.end()
	w.put(t, w.nodes, aNode("old", "old", 0))
	w.hands.pass(handover + time.Second)
	w.put(t, w.nodes, aNode("new", "new", 0))
	w.begin()
	if diff := cmp.Diff([]string{"node.joined new"}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

func TestEventsThatNobodyTakesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	for i := range eventsMost + 50 {
		w.put(t, w.nodes, aNode("n", "n-"+strconv.Itoa(i), 0)) // each a new node: left and joined
	}
	d, _ := w.take(2 * eventsMost)
	if n := len(d.Events); n > eventsMost || n < eventsMost*9/10 {
		t.Errorf("%d events wait, the limit is %d", n, eventsMost)
	}
	if last := d.Events[len(d.Events)-1]; last.Subject.UID != "n-"+strconv.Itoa(eventsMost+49) {
		t.Errorf("the newest is %+v", last)
	}
}

// What an executor observed at the end of an operation is newer than what was
// told before it and older than what is told after.
func TestObservedFitsIn(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	i := &Inventory{model: w.model}
	o := aNode("n", "u", 0)
	w.put(t, w.nodes, o.DeepCopy())
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
	w.put(t, w.deployments, aDeployment("default", "d", 1))
	p := newPlane(t)
	p.take(w.told())
	for range 3 {
		o.Spec.Unschedulable = !o.Spec.Unschedulable
		w.next(o)
		live := w.version
		seen := i.Describe(o.DeepCopy(), 0)
		observed := &protocol.Inventory{Nodes: []protocol.Node{seen}, Devices: []protocol.Device{{UID: uuid(0), Revision: live, Health: "ok"}},
			Deployments: []protocol.Deployment{{UID: "uid-d", Revision: live}}, Components: []protocol.Component{{UID: "x", Name: "none", Revision: live}}}
		i.Settled(observed)
		p.take(executor.Delta{Objects: *observed})
		if observed.Nodes[0].Schedulable == o.Spec.Unschedulable || observed.Devices[0].NodeName != "n" || len(observed.Devices[0].Aliases) == 0 {
			t.Errorf("observed %+v", observed)
		}
		if err := w.nodes.Update(o.DeepCopy()); err != nil { // the watch comes later with the same
			t.Fatal(err)
		}
		w.put(t, w.pods, aPod("p"+strconv.Itoa(int(live)), "n", ""))
		p.take(w.told())
	}
}
