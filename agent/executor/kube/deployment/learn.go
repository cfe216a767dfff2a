package deployment

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// maxLearned bounds of how many runs it is kept what admission did.
const maxLearned = 1_000

// learned are the records of runs whose change admission made another of than its
// rehearsal said, or that it took no rehearsal of: the answer to the change itself tells.
// It is not written to the object, for that is one more change for admission to make
// something of. Whoever takes the lease over goes by the object's generation: see
// unchanged. The zero value is ready.
type learned struct {
	mu    sync.Mutex
	of    map[string]record
	order []string // its keys, the one that was learned first before the others
}

// keep keeps a record, and drops the oldest where there are too many.
func (l *learned) keep(run string, rec record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]record{}
	}
	if _, known := l.of[run]; !known {
		if l.order = append(l.order, run); len(l.order) > maxLearned {
			delete(l.of, l.order[0])
			l.order = slices.Delete(l.order, 0, 1)
		}
	}
	l.of[run] = rec
}

// last is what was learned of a run last.
func (l *learned) last(run string) (rec record, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec, known = l.of[run]
	return rec, known
}

func learnedKey(m cluster.Mark) string { return fmt.Sprintf("%s/%d", m.Operation, m.Run) }

// learn compares what the API server made of a change with the record in it.
func (r *roller) learn(t *executor.Task, d *rollout, patch []byte, made *unstructured.Unstructured) {
	if made == nil || d.kind.template == nil {
		return
	}
	after, err := read(d.kind, d.resource, made)
	if err != nil || after.record == nil || !after.marked {
		return
	}
	var body map[string]any
	if err := utiljson.Unmarshal(patch, &body); err != nil {
		return
	}
	asked, rec := d.patched(body), *after.record
	switch {
	case rec.Undone && rec.Made != digest(d.kind.bare(made)):
		rec = *d.record
		rec.undone(d, asked, made)
	case !rec.Undone && rec.Template != after.template:
		rec.Template, rec.Other, rec.Back = after.template, nil, nil
		rec.admitted(d, asked, made)
	default:
		return
	}
	if len(rec.Other) > 0 {
		t.Note("admission", fmt.Sprintf("%s: admission changed %s beside what was asked for", d.name(), strings.Join(rec.Other, ", ")))
	}
	r.learned.keep(learnedKey(after.mark), rec)
}

// read reads an object, with what this agent knows of it beyond what it says.
func (r *roller) read(k *kind, resource schema.GroupVersionResource, u *unstructured.Unstructured) (*rollout, error) {
	d, err := read(k, resource, u)
	if err != nil || d.record == nil {
		return d, err
	}
	if rec, known := r.learned.last(learnedKey(d.mark)); known && rec.At.Equal(d.record.At) && rec.Undone == d.record.Undone {
		d.record = &rec
	}
	return d, nil
}
