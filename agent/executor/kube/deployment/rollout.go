package deployment

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// Annotations of a rolled object.
const (
	// annotationRestarted is kubectl's, in the pod template.
	annotationRestarted = "kubectl.kubernetes.io/restartedAt"
	// AnnotationRoll holds what the last restart did, as JSON, on the object.
	AnnotationRoll = "opsplane.io/roll"
	// AnnotationProgressDeadline is how many seconds without progress are a
	// failure, on kinds that have no progressDeadlineSeconds of their own.
	AnnotationProgressDeadline = "opsplane.io/progress-deadline-seconds"
)

// record says what a restart did: enough to tell whether somebody changed the
// template since, and to take it back.
type record struct {
	At       time.Time `json:"at"`
	Template string    `json:"template,omitempty"` // digest of it after the restart
	// Before are the annotations of each pod template before.
	Before []map[string]*string `json:"before,omitempty"`
	ID     string               `json:"id,omitempty"` // of spec.restart
	Undone bool                 `json:"undone,omitempty"`
	// Goal is nil in what an agent wrote that kept none.
	Goal *goal `json:"goal,omitempty"`
	// Was is the digest of the template before, see bare; empty in what an agent wrote
	// that kept none. Made is the one that the undo made.
	Was  string `json:"was,omitempty"`
	Made string `json:"made,omitempty"`
	// Other are fields of the template that admission made other than was asked for:
	// with the restart, and once it is undone those that are still not as before.
	Other []string `json:"other,omitempty"`
	// Back is the merge patch of the template that takes that back; empty where there is
	// nothing, or it is longer than maxBack.
	Back     json.RawMessage `json:"back,omitempty"`
	Revision string          `json:"revision,omitempty"` // of a Deployment before
	// Unrehearsed: it was not known what admission makes of the restart. Template is what
	// was asked for.
	Unrehearsed bool `json:"unrehearsed,omitempty"`
}

// rollout is an object and how far its rollout is.
type rollout struct {
	kind       *kind
	resource   schema.GroupVersionResource
	object     *unstructured.Unstructured
	selector   labels.Selector
	generation int64
	observed   int64
	desired    int
	want       int // of the desired ones, how many a rollout renews
	partition  int
	updated    int
	ready      int
	available  int
	total      int // as the controller counts them, old and new
	podsEach   int // of one replica
	paused     bool
	strategy   string
	ordered    bool // a StatefulSet that starts its pods in order
	moving     bool // the controller says that an update is under way
	exceeded   string
	refused    []cause
	setless    bool          // no ReplicaSet could be made for the template
	deadline   time.Duration // without progress; 0: the kind has none of its own
	template   string        // digest
	mark       cluster.Mark
	marked     bool
	record     *record
	restart    restartStatus
}

// restartStatus is a DynamoGraphDeployment's own word on a restart.
type restartStatus struct {
	id, observed, phase string
	rolling             bool // its operator is rolling a change out
}

func (r *rollout) name() string { return r.object.GetNamespace() + "/" + r.object.GetName() }

func (r *rollout) String() string {
	text := "no replicas to update"
	if r.updated > 0 || r.target() > 0 {
		text = tally(r.updated, r.target(), "updated")
	}
	if n := r.kept(); n > 0 {
		text += fmt.Sprintf(", %d kept by a partition", n)
	}
	return fmt.Sprintf("%s, %d ready", text, r.ready)
}

// restarted tells whether this run of the operation restarted it.
func (r *rollout) restarted(by cluster.Mark) bool {
	return r.marked && r.mark.SameRun(by) && r.record != nil
}

// superseded tells how somebody changed it since the restart; "" if nobody did.
func (r *rollout) superseded() string {
	switch {
	case r.record == nil:
		return "the restart's record is gone"
	case r.kind == dynamoGraphs && r.restart.id != r.record.ID:
		return fmt.Sprintf("spec.restart.id is %q now", r.restart.id)
	case r.kind != dynamoGraphs && r.template != r.record.Template && !r.unchanged():
		return "its pod template was changed"
	}
	return ""
}

