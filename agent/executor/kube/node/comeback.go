package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// codeReturns is of pods whose controller makes the next one on the node as well, though
// that is cordoned: its evictions alone bring no drain to its end.
const codeReturns = "pods_return"

// namesNode tells whether who made the pod named its node, and so went past the scheduler
// and past any cordon. The API server's books tell: spec.nodeName is among the fields
// that were set then, and a scheduler's binding is in none of them.
// https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
func namesNode(p *corev1.Pod) bool {
	for _, f := range p.ManagedFields {
		if f.FieldsV1 == nil || f.Subresource != "" || !strings.Contains(f.FieldsV1.GetRawString(), `"f:nodeName"`) {
			continue
		}
		var set struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		if _, named := set.Spec["f:nodeName"]; named {
			return true
		}
	}
	return false
}

// namedBooks is what is kept of the books of a pod that was put on its node by name.
var namedBooks = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:nodeName":{}}}`)}}

// keepBooks keeps of a pod's books, which are half of its size, what somebody asks for.
func keepBooks(p *corev1.Pod) {
	if namesNode(p) {
		p.ManagedFields = namedBooks
	} else {
		p.ManagedFields = nil
	}
}

// returnsWithin is how long controllers have to make the next pods of those that went: one
// that is well does so in less than a second.
const returnsWithin = 5 * time.Second

// byName names who controls planned pods that were put on the node by name, in order.
func (s *session) byName() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.plan {
		if !x.verdict.named {
			continue
		}
		if who, _ := controller(x.verdict.pod); !slices.Contains(list, who) {
			list = append(list, who)
		}
	}
	slices.Sort(list)
	return list
}

// controller names who controls the pod, in words and as a rule.
func controller(p *corev1.Pod) (words, rule string) {
	o := metav1.GetControllerOf(p)
	if o == nil {
		return "nobody", ""
	}
	name := p.Namespace + "/" + o.Name
	return o.Kind + " " + name, strings.ToLower(o.Kind) + "/" + name
}

// namedNode is the blocker's detail of a pod that was put on the node by name.
func namedNode(p *corev1.Pod) string {
	who, _ := controller(p)
	return fmt.Sprintf("pod %s was put on this node by name (spec.nodeName), past the scheduler: %s may make its next one here as well, whatever the cordon", key(p), who)
}

// turn paces the evictions of a controller's pods that come back to the node.
type turn struct {
	since   time.Time // the first came back
	evicted int
	earlier int       // that earlier leases may have evicted at this pace
	not     time.Time // the next is not evicted before
}

const (
	// backMost is the longest wait between two evictions of pods that come back.
	backMost = 30 * time.Second
	// schedulerKnows is how long after a cordon every scheduler that heeds one does.
	schedulerKnows = 10 * time.Second
)

// backPace is the wait after the nth eviction of a pod that came back, from 1.
func backPace(n int) time.Duration { return min(time.Second<<min(n-1, 16), backMost) }

// paced is how many evictions the pace has allowed within a time.
func paced(within time.Duration) (n int) {
	for within -= backPace(1); within >= 0 && n < 1_000; within -= backPace(n + 1) {
		n++
	}
	return n
}

// of tells whether the pod is one of a controller's. Of one that went before this lease
// only the name is known: controllers name their pods after themselves.
func (p *planned) of(o *metav1.OwnerReference, namespace string) bool {
	if p.pod != nil {
		return metav1.IsControlledBy(p.pod, &metav1.ObjectMeta{UID: o.UID})
	}
	own, is := strings.CutPrefix(p.name, namespace+"/"+o.Name+"-")
	return is && own != "" && !strings.Contains(own, "-")
}

// cameBack tells whether a pod that came after the plan is the successor of one that the
// drain told to go. on are the node's pods as they were found with it: the plan may not
// have been told of them yet, nor whether an eviction was taken that brought it.
func (s *session) cameBack(p *corev1.Pod, on map[types.UID]*corev1.Pod) bool {
	o := metav1.GetControllerOf(p)
	if o == nil {
		return false
	}
	for _, x := range s.plan {
		if x.uid == p.UID || !x.of(o, p.Namespace) {
			continue
		}
		if now := on[x.uid]; x.isGone || x.going() || now == nil || now.DeletionTimestamp != nil {
			return true
		}
	}
	return false
}

// turnOf is the turn of the pods that share p's controller; nil: p did not come back. How
// often they came back under earlier leases nobody has kept: it is taken to be as often as
// the pace allowed since the cordon, which is slow then and never too fast.
func (s *session) turnOf(p *planned, now time.Time) *turn {
	if !p.back || p.pod == nil {
		return nil
	}
	uid := metav1.GetControllerOf(p.pod).UID
	if s.turns == nil {
		s.turns = map[types.UID]*turn{}
	}
	if s.turns[uid] == nil {
		t := &turn{since: now}
		if s.inherited && now.Sub(s.record.Planned) > schedulerKnows {
			t.earlier = s.free(p) + paced(now.Sub(s.record.Planned))
		}
		s.turns[uid] = t
	}
	return s.turns[uid]
}

// free is how many pods of a controller may come back until that is more than the
// scheduler's not knowing of the cordon yet: as many as were there. Those that name the
// node come back whoever knows of it.
func (s *session) free(p *planned) (n int) {
	if namesNode(p.pod) {
		return 0
	}
	o := metav1.GetControllerOf(p.pod)
	for _, x := range s.plan {
		if !x.back && x.of(o, p.pod.Namespace) {
			n++
		}
	}
	return n
}

// takeTurn takes its turn for a pod that is told to go. It has one, however often it has
// to be told: a call that is refused, or whose answer is lost, brings no pod.
func (s *session) takeTurn(p *planned, now time.Time) {
	t := s.turnOf(p, now)
	if t == nil || p.turned || p.going() {
		return
	}
	p.turned = true
	t.evicted++
	if n := t.earlier + t.evicted - s.free(p); n > 0 {
		t.not = now.Add(backPace(n))
	}
}

// returns is what keeps a pod that came back, and for how long; nil: nothing, as of one
// that did not.
func (s *session) returns(p *planned, now time.Time) (h *hold, wait time.Duration) {
	t := s.turnOf(p, now)
	if t == nil || t.evicted == 0 || t.earlier+t.evicted <= s.free(p) {
		return nil, 0
	}
	who, rule := controller(p.pod)
	since := t.since.UTC()
	h = &hold{code: codeReturns, rule: rule, since: &since}
	if namesNode(p.pod) {
		h.why = fmt.Sprintf("pod %s: %s brings its pods back to this node, though it is cordoned, for they name it (spec.nodeName) and so go past the scheduler", p.name, who)
		h.act = fmt.Sprintf("take spec.nodeName out of the pod template of %s, or of what owns that, or scale it down, then drain again", who)
	} else {
		scheduler := cmp.Or(p.pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
		h.why = fmt.Sprintf("pod %s: %s brings its pods back to this node, though it is cordoned: what places them (scheduler %s) does not heed that", p.name, who, scheduler)
		h.act = fmt.Sprintf("see that what places the pods of %s heeds a cordon, or scale it down, then drain again", who)
	}
	h.why += fmt.Sprintf("; %d that came back were evicted", t.evicted)
	if t.earlier > 0 {
		h.why += " under this lease"
	}
	if wait = t.not.Sub(now); wait > 0 && !p.going() {
		h.why += fmt.Sprintf(", and this one is evicted at %s", t.not.UTC().Format(time.RFC3339))
	}
	return h, max(wait, 0)
}
