package inventory

import (
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// head is whose fact it is. Reflectors keep facts in place of objects while they
// list, and ask them for no more than this.
type head struct {
	metav1.Object // nil
	namespace     string
	name          string
	uid           string
	version       int64 // the resourceVersion, 0 where it is no integer
}

func headOf(o metav1.Object) head {
	return head{namespace: intern(o.GetNamespace()), name: o.GetName(), uid: string(o.GetUID()), version: number(o.GetResourceVersion())}
}

func (h *head) id() *head            { return h }
func (h *head) GetNamespace() string { return h.namespace }
func (h *head) GetName() string      { return h.name }
func (h *head) GetUID() types.UID    { return types.UID(h.uid) }

// GetResourceVersion is the object's own.
func (h *head) GetResourceVersion() string { return strconv.FormatInt(h.version, 10) }

// GetObjectKind is empty: a fact is of no API kind.
func (h *head) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the fact itself: facts are never changed.
func (h *head) DeepCopyObject() runtime.Object { return h }

// key is namespace/name.
func (h *head) key() string {
	if h.namespace == "" {
		return h.name
	}
	return h.namespace + "/" + h.name
}

// number reads a resourceVersion: a positive integer since Kubernetes 1.35
// (KEP-5504), and before that in all of its own storage.
func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// pool keeps one copy of each text that many facts share (names of namespaces,
// nodes and owners, images). It begins anew when it is full, for owners come and
// go.
var pool = struct {
	sync.Mutex
	texts map[string]string
}{texts: map[string]string{}}

const poolMost = 100_000

func intern(s string) string {
	if s == "" {
		return ""
	}
	pool.Lock()
	defer pool.Unlock()
	if have, ok := pool.texts[s]; ok {
		return have
	}
	if len(pool.texts) >= poolMost {
		clear(pool.texts)
	}
	s = strings.Clone(s)
	pool.texts[s] = s
	return s
}

// fact is what is kept of one object.
type fact interface {
	comparable
	runtime.Object
	metav1.Object
	id() *head
}

// ignored stands for an object of which nothing is kept.
type ignored struct{ head }