// unchanged tells that nobody changed the object's spec since its restart, by the count
// that the API server keeps: whatever its template is, the restart made it so, together
// with what admission made of that.
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/#ObjectMeta
func (r *rollout) unchanged() bool {
	g := r.record.Goal
	return g != nil && g.Generation > 0 && r.generation == g.Generation
}

// before tells whether r is an older state of the object than o.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
func (r *rollout) before(o *rollout) bool {
	a, err := strconv.ParseUint(r.object.GetResourceVersion(), 10, 64)
	b, err2 := strconv.ParseUint(o.object.GetResourceVersion(), 10, 64)
	return err == nil && err2 == nil && a < b
}

// read reads an object of a kind.
func read(k *kind, resource schema.GroupVersionResource, u *unstructured.Unstructured) (*rollout, error) {
	r := &rollout{kind: k, resource: resource, object: u, generation: u.GetGeneration(), observed: num(u, "status", "observedGeneration"),
		total: count(u, "status", "replicas"), updated: count(u, "status", "updatedReplicas"), ready: count(u, "status", "readyReplicas"),
		available: count(u, "status", "availableReplicas"), desired: 1, podsEach: 1, selector: labels.Nothing()}
	if n, found, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); found {
		r.desired = int(n)
	}
	r.want = r.desired
	r.mark, r.marked = cluster.ReadMark(u.GetAnnotations())
	if text, found := u.GetAnnotations()[AnnotationRoll]; found {
		var rec record
		if json.Unmarshal([]byte(text), &rec) == nil { // anybody may write annotations: what cannot be read is none
			r.record = &rec
		}
	}
	if n, err := strconv.Atoi(u.GetAnnotations()[AnnotationProgressDeadline]); err == nil && n > 0 {
		r.deadline = time.Duration(n) * time.Second
	}
	if r.observed != 0 && r.observed < r.generation {
		r.updated = 0 // it counts pods of the template before
	}
	if k.template != nil {
		part, _, err := unstructured.NestedMap(u.Object, k.template...)
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", k.name, r.name(), err)
		}
		r.template = digest(part)
	}
	var err error
	switch k {
	case deployments:
		err = r.readDeployment()
	case statefulSets:
		err = r.readStatefulSet()
	case leaderWorkerSets:
		r.readLeaderWorkerSet()
	case dynamoGraphs:
		r.readDynamoGraph()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", k.name, r.name(), err)
	}
	return r, nil
}

func (r *rollout) readDeployment() (err error) {
	r.paused, _, _ = unstructured.NestedBool(r.object.Object, "spec", "paused")
	r.strategy, _, _ = unstructured.NestedString(r.object.Object, "spec", "strategy", "type")
	if r.selector, err = selectorOf(r.object); err != nil {
		return err
	}
	for _, c := range conditionsOf(r.object) {
		// An old verdict stands until the controller has seen the new template.
		if c.Type == "Progressing" && c.Reason == "ProgressDeadlineExceeded" && r.observed >= r.generation {
			r.exceeded = c.Message
		}
		// Its controller was at work, though it observes no generation that it failed at.
		if c.Type == "Progressing" && c.Reason == "ReplicaSetCreateError" {
			r.setless = true
			r.refused = append(r.refused, refusedPods("deployment/"+r.name(), c.Message, c.LastTransitionTime.Time))
		}
		if c.Type == "ReplicaFailure" && c.Status == metav1.ConditionTrue {
			r.refused = append(r.refused, refusedPods("deployment/"+r.name(), c.Message, c.LastTransitionTime.Time))
		}
	}
	return nil
}

func (r *rollout) readStatefulSet() (err error) {
	r.strategy, _, _ = unstructured.NestedString(r.object.Object, "spec", "updateStrategy", "type")
	policy, _, _ := unstructured.NestedString(r.object.Object, "spec", "podManagementPolicy")
	r.ordered = policy != "Parallel"
	r.partition = count(r.object, "spec", "updateStrategy", "rollingUpdate", "partition")
	r.want = max(0, r.desired-r.partition)
	r.selector, err = selectorOf(r.object)
	return err
}

