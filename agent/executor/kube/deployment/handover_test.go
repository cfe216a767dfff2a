package deployment

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// withoutGoal is the patch that makes of the restart's record one that an agent wrote
// which kept no goal.
func withoutGoal(t *testing.T, text string) []byte {
	t.Helper()
	var rec map[string]any
	if err := json.Unmarshal([]byte(text), &rec); err != nil || rec["goal"] == nil {
		t.Fatalf("record %q has no goal: %v", text, err)
	}
	delete(rec, "goal")
	out, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationRoll: string(out)}}})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// TestRaisedUnderARecordWithoutAGoal: a roll that an older agent began, which did not
// write down what it was to renew, does not succeed where that was certainly more.
func TestRaisedUnderARecordWithoutAGoal(t *testing.T) {
	t.Parallel()
	part := func(n, updated int) string {
		return fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}},"status":{"updatedReplicas":%d}}`, n, updated)
	}
	pods := func(renewed ...int) []*corev1.Pod {
		var list []*corev1.Pod
		for n := range 3 {
			old := true
			for _, r := range renewed {
				old = old && r != n
			}
			list = append(list, dbPod(n, old, nil))
		}
		return list
	}
	for name, tt := range map[string]struct {
		kind        *kind
		text, after string
		pods        []*corev1.Pod
		says        string // of the blocker; "": there is none
		words       string
		rolled      bool
		verified    []string // at the end, of what was counted
		details     string
	}{
		"of all, one is new": {kind: statefulSets, text: db, after: part(3, 1), pods: pods(2), says: "a partition of 3 is not what llm/db was restarted under: it was raised, or replicas were taken away, after the restart: it keeps 2 of the 3 replicas", words: "1 of 3 replicas updated, 3 ready",
			verified: []string{"1 of 3 replicas updated", "3 of 3 replicas ready"}, details: `{"restarted":1,"before":2}`},
		"of all, none is new": {kind: statefulSets, text: db, after: part(3, 0), pods: pods(), says: "a partition of 3 is not what llm/db was restarted under: it was raised, or replicas were taken away, after the restart: it keeps 3 of the 3 replicas", words: "0 of 3 replicas updated, 3 ready",
			verified: []string{"0 of 3 replicas updated", "3 of 3 replicas ready"}, details: `{"restarted":0,"before":3}`},
		"of some, one of them is new": {kind: statefulSets, text: db, after: part(2, 2), pods: pods(1, 2), says: "after the restart: it keeps 1 of the 3 replicas that were to restart", words: "2 of 3 replicas updated, 3 ready",
			verified: []string{"2 of 3 replicas updated", "3 of 3 replicas ready"}, details: `{"restarted":2,"before":1}`},
		"of all, all are new": {kind: statefulSets, text: db, after: part(3, 3), pods: pods(0, 1, 2), words: "3 of 3 replicas updated, 3 ready", rolled: true,
			verified: []string{"3 of 3 replicas updated", "3 of 3 replicas ready", "3 pods restarted", "the pods of before are gone"}, details: `{"restarted":3,"before":0}`},
		"of what is there, nothing proves another": {kind: statefulSets, text: db, after: part(2, 1), pods: pods(2), words: "1 of 1 replicas updated, 2 kept by a partition, 3 ready", rolled: true,
			verified: []string{"1 of 1 replicas updated", "3 of 3 replicas ready", "1 pods restarted, 2 of before are kept by a partition of 2"},
			details:  `{"restarted":1,"before":2,"kept":["db-0","db-1"],"partition":2}`},
		"groups": {kind: leaderWorkerSets, text: big, after: `{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":3}}},"status":{"updatedReplicas":1}}`,
			says: "a partition of 3 is not what llm/db was restarted under: it was raised, or replicas were taken away, after the restart: it keeps 2 of the 3 replicas", words: "1 of 3 replicas updated, 3 ready",
			verified: []string{"1 of 3 replicas updated", "3 of 3 replicas ready"}, details: `{"restarted":0,"before":0}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := merged(t, restarted(t, object(t, tt.kind, tt.text), by, noon), []byte(`{"metadata":{"generation":4}}`))
			d = merged(t, merged(t, d, withoutGoal(t, d.object.GetAnnotations()[AnnotationRoll])), []byte(tt.after))
			s, now := scene{rollout: d, pods: tt.pods}, noon.Add(5*time.Second)
			v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, now)
			if s.String() != tt.words || v.rolled != tt.rolled {
				t.Errorf("it says %q, want %q; rolled %v", s, tt.words, v.rolled)
			}
			if list := v.blockers(now); tt.says != "" && (len(list) != 1 || list[0].Code != codePartition || !strings.Contains(list[0].Detail, tt.says)) {
				t.Errorf("blockers %+v", list)
			}
			var objects []runtime.Object
			for _, p := range tt.pods {
				objects = append(objects, p)
			}
			end := ending(t, d, objects...)
			for _, want := range tt.verified {
				if !slices.Contains(end.Verified, want) {
					t.Errorf("verified %q lacks %q", end.Verified, want)
				}
			}
			if diff := cmp.Diff(len(tt.verified)+1, len(end.Verified)); diff != "" || string(end.Details) != tt.details {
				t.Errorf("verified %q, details %s, want %s", end.Verified, end.Details, tt.details)
			}
			if raised := len(end.Residual) == 1 && strings.Contains(end.Residual[0].Detail, tt.says); raised == tt.rolled {
				t.Errorf("residual %+v", end.Residual)
			}
			if tt.rolled {
				return
			}
			back := `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}},"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":0}}}}`
			if s.rollout = merged(t, d, []byte(back)); len(s.holds()) > 0 || s.target() != 3 {
				t.Errorf("when it is lowered: %+v, %d to renew", s.holds(), s.target())
			}
		})
	}
}

// TestNothingToRenewIsNoCount: "0 of 0" says nothing.
func TestNothingToRenewIsNoCount(t *testing.T) {
	t.Parallel()
	const parted = `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`
	for name, tt := range map[string]struct{ before, after, words string }{
		"what a partition keeps": {parted, `{"spec":{"replicas":2},"status":{"replicas":2,"readyReplicas":2,"availableReplicas":2}}`, "no replicas to update, 2 kept by a partition, 2 ready"},
		"none":                   {`{}`, `{"spec":{"replicas":0},"status":{"replicas":0,"updatedReplicas":0,"readyReplicas":0,"availableReplicas":0}}`, "no replicas to update, 0 ready"},
	} {
		d := restarted(t, merged(t, object(t, statefulSets, db), []byte(tt.before)), by, noon)
		d = merged(t, merged(t, d, []byte(`{"metadata":{"generation":4}}`)), []byte(tt.after))
		if d.String() != tt.words {
			t.Errorf("%s: it says %q, want %q", name, d, tt.words)
		}
		if end := ending(t, d); strings.Contains(strings.Join(end.Verified, "; ")+end.Message, "0 of 0") {
			t.Errorf("%s: %q, verified %q", name, end.Message, end.Verified)
		}
	}
}
