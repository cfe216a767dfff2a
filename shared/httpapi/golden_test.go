package httpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares JSON with a file, ids and times left out.
func golden(t *testing.T, name, raw string) {
	t.Helper()
	var b bytes.Buffer
	must(t, json.Indent(&b, []byte(raw), "", "  "))
	seen := map[string]string{}
	text := regexp.MustCompile(`(op|stp|nod|clu|tok|req)_[0-9a-z]{26}`).ReplaceAllStringFunc(b.String(), func(s string) string {
		if seen[s] == "" {
			seen[s] = fmt.Sprintf("%s_%d", id.Prefix(s), len(seen)+1)
		}
		return seen[s]
	})
	text = regexp.MustCompile(`"20\d\d-[^"]*Z"`).ReplaceAllString(text, `"TIME"`) + "\n"
	file := filepath.Join("testdata", name)
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-update writes it):\n%s", file, diff)
	}
}

func TestOperationShape(t *testing.T) {
	t.Parallel()
	p := setup(t)
	node := p.node(p.cluster, "gpu-node-04")
	opID := p.do("operator", "POST", "/v1/operations", m{"type": "node.drain", "target": node, "reason": "firmware update"}, "X-Correlation-ID: corr").want(202).str("id")
	op := p.claim(opID)
	p.apply(opID, operation.Report{Agent: "agt_x", Generation: op.State.Generation, N: 1, Progress: &operation.Progress{Step: "preflight", Done: 1, Total: 8, Unit: "pods", Message: "judging"}})
	golden(t, "operation_running.json", p.do("viewer", "GET", "/v1/operations/"+opID, nil).want(200).raw)
	failed := p.create(p.node(p.cluster, "b"))
	p.failed(failed)
	golden(t, "operation_failed.json", p.do("viewer", "GET", "/v1/operations/"+failed, nil).want(200).raw)
	golden(t, "operation_dry_run.json", p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": p.node(p.cluster, "c"), "reason": "x", "dry_run": true}, "X-Correlation-ID: corr").want(200).raw)
	golden(t, "conflict.json", p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": "x"}, "X-Correlation-ID: corr").want(409).raw)
}
