package deployment

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// label is a webhook that adds to the pod template of what it is asked about.
func label(o map[string]any) { change(o, "labels", "mesh", "on") }

// TestUndoOfWhatAdmissionChanged: a template that admission changed with the restart is
// taken back as well, and is called that of before only where it is.
func TestUndoOfWhatAdmissionChanged(t *testing.T) {
	t.Parallel()
	const field = "admission (a webhook or a policy) changed spec.template.metadata."
	large := func(o map[string]any) { change(o, "annotations", "mesh", strings.Repeat("x", maxBack)) }
	small := func(o map[string]any) { change(o, "annotations", "mesh", "x") }
	for name, tt := range map[string]struct {
		first, then func(map[string]any) // admission at the restart, and at the undo
		before      func(map[string]any) // what there was
		meet        func(map[string]any) // between them
		after       func(map[string]any) // after the undo
		whole       bool
		says        string // of the rest
		unknown     bool
	}{
		"no webhook":              {whole: true},
		"off by then":             {first: label, whole: true},
		"it changes what was":     {first: func(o map[string]any) { label(o); change(o, "labels", "team", "hook's") }, before: func(o map[string]any) { change(o, "labels", "team", "before") }, whole: true},
		"still on":                {first: label, then: label, says: field + "labels.mesh"},
		"on since":                {then: label, says: field + "labels.mesh"},
		"too much to be kept":     {first: small, before: large, says: field + "annotations.mesh"},
		"both":                    {first: small, then: label, before: large, says: field + "annotations.mesh, spec.template.metadata.labels.mesh"},
		"somebody, after it":      {first: label, after: label, says: "admission or somebody else changed it"},
		"an agent of before":      {first: label, meet: keepsNoDigest(t), says: "is not known", unknown: true},
		"one of before, no hooks": {meet: keepsNoDigest(t), says: "is not known", unknown: true},
	} {
		for _, kind := range []string{"Deployment", "StatefulSet"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				s, c := serve(t, kind, nil)
				now := time.Now()
				c.Now = func() time.Time { return now }
				do := func(f func(map[string]any)) {
					s.mu.Lock()
					defer s.mu.Unlock()
					if f != nil {
						f(s.object)
					}
				}
				do(func(o map[string]any) {
					_ = unstructured.SetNestedField(o, "7", "metadata", "annotations", annotationRevision)
				})
				do(tt.before)
				before := templateOf(s)
				s.admit = tt.first
				typ, tk := RollWithin(c, Bounds{Stall: time.Minute, Undo: time.Minute}), rollTask()
				if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
					t.Fatalf("restart: %+v", o)
				}
				now = now.Add(2 * time.Minute)
				do(func(o map[string]any) {
					merge(o, parse(t, `{"status":{"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1,"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"timed out"}]}}`))
					if tt.meet != nil {
						tt.meet(o)
					}
					s.admit = tt.then
				})
				o := typ.Steps["undo"].Execute(within(t, 10*time.Second), tk)
				if done := tt.whole || tt.unknown || tt.after != nil; done != (o.Class == operation.OutcomeDone) || !done && (o.ErrorCode != codeUndoDiffers || !strings.Contains(o.Detail, tt.says)) {
					t.Fatalf("undo: %+v", o)
				}
				do(tt.after)
				if same := templateOf(s) == before; same != tt.whole && !tt.unknown {
					t.Errorf("before %s, now %s", before, templateOf(s))
				}
				f := typ.Steps["undo"].Probe(within(t, 10*time.Second), tk)
				if found := f.Phase == operation.StepSucceeded; found != (tt.whole || tt.unknown) || !strings.Contains(f.Detail, tt.says) {
					t.Errorf("the probe finds %+v", f)
				}
				var end executor.Ending
				typ.Observe(within(t, 10*time.Second), tk.Assignment, &end)
				const goal = "the pod template is that of before the restart"
				if slices.Contains(end.Verified, goal) != tt.whole || slices.Contains(end.NotVerified, "that "+goal) == tt.whole || !strings.Contains(end.Message, tt.says) {
					t.Errorf("ending %+v", end)
				}
				if left := !tt.whole && !tt.unknown; left != (len(end.Residual) == 1) || left && (!strings.Contains(end.Residual[0].Detail, tt.says) || !strings.Contains(end.Residual[0].Detail, "kubectl rollout undo "+strings.ToLower(kind)+"/web -n web --to-revision=")) {
					t.Errorf("residual %+v", end.Residual)
				}
				if kind == "Deployment" && len(end.Residual) > 0 && !strings.HasSuffix(end.Residual[0].Detail, "--to-revision=7") {
					t.Errorf("residual %+v", end.Residual)
				}
			})
		}
	}
}

func change(o map[string]any, part, key, value string) {
	_ = unstructured.SetNestedField(o, value, "spec", "template", "metadata", part, key)
}

// keepsNoDigest makes of the record what an agent wrote that kept no digest of the
// template before.
func keepsNoDigest(t *testing.T) func(map[string]any) {
	return func(o map[string]any) {
		at := []string{"metadata", "annotations", AnnotationRoll}
		text, _, _ := unstructured.NestedString(o, at...)
		rec := parse(t, text)
		for _, k := range []string{"was", "other", "back", "revision"} {
			delete(rec, k)
		}
		out, _ := json.Marshal(rec)
		_ = unstructured.SetNestedField(o, string(out), at...)
	}
}

// templateOf is the template of the server's object, without maps that are empty.
func templateOf(s *apiServer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, _ := json.Marshal(deployments.bare(&unstructured.Unstructured{Object: s.object}))
	return string(out)
}

// TestUndoLeavesAPersonsChange: what somebody changed after the restart is not taken back
// with what admission changed at it.
func TestUndoLeavesAPersonsChange(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "Deployment", nil)
	s.admit = label
	typ, tk := Roll(c), rollTask()
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	s.mu.Lock()
	s.admit = nil
	change(s.object, "labels", "mesh", "off")
	s.mu.Unlock()
	is := templateOf(s)
	if o := typ.Steps["undo"].Execute(within(t, 10*time.Second), tk); o.ErrorCode != "superseded" || templateOf(s) != is {
		t.Errorf("undo: %+v, template %s", o, templateOf(s))
	}
}
