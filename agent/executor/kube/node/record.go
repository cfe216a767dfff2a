package node

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/shared/protocol"
)

// annotationDrain keeps the record of a drain on its node.
const annotationDrain = "opsplane.io/drain"

// record is what a drain keeps on its node for whoever comes after.
type record struct {
	Operation string    `json:"operation"`
	Run       int       `json:"run"`
	Began     time.Time `json:"began"`   // the preflight
	Planned   time.Time `json:"planned"` // the cordon, or when the node was found cordoned
	// GPUs are the node's when it was cordoned; nil: an older agent wrote it.
	GPUs *int `json:"gpus,omitempty"`
	// Pods names the planned pods by UID; the names are left out when there are
	// too many.
	Pods map[string]string `json:"pods"`
	// NoGrace are those of them, by UID, whose own grace period is 0.
	NoGrace []string `json:"no_grace,omitempty"`
	// Finished are those of them, by UID, that had run to their end: none of them
	// counts among what was to be evicted.
	Finished []string `json:"finished,omitempty"`
	// Cut: there were too many pods even for their UIDs.
	Cut bool `json:"cut,omitempty"`
}

// newRecord is the plan as it is kept on the node.
func (e *nodes) newRecord(a *protocol.Assignment, began time.Time, n *corev1.Node, verdicts []verdict) *record {
	gpus := e.gpus(n)
	r := &record{Operation: a.Operation, Run: a.Run, Began: began.UTC(), GPUs: &gpus, Pods: map[string]string{}}
	for _, v := range verdicts {
		r.Pods[string(v.pod.UID)] = key(v.pod)
		if v.kind == toEvict && ownGrace(v.pod) == 0 {
			r.NoGrace = append(r.NoGrace, string(v.pod.UID))
		}
		if v.kind == finished {
			r.Finished = append(r.Finished, string(v.pod.UID))
		}
	}
	slices.Sort(r.NoGrace)
	slices.Sort(r.Finished)
	return r
}

// add takes in the pods that only a later record of the same run knows.
func (r *record) add(later *record) {
	for uid, name := range later.Pods {
		if _, has := r.Pods[uid]; has {
			continue
		}
		r.Pods[uid] = name
		if slices.Contains(later.NoGrace, uid) {
			r.NoGrace = append(r.NoGrace, uid)
		}
		if slices.Contains(later.Finished, uid) {
			r.Finished = append(r.Finished, uid)
		}
	}
	if r.GPUs == nil {
		r.GPUs = later.GPUs
	}
}

// plan is the plan as far as the record tells it.
func (r *record) plan() map[types.UID]*planned {
	plan := make(map[types.UID]*planned, len(r.Pods))
	for uid, name := range r.Pods {
		plan[types.UID(uid)] = &planned{uid: types.UID(uid), name: name, finished: slices.Contains(r.Finished, uid), earlier: true}
	}
	return plan
}

// maxRecord bounds the annotation: all of an object's annotations share 256 KiB.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/
const maxRecord = 64 << 10

func (r record) encode() string {
	b, _ := json.Marshal(r) // plain values always marshal
	if len(b) > maxRecord {
		names := r.Pods
		r.Pods = make(map[string]string, len(names))
		for uid := range names {
			r.Pods[uid] = ""
		}
		b, _ = json.Marshal(r)
	}
	if len(b) > maxRecord {
		r.Pods, r.NoGrace, r.Finished, r.Cut = nil, nil, nil, true
		b, _ = json.Marshal(r)
	}
	return string(b)
}

// readRecord reads what an earlier lease of the same run left on the node. What
// cannot be read is none.
func readRecord(n *corev1.Node, a *protocol.Assignment) *record {
	var r record
	err := json.Unmarshal([]byte(n.Annotations[annotationDrain]), &r)
	if err != nil || r.Operation != a.Operation || r.Run != a.Run || r.Planned.IsZero() {
		return nil
	}
	if r.Pods == nil {
		r.Pods = map[string]string{}
	}
	return &r
}

// cordoned tells whether there was a cordon for the drain to begin behind.
func (r *record) cordoned() bool { return r != nil && !r.Planned.IsZero() }

// abrupt tells whether the API server was told to wait for no kubelet when it evicted
// the pod.
func (r *record) abrupt(p payload, uid types.UID) bool {
	return p.GracePeriodSeconds == 0 || p.GracePeriodSeconds < 0 && r != nil && slices.Contains(r.NoGrace, string(uid))
}

// account is what the journal keeps of the record, in the detail of the step that
// cordons: the record itself goes with its node.
func (r *record) account() string {
	s := "; the drain counts from " + r.Planned.UTC().Format(time.RFC3339Nano)
	if r.GPUs != nil {
		s += fmt.Sprintf(", %d GPUs", *r.GPUs)
	}
	return s
}

var accounted = regexp.MustCompile(`; the drain counts from (\S+?)(?:, (\d+) GPUs)?$`)

// readAccount reads account back; nil: the detail holds none.
func readAccount(detail string) *record {
	m := accounted.FindStringSubmatch(detail)
	if m == nil {
		return nil
	}
	var r record
	var err error
	if r.Planned, err = time.Parse(time.RFC3339Nano, m[1]); err != nil {
		return nil
	}
	if n, err := strconv.Atoi(m[2]); err == nil {
		r.GPUs = &n
	}
	return &r
}