func (r *rollout) readLeaderWorkerSet() {
	r.strategy, _, _ = unstructured.NestedString(r.object.Object, "spec", "rolloutStrategy", "type")
	r.partition = count(r.object, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition")
	r.want = max(0, r.desired-r.partition)
	r.podsEach = max(1, count(r.object, "spec", "leaderWorkerTemplate", "size"))
	r.available = r.ready
	r.selector = labelled(labelLeaderWorkerSet, r.object.GetName())
	r.moving = slices.ContainsFunc(conditionsOf(r.object), func(c metav1.Condition) bool {
		return c.Type == "UpdateInProgress" && c.Status == metav1.ConditionTrue
	})
}

// readDynamoGraph sums up the services (v1alpha1) or components (v1beta1).
func (r *rollout) readDynamoGraph() {
	r.selector = labelled(labelDynamoGraph, r.object.GetName())
	r.desired, r.updated, r.ready, r.total = 0, 0, 0, 0
	services, _, _ := unstructured.NestedMap(r.object.Object, "spec", "services")
	for _, s := range services {
		r.addWanted(s)
	}
	components, _, _ := unstructured.NestedSlice(r.object.Object, "spec", "components")
	for _, c := range components {
		r.addWanted(c)
	}
	for _, field := range []string{"services", "components"} {
		told, _, _ := unstructured.NestedMap(r.object.Object, "status", field)
		for _, s := range told {
			m, _ := s.(map[string]any)
			u := &unstructured.Unstructured{Object: m}
			r.total += count(u, "replicas")
			r.updated += count(u, "updatedReplicas")
			r.ready += max(count(u, "readyReplicas"), count(u, "availableReplicas")) // a kind of component tells one of them
		}
	}
	r.want, r.available = r.desired, r.ready
	r.restart.id, _, _ = unstructured.NestedString(r.object.Object, "spec", "restart", "id")
	r.restart.observed, _, _ = unstructured.NestedString(r.object.Object, "status", "restart", "observedID")
	r.restart.phase, _, _ = unstructured.NestedString(r.object.Object, "status", "restart", "phase")
	rolling, _, _ := unstructured.NestedString(r.object.Object, "status", "rollingUpdate", "phase")
	r.restart.rolling = rolling == "Pending" || rolling == "InProgress"
}

func (r *rollout) addWanted(service any) {
	m, _ := service.(map[string]any)
	n, found, _ := unstructured.NestedInt64(m, "replicas")
	if !found {
		n = 1
	}
	r.desired += int(n)
}

// digest tells templates apart. A timestamp that is always null comes and goes
// with the API server's version.
func digest(template map[string]any) string {
	template = (&unstructured.Unstructured{Object: template}).DeepCopy().Object
	dropNull(template)
	text, _ := json.Marshal(template) // what came as JSON goes as JSON, keys sorted
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:12])
}

func dropNull(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, k)
		case map[string]any:
			dropNull(v)
		}
	}
}

// labelled selects the pods that an operator labels with their owner's name. A name that
// is too long for a label has none, and the API server takes no such selector.
func labelled(key, name string) labels.Selector {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return labels.SelectorFromSet(labels.Set{key: name})
	}
	is, _ := labels.NewRequirement(key, selection.Exists, nil) // the keys are constants
	not, _ := labels.NewRequirement(key, selection.DoesNotExist, nil)
	return labels.NewSelector().Add(*is, *not)
}

func selectorOf(u *unstructured.Unstructured) (labels.Selector, error) {
	var s metav1.LabelSelector
	part, _, err := unstructured.NestedMap(u.Object, "spec", "selector")
	if err != nil {
		return nil, err
	}
	text, _ := json.Marshal(part)
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	return metav1.LabelSelectorAsSelector(&s)
}

func conditionsOf(u *unstructured.Unstructured) []metav1.Condition {
	var list []metav1.Condition
	part, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	text, _ := json.Marshal(part)
	_ = json.Unmarshal(text, &list) // a condition of another shape tells nothing
	return list
}

func num(u *unstructured.Unstructured, fields ...string) int64 {
	n, _, _ := unstructured.NestedInt64(u.Object, fields...)
	return n
}

func count(u *unstructured.Unstructured, fields ...string) int { return int(num(u, fields...)) }

// bounded is how long a rollout of a kind without a deadline of its own may make
// no progress.
func (r *rollout) bounded(otherwise time.Duration) time.Duration {
	return cmp.Or(r.deadline, otherwise)
}
