package inventory

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// partitioned is a StatefulSet with a partition.
func partitioned(partition int32, o *appsv1.StatefulSet) *appsv1.StatefulSet {
	o.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}
	return o
}

// A rollout is complete when something runs, and all of it is of the newest revision.
func TestRolledIsTrue(t *testing.T) {
	t.Parallel()
	onDelete := func(o *appsv1.StatefulSet) *appsv1.StatefulSet {
		o.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		return o
	}
	done := aSet("s", 3, 3, 0, false)
	done.Status.CurrentRevision, done.Status.UpdateRevision = "s-2", "s-2"
	nothing := aSet("s", 0, 0, 0, false)
	nothing.Status.CurrentRevision, nothing.Status.UpdateRevision = "s-2", "s-2"
	for name, tt := range map[string]struct {
		after []*appsv1.StatefulSet
		want  []string // at the last of them
	}{
		"a partition keeps all":       {[]*appsv1.StatefulSet{partitioned(3, aSet("s", 3, 3, 0, true))}, nil},
		"a partition keeps two":       {[]*appsv1.StatefulSet{partitioned(2, aSet("s", 3, 3, 0, true)), partitioned(2, aSet("s", 3, 3, 1, true))}, nil},
		"the partition is lowered":    {[]*appsv1.StatefulSet{partitioned(2, aSet("s", 3, 3, 1, true)), partitioned(0, aSet("s", 3, 3, 3, true))}, []string{"deployment.rolled default/s"}},
		"the controller is through":   {[]*appsv1.StatefulSet{partitioned(0, aSet("s", 3, 3, 1, true)), done}, []string{"deployment.rolled default/s"}},
		"OnDelete, one was deleted":   {[]*appsv1.StatefulSet{onDelete(aSet("s", 3, 3, 1, true))}, nil},
		"OnDelete, all were deleted":  {[]*appsv1.StatefulSet{onDelete(aSet("s", 3, 3, 3, true))}, []string{"deployment.rolled default/s"}},
		"scaled to nothing":           {[]*appsv1.StatefulSet{aSet("s", 3, 3, 0, true), nothing}, nil},
		"scaled to nothing, and back": {[]*appsv1.StatefulSet{aSet("s", 3, 3, 0, true), nothing, done}, []string{"deployment.rolled default/s"}},
	} {
		w := newWorld(Options{}).start(t)
		w.put(t, w.sets, aSet("s", 3, 3, 0, false))
		w.told()
		var got []string
		for _, o := range tt.after {
			w.put(t, w.sets, o.DeepCopy())
			got = w.happened()
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A Deployment that was scaled to nothing while it rolled has not been rolled out.
func TestNothingIsNotRolled(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	d := aDeployment("default", "d", 2)
	w.put(t, w.deployments, d.DeepCopy())
	w.told()
	d.Annotations["deployment.kubernetes.io/revision"] = "2"
	*d.Spec.Replicas = 0
	setStatus(d, 0, 0, "NewReplicaSetAvailable")
	w.put(t, w.deployments, d.DeepCopy())
	if got := w.happened(); len(got) != 0 {
		t.Errorf("told %v", got)
	}
	*d.Spec.Replicas = 1
	setStatus(d, 1, 1, "NewReplicaSetAvailable")
	w.put(t, w.deployments, d.DeepCopy())
	if diff := cmp.Diff([]string{"deployment.rolled default/d"}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

// A partition that somebody set is no rollout half way, which a component would be
// unwell of.
func TestPartitionIsNotHalfway(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		partition int32
		updated   int
		halfway   bool
	}{{3, 0, false}, {2, 1, false}, {2, 0, true}, {0, 2, true}, {0, 3, false}} {
		w, _ := stripStatefulSet(partitioned(tt.partition, aSet("s", 3, 3, tt.updated, true)))
		if w.halfway != tt.halfway {
			t.Errorf("partition %d, %d updated: halfway %v", tt.partition, tt.updated, w.halfway)
		}
	}
}

// What befalls a pod is told of the deployment that it is of, however long that one's
// name is and whichever ReplicaSet it was adopted with; and of none that it is not of.
func TestTroublesFindTheirDeployment(t *testing.T) {
	t.Parallel()
	long := "model.v1-" + strings.Repeat("x", 238)
	twin := long[:len(long)-1] + "y" // its ReplicaSets are called the same but for the hash
	of := func(name, app string) *appsv1.Deployment {
		d := aDeployment("default", name, 1)
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		return d
	}
	pod := func(app, kind, owner string, uid types.UID) *corev1.Pod {
		p := aPod("p", "n", "")
		p.Labels["app"], p.Labels["pod-template-hash"] = app, "0123456789"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: uid, Controller: new(true)}}
		return p
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want string // "": nobody is told of
	}{
		"a name that was cut":       {pod("long", "ReplicaSet", long[:242]+"-0123456789", "rs"), long},
		"its twin":                  {pod("twin", "ReplicaSet", long[:242]+"-0123456789", "rs"), twin},
		"a name":                    {pod("web", "ReplicaSet", "web-0123456789", "rs"), "web"},
		"adopted":                   {pod("web", "ReplicaSet", "before-0123456789", "rs"), "web"},
		"it could be either's":      {pod("both", "ReplicaSet", "before-0123456789", "rs"), ""},
		"nobody's":                  {pod("other", "ReplicaSet", "before-0123456789", "rs"), ""},
		"a StatefulSet's":           {pod("s", "StatefulSet", "s", "uid-s"), "s"},
		"a StatefulSet's of before": {pod("s", "StatefulSet", "s", "uid-before"), ""},
	} {
		w := newWorld(Options{}).start(t)
		w.put(t, w.deployments, of(long, "long"), of(twin, "twin"), of("web", "web"), of("a", "both"), of("b", "both"))
		w.put(t, w.sets, aSet("s", 1, 1, 0, false))
		w.put(t, w.pods, tt.pod.DeepCopy())
		w.told()
		w.put(t, w.pods, restarted(tt.pod, 1, w.hands.now().Add(time.Second), false))
		var got string
		for _, e := range w.told().Events {
			var d struct{ Pod string }
			if err := json.Unmarshal(e.Detail, &d); err != nil || e.Type != "deployment.oom" || d.Pod != "default/p" {
				t.Errorf("%s: told %+v", name, e)
			}
			got = strings.TrimPrefix(e.Subject.Name, "default/")
		}
		if got != tt.want {
			t.Errorf("%s: told of %q, want %q", name, got, tt.want)
		}
	}
}
