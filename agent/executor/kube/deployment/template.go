package deployment

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// maxBack bounds what a record keeps to take back what admission made of a template, in
// bytes. All annotations of an object have maxAnnotations, and others write some, too.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/
const (
	maxBack        = 16 << 10
	maxAnnotations = 256 << 10
)

// maxFields bounds how many fields of a template are named.
const maxFields = 10

// annotationRevision is which revision a Deployment's controller made of its template.
const annotationRevision = "deployment.kubernetes.io/revision"

// bare is the template of a state of the object as it is compared with another: no
// annotations or labels and an empty map of them are the same to its pods.
func (k *kind) bare(u *unstructured.Unstructured) map[string]any {
	template, _, _ := unstructured.NestedMap(u.Object, k.template...) // a copy
	dropNull(template)
	for _, at := range k.annotated {
		meta := append(slices.Clone(at[len(k.template):]), "metadata")
		for _, part := range [][]string{append(slices.Clone(meta), "annotations"), append(slices.Clone(meta), "labels"), meta} {
			if m, found, _ := unstructured.NestedMap(template, part...); found && len(m) == 0 {
				unstructured.RemoveNestedField(template, part...)
			}
		}
	}
	return template
}

// difference is the merge patch that makes was of is, and the fields that it changes.
func difference(is, was map[string]any, at string) (back map[string]any, changed []string) {
	back = map[string]any{}
	keys := maps.Clone(is)
	maps.Copy(keys, was)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		now, before, field := is[k], was[k], at+"."+k
		nowMap, isMap := now.(map[string]any)
		beforeMap, wasMap := before.(map[string]any)
		switch {
		case reflect.DeepEqual(now, before):
		case isMap && wasMap:
			part, fields := difference(nowMap, beforeMap, field)
			back[k], changed = part, append(changed, fields...)
		default:
			back[k], changed = before, append(changed, field) // null takes it away
		}
	}
	return back, changed
}

// merge is RFC 7396.
func merge(on, patch map[string]any) {
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(on, k)
		case map[string]any:
			if _, ok := on[k].(map[string]any); !ok {
				on[k] = map[string]any{}
			}
			merge(on[k].(map[string]any), v)
		default:
			on[k] = v
		}
	}
}

// patched is what the patch alone makes of the object.
func (r *rollout) patched(patch map[string]any) *unstructured.Unstructured {
	next := r.object.DeepCopy()
	merge(next.Object, (&unstructured.Unstructured{Object: patch}).DeepCopy().Object)
	return next
}

// admitted writes down what admission made of the template with the restart, beside what
// was asked for, and how that is taken back: it is known to be nobody else's.
func (rec *record) admitted(r *rollout, asked, made *unstructured.Unstructured) {
	back, changed := difference(r.kind.bare(made), r.kind.bare(asked), strings.Join(r.kind.template, "."))
	if len(changed) == 0 {
		return
	}
	rec.Other = changed[:min(len(changed), maxFields)]
	there := 0
	for k, v := range r.object.GetAnnotations() {
		there += len(k) + len(v)
	}
	if text, err := json.Marshal(back); err == nil && len(text) <= maxBack && there <= maxAnnotations/2 {
		rec.Back = text
	}
}

// undone writes down what became of the template with the undo: of what is not that of
// before, the fields. made is nil where the API server did not say it.
func (rec *record) undone(r *rollout, asked, made *unstructured.Unstructured) {
	rec.Undone = true
	if made == nil {
		made = asked
	}
	_, changed := difference(r.kind.bare(made), r.kind.bare(asked), strings.Join(r.kind.template, "."))
	if len(rec.Back) == 0 { // what the restart's admission made stays as well
		changed = slices.Compact(slices.Sorted(slices.Values(slices.Concat(rec.Other, changed))))
	}
	rec.Made, rec.Other, rec.Back = digest(r.kind.bare(made)), changed[:min(len(changed), maxFields)], nil
}

// backPatch is the part of an undo's patch that takes back what admission made with the
// restart.
func (rec *record) backPatch() (map[string]any, error) {
	back := map[string]any{}
	if len(rec.Back) == 0 {
		return back, nil
	}
	if err := utiljson.Unmarshal(rec.Back, &back); err != nil {
		return nil, fmt.Errorf("read what takes admission's change back: %w", err)
	}
	return back, nil
}

// takenBack is how the template of a restart that was taken back compares with that of
// before it.
type takenBack struct {
	known bool // what it was is known
	whole bool // and is what it is
	text  string
	act   string // what a person can do where it is another
}

func (r *rollout) takenBack() takenBack {
	now := digest(r.kind.bare(r.object))
	switch rec := r.record; {
	case rec.Was == "":
		return takenBack{text: "the restart's annotations are taken back; whether that makes the template of before is not known: an agent of before made the restart, which kept no digest of it"}
	case rec.Was == now:
		return takenBack{known: true, whole: true, text: "the template is that of before"}
	case rec.Made == now && len(rec.Other) > 0:
		return takenBack{known: true, act: r.goBack(),
			text: "the restart's annotations are taken back, but the template is not that of before: admission (a webhook or a policy) changed " + strings.Join(rec.Other, ", ")}
	}
	who := "admission or somebody else changed it with the undo or after it"
	if r.record.Unrehearsed {
		who = "admission, which took no dry run of the restart, or somebody else changed it since"
	}
	return takenBack{known: true, act: r.goBack(), text: "the restart's annotations were taken back, but the template is not that of before: " + who}
}

// goBack is how a person gets the template of before. The revision before the last is
// the restart's, so kubectl has to be told which.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-back-to-a-previous-revision
func (r *rollout) goBack() string {
	see := "see to what changes the template, then "
	name := fmt.Sprintf("%s/%s -n %s", strings.ToLower(r.kind.name), r.object.GetName(), r.object.GetNamespace())
	switch {
	case r.kind == deployments && r.record.Revision != "":
		return see + "kubectl rollout undo " + name + " --to-revision=" + r.record.Revision
	case r.kind == deployments || r.kind == statefulSets:
		return see + "kubectl rollout undo " + name + " --to-revision=N, N being that of before the restart (kubectl rollout history)"
	}
	return see + "apply the template of before"
}
