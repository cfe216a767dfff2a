package deployment

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

// unrehearsed is an API server that counts the object's generations, whose webhook adds to
// the template and takes no dry run.
func unrehearsed(t *testing.T, kind string) (*apiServer, *cluster.Cluster) {
	t.Helper()
	s, c := serve(t, kind, func(s *apiServer) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") != "" {
				_, _ = io.Copy(io.Discard, r.Body)
				write(w, 400, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 400, Reason: metav1.StatusReasonBadRequest,
					Message: `admission webhook "effects.example.com" does not support dry run`})
				return
			}
			s.ServeHTTP(w, r)
		})
	})
	s.admit = func(o map[string]any) {
		_ = unstructured.SetNestedField(o, "v2", "spec", "template", "metadata", "annotations", "sidecar.example.com/injected")
		meta := o["metadata"].(map[string]any)
		meta["generation"] = meta["generation"].(float64) + 1
	}
	return s, c
}

// scaled is another's change, which is none of the template.
func (s *apiServer) scaled(replicas float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	merge(s.object, map[string]any{"spec": map[string]any{"replicas": replicas}, "metadata": map[string]any{"generation": 9.0}})
}

// TestRestartThatAdmissionChangesUnrehearsed: what a webhook that takes no dry run makes of
// the restart is no change by somebody else either, by the answer to the restart, and for
// the agent that takes over by the object's generation. Where both fail it is said that
// admission may have done it.
func TestRestartThatAdmissionChangesUnrehearsed(t *testing.T) {
	t.Parallel()
	s, c := unrehearsed(t, "Deployment")
	typ, tk := Roll(c), rollTask()
	var noted []string
	tk.Note = func(code, detail string) { noted = append(noted, code+": "+detail) }
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	if len(noted) != 1 || !strings.Contains(noted[0], "admission changed spec.template.metadata.annotations.sidecar.example.com/injected beside what was asked for") {
		t.Errorf("noted %q", noted)
	}
	another := Roll(c) // the agent of the next lease
	for name, typ := range map[string]cluster.Type{"this agent": typ, "another": another} {
		if f := typ.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.Phase != operation.StepPending {
			t.Errorf("%s finds %+v", name, f)
		}
	}
	s.scaled(2)
	if f := typ.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.Phase != operation.StepPending {
		t.Errorf("once it is scaled this agent finds %+v", f)
	}
	if f := another.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.ErrorCode != "superseded" || !strings.Contains(f.Detail, "or by admission with it, which took no dry run") {
		t.Errorf("once it is scaled another finds %+v", f)
	}
	s.mu.Lock()
	_ = unstructured.SetNestedField(s.object, "another", "spec", "template", "metadata", "labels", "team")
	s.mu.Unlock()
	if f := typ.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.ErrorCode != "superseded" {
		t.Errorf("after somebody's change this agent finds %+v", f)
	}
}

// TestUndoOfWhatWasNotRehearsed: it is taken back with the restart. Where the webhook adds
// to the undo as well, that is said.
func TestUndoOfWhatWasNotRehearsed(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"it is gone by then": false, "it is there": true} {
		s, c := unrehearsed(t, "Deployment")
		r, tk := &roller{Cluster: c, bounds: DefaultBounds}, rollTask()
		before, _, _ := unstructured.NestedMap(s.object, "spec", "template")
		if o := r.restart(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
			t.Fatalf("%s: restart: %+v", name, o)
		}
		if !again {
			s.admit = nil
		}
		d, err := r.find(t.Context(), tk.Assignment)
		if err != nil {
			t.Fatal(err)
		}
		patch, slow, stop := r.undoing(t.Context(), tk, d, cluster.MarkOf(tk))
		if stop != nil || !slow { // nobody can say how long it may take
			t.Fatalf("%s: %v, %+v", name, slow, stop)
		}
		after, _, stop := r.change(t.Context(), tk, d, "undo restart", patch, slow)
		if stop != nil {
			t.Fatalf("%s: %+v", name, stop)
		}
		r.learn(tk, d, patch, after)
		if d, err = r.find(t.Context(), tk.Assignment); err != nil {
			t.Fatal(err)
		}
		is := d.takenBack()
		if is.whole == again || again && !strings.Contains(is.text, "changed spec.template.metadata.annotations") {
			t.Errorf("%s: it says %+v", name, is)
		}
		now, _, _ := unstructured.NestedMap(s.object, "spec", "template")
		if unstructured.RemoveNestedField(now, "metadata", "annotations"); !again && !cmp.Equal(before, now) {
			t.Errorf("%s: %s", name, cmp.Diff(before, now))
		}
	}
}

// TestChangeThatNobodyCanRehearse: it is given as long as admission may take, past the
// fence of a call.
func TestChangeThatNobodyCanRehearse(t *testing.T) {
	t.Parallel()
	s, c := unrehearsed(t, "Deployment")
	s.admit = func(map[string]any) { time.Sleep(1500 * time.Millisecond) }
	tk := shortFence(rollTask())
	if o := Roll(c).Steps["restart"].Execute(within(t, 20*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Errorf("%+v", o)
	}
}

// TestLearnedOfTheLatestRuns: where there are too many runs the oldest is forgotten, and no
// other: the present one goes by what it learned.
func TestLearnedOfTheLatestRuns(t *testing.T) {
	t.Parallel()
	var l learned
	run := func(i int) string { return fmt.Sprintf("op_%d/1", i) }
	for i := range maxLearned {
		l.keep(run(i), record{Template: "restarted"})
	}
	l.keep(run(1), record{Undone: true}) // once more, of one that is known
	for i := range 2 {
		if _, known := l.last(run(i)); !known {
			t.Errorf("%s is forgotten for one that was known", run(i))
		}
	}
	l.keep(run(maxLearned), record{})
	if _, known := l.last(run(0)); known {
		t.Error("the oldest is kept")
	}
	for i := 1; i <= maxLearned; i++ {
		if rec, known := l.last(run(i)); !known || rec.Undone != (i == 1) {
			t.Fatalf("%s: %+v, %t", run(i), rec, known)
		}
	}
	if len(l.of) != maxLearned || len(l.order) != maxLearned {
		t.Errorf("%d records are kept, and %d keys", len(l.of), len(l.order))
	}
}
