package inventory

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

func chart(o *appsv1.Deployment, label string) *appsv1.Deployment {
	o.Labels["helm.sh/chart"] = label
	return o
}

func TestComponents(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{Components: map[string]string{"in-house": "ours"}, Namespaces: map[string][]string{"gpu-operator": {"gpu"}}}).start(t)
	op, worker := aDeployment("gpu", "gpu-operator", 1), aDeployment("gpu", "nfd", 1)
	ds := &appsv1.DaemonSet{ObjectMeta: named("gpu", "driver", "uid-driver")}
	ds.Labels["app.kubernetes.io/name"], ds.Labels["app.kubernetes.io/version"] = "gpu-operator", "v24.9.0"
	ds.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 100, NumberReady: 95}
	put := func(version string) {
		w.put(t, w.deployments, chart(op.DeepCopy(), "gpu-operator-"+version), chart(worker.DeepCopy(), "gpu-operator-"+version))
	}
	put("v24.9.0")
	w.put(t, w.daemons, ds.DeepCopy())
	w.put(t, w.deployments, chart(aDeployment("x", "some-app", 1), "some-app-1.0.0"), chart(aDeployment("kube-system", "y", 1), "in-house-2.0.0_build.5"))
	got := w.snapshot().Components
	for i := range got {
		got[i].Revision = 0
	}
	want := []protocol.Component{{UID: "gpu-operator", Name: "gpu-operator", Version: "v24.9.0", Healthy: true, Namespace: "gpu"}, {UID: "ours", Name: "ours", Version: "2.0.0+build.5", Healthy: true, Namespace: "kube-system"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	components := func() []string {
		var out []string
		for _, e := range w.told().Events {
			if e.Subject.Kind == "component" {
				out = append(out, e.Type+" "+string(e.Detail))
			}
		}
		return out
	}
	components()
	put("v25.3.0-rc.1")
	if diff := cmp.Diff([]string{`component.version_changed {"from":"v24.9.0","to":"v25.3.0-rc.1"}`}, components()); diff != "" {
		t.Error(diff)
	}
	ds.Status.NumberReady = 80
	w.put(t, w.daemons, ds.DeepCopy())
	ds.Status.NumberReady = 100
	w.put(t, w.daemons, ds.DeepCopy())
	if diff := cmp.Diff([]string{`component.unhealthy {"unavailable":["DaemonSet/gpu/driver"],"version":"v25.3.0-rc.1"}`, `component.recovered {"version":"v25.3.0-rc.1"}`}, components()); diff != "" {
		t.Error(diff)
	}
	w.remove(t, w.deployments, op)
	w.remove(t, w.deployments, worker)
	w.remove(t, w.daemons, ds)
	if got := w.told().Gone; !contains(got, "component/gpu-operator") {
		t.Errorf("gone %v", got)
	}
}

// Where a component is installed is known, or said; elsewhere its labels make
// another of them, which takes nothing from it.
func TestComponentsElsewhere(t *testing.T) {
	t.Parallel()
	at := func(namespace, label string) *appsv1.Deployment {
		o := chart(aDeployment(namespace, "d", 0), label)
		o.UID = types.UID(namespace + label)
		return o
	}
	own := Options{Cluster: &cluster.Cluster{Namespace: "ops"}}
	said := Options{Namespaces: map[string][]string{"gpu-operator": {"gpu", "more"}}}
	for name, c := range map[string]struct {
		options Options
		at      *appsv1.Deployment
		want    string
	}{
		"by the maker's guide":      {Options{}, at("gpu-operator", "gpu-operator-v1.0.0"), "gpu-operator v1.0.0"},
		"OpenShift's":               {Options{}, at("nvidia-gpu-operator", "gpu-operator-v1.0.0"), "gpu-operator v1.0.0"},
		"the administrators'":       {Options{}, at("kube-system", "nvidia-device-plugin-0.17.0"), "nvidia-device-plugin 0.17.0"},
		"a tenant's":                {Options{}, at("team-a", "gpu-operator-v1.0.0"), "team-a/gpu-operator v1.0.0"},
		"where another belongs":     {Options{}, at("lws-system", "gpu-operator-v1.0.0"), "lws-system/gpu-operator v1.0.0"},
		"a subchart, elsewhere":     {Options{}, at("team-a", "dynamo-operator-1.0.0"), "team-a/dynamo-platform 1.0.0"},
		"the agent's own":           {own, at("ops", "opsplane-agent-0.1.0"), "agent 0.1.0"},
		"another agent":             {own, at("team-a", "opsplane-agent-0.1.0"), "team-a/agent 0.1.0"},
		"the agent's is no other's": {own, at("ops", "gpu-operator-v1.0.0"), "ops/gpu-operator v1.0.0"},
		"said":                      {said, at("more", "gpu-operator-v1.0.0"), "gpu-operator v1.0.0"},
		"said, in place of others":  {said, at("gpu-operator", "gpu-operator-v1.0.0"), "gpu-operator/gpu-operator v1.0.0"},
		"none at all":               {Options{}, at("team-a", "web-1.0.0"), ""},
	} {
		w := newWorld(c.options).start(t)
		w.put(t, w.deployments, c.at)
		got := ""
		for _, x := range w.snapshot().Components {
			got += x.Name + " " + x.Version
			if x.UID != x.Name || x.Namespace != c.at.Namespace {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// Of one in two namespaces neither is said.
	two := newWorld(said).start(t)
	two.put(t, two.deployments, at("gpu", "gpu-operator-v1.0.0"), at("more", "gpu-operator-v1.0.0"))
	if x := two.snapshot().Components; len(x) != 1 || x[0].Namespace != "" {
		t.Errorf("in two namespaces: %+v", x)
	}
	two.remove(t, two.deployments, at("more", "gpu-operator-v1.0.0"))
	if x := two.snapshot().Components; len(x) != 1 || x[0].Namespace != "gpu" {
		t.Errorf("in one again: %+v", x)
	}
	// One who poses as it changes neither its version nor its health.
	w := newWorld(Options{}).start(t)
	w.put(t, w.deployments, at("gpu-operator", "gpu-operator-v1.0.0"))
	one := int32(1)
	for i := range 3 {
		o := at(fmt.Sprintf("team-%d", i), "gpu-operator-v9.0.0")
		o.Spec.Replicas = &one
		setStatus(o, 0, 1, "ReplicaSetUpdated")
		w.put(t, w.deployments, o)
	}
	for _, x := range w.snapshot().Components {
		if posing := x.Name != "gpu-operator"; posing != (x.Version == "v9.0.0") || posing == x.Healthy {
			t.Errorf("%+v", x)
		}
	}
}

// A roll that keeps its old pods is available all the while, whatever becomes of the
// new ones: its component is not healthy before they are all there, and that it is
// not is told once its controller has given up.
func TestComponentHalfRolled(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	d := chart(aDeployment("gpu-operator", "d", 2), "gpu-operator-v1.0.0")
	s := &appsv1.StatefulSet{ObjectMeta: named("lws-system", "s", "uid-s"), Spec: appsv1.StatefulSetSpec{Replicas: d.Spec.Replicas}}
	s.Labels["helm.sh/chart"] = "lws-1.0.0"
	set := func(current, update string, ready, updated int32) {
		s.Status = appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: ready, CurrentReplicas: 2 - updated, UpdatedReplicas: updated, CurrentRevision: current, UpdateRevision: update}
		if current == update {
			s.Status.CurrentReplicas = 2
		}
		w.put(t, w.sets, s.DeepCopy())
	}
	roll := func(ready, updated, replicas int, progress string) {
		setStatus(d, ready, updated, progress)
		d.Status.Replicas = int32(replicas)
		w.put(t, w.deployments, d.DeepCopy())
	}
	set("a", "a", 2, 0)
	roll(2, 2, 2, "NewReplicaSetAvailable")
	w.told()
	for _, c := range []struct {
		name    string
		do      func()
		healthy bool
		told    string
	}{
		{"a pod of the newest comes", func() { roll(2, 1, 3, "ReplicaSetUpdated") }, false, ""},
		{"it does not come up", func() { roll(2, 1, 3, "ProgressDeadlineExceeded") }, false, "component.unhealthy"},
		{"it does after all", func() { roll(3, 1, 3, "ReplicaSetUpdated") }, false, "component.recovered"},
		{"an old one is left", func() { roll(3, 2, 3, "ReplicaSetUpdated") }, false, ""},
		{"all are there", func() { roll(2, 2, 2, "NewReplicaSetAvailable") }, true, ""},
		{"paused", func() { roll(2, 2, 2, "DeploymentPaused") }, true, ""},
		{"its one pod may be away", func() {
			n := int32(1)
			d.Spec.Replicas = &n
			roll(1, 1, 1, "ReplicaSetUpdated")
			d.Status.AvailableReplicas = 0
			w.put(t, w.deployments, d.DeepCopy())
		}, false, ""},
		{"it is back", func() { roll(1, 1, 1, "NewReplicaSetAvailable") }, true, ""},
		{"a set, half way", func() { set("a", "b", 1, 1) }, false, ""},
		{"on its last pod", func() { set("a", "b", 1, 2) }, false, ""},
		{"a set, done", func() { set("b", "b", 2, 2) }, true, ""},
		{"a set that waits for deletes", func() {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
			set("b", "c", 2, 0)
		}, true, ""},
	} {
		c.do()
		healthy := true
		for _, x := range w.snapshot().Components {
			healthy = healthy && x.Healthy
		}
		told := ""
		for _, e := range w.told().Events {
			if e.Subject.Kind == "component" {
				told += e.Type
			}
		}
		if healthy != c.healthy || told != c.told {
			t.Errorf("%s: healthy %v, told %q; want %v, %q", c.name, healthy, told, c.healthy, c.told)
		}
	}
}
