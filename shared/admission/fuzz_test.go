package admission_test

import (
	"context"
	"errors"
	"testing"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/operation"
)

// FuzzAdmit: whatever the body, the answer is an operation or a refusal with a
// code and words.
func FuzzAdmit(f *testing.F) {
	for _, s := range []string{
		string(body(nil)), `{}`, `null`, `[`, `{"type":"plan","target":"fleet","reason":"r","payload":{"children":[{}]}}`,
		`{"type":"node.drain","target":"node:gpu-node-2","reason":"r","deadline":"2026-07-01T12:30:00Z","payload":{"grace_period_seconds":30}}`,
		`{"type":"component.upgrade","target":"cluster:alpha","reason":"r","payload":{"component":"operator","version":"1.2.3"}}`,
	} {
		f.Add([]byte(s))
	}
	b := setup(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := b.admit(call(), raw)
		judge(t, a.Operation.Spec.ID, err)
	})
}

// FuzzReference: the same of every way to name a target.
func FuzzReference(f *testing.F) {
	for _, s := range []string{"node:gpu-node-2", "fleet", "nod_01jqxz3k5m7n9p1r3t5v7w9y1z", "device:" + gpu, "cluster:alpha", "node:", ":", "cmp_", "clu_x", "node:\xff"} {
		f.Add(s, "alpha")
	}
	b := setup(f)
	all := []string{operation.KindCluster, operation.KindNode, operation.KindDevice, operation.KindDeployment, operation.KindWorkload, operation.KindComponent, operation.KindFleet}
	f.Fuzz(func(t *testing.T, target, cluster string) {
		if len(target) > admission.MaxTargetBytes || len(cluster) > admission.MaxTargetBytes || !operation.CleanText(target) || !operation.CleanText(cluster) {
			return // refused before
		}
		got, err := admission.Resolve(context.Background(), b.store, call().Caller, "", "a test", all, target, cluster)
		judge(t, got.ID, err)
	})
}

func judge(t *testing.T, id string, err error) {
	t.Helper()
	var r *operation.Refusal
	switch {
	case err == nil && id == "":
		t.Error("accepted, and nothing is there")
	case err != nil && !errors.As(err, &r):
		t.Errorf("neither accepted nor refused: %v", err)
	case err != nil && (r.ErrorCode == "" || r.Detail == ""):
		t.Errorf("a refusal without words: %+v", r)
	}
}
