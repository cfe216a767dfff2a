package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/tally"
)

// lines decodes what was logged.
func lines(t *testing.T, b *bytes.Buffer) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q is no JSON: %v", line, err)
		}
		delete(m, "time")
		out = append(out, m)
	}
	return out
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	type key struct{}
	log := NewLogger(&b, Config{Stage: "prod", LogLevel: slog.LevelInfo}, func(ctx context.Context) slog.Attr {
		id, ok := ctx.Value(key{}).(string)
		if !ok {
			return slog.Attr{}
		}
		return slog.String("gateway_request_id", id)
	})
	ctx := lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{AwsRequestID: "req-1"})
	log.DebugContext(ctx, "unseen")
	log.WarnContext(ctx, "failed", "operation", "op_x")
	log.With("reader", "bus").WithGroup("batch").InfoContext(ctx, "done", "records", 3)
	log.InfoContext(context.WithValue(t.Context(), key{}, "gw-1"), "started")
	want := []map[string]any{
		{"level": "WARN", "msg": "failed", "stage": "prod", "function": "", "operation": "op_x", "aws_request_id": "req-1"},
		{"level": "INFO", "msg": "done", "stage": "prod", "function": "", "reader": "bus", "batch": map[string]any{"records": 3.0, "aws_request_id": "req-1"}},
		{"level": "INFO", "msg": "started", "stage": "prod", "function": "", "gateway_request_id": "gw-1"},
	}
	if diff := cmp.Diff(want, lines(t, &b)); diff != "" {
		t.Error(diff)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := NewMetrics(&b, Config{Stage: "prod"})
	m.now = func() time.Time { return time.UnixMilli(1700000000123) }
	if err := m.Put(Metric{"SweepLateness", Seconds, 1.5}, Metric{"DeadLetters", Count, 2}); err != nil {
		t.Fatal(err)
	}
	if err := m.Put(); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("no metrics: %v, %q", err, b.String())
	}
	want := `{"Stage":"prod","Function":"","SweepLateness":1.5,"DeadLetters":2,"_aws":{"Timestamp":1700000000123,"CloudWatchMetrics":[
		{"Namespace":"Opsplane","Dimensions":[["Function","Stage"]],"Metrics":[{"Name":"SweepLateness","Unit":"Seconds"},{"Name":"DeadLetters","Unit":"Count"}]}]}}`
	var got, expected any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := m.PutOf("clu_1", Counted([]tally.Count{{Name: "events_in_total", Value: 3}, {Name: "event_gaps_total"}})...); err != nil {
		t.Fatal(err)
	}
	want = `{"Stage":"prod","Function":"","Cluster":"clu_1","events_in_total":3,"_aws":{"Timestamp":1700000000123,"CloudWatchMetrics":[
		{"Namespace":"Opsplane","Dimensions":[["Function","Stage"]],"Metrics":[{"Name":"events_in_total","Unit":"Count"}]}]}}`
	if err := errors.Join(json.Unmarshal(b.Bytes(), &got), json.Unmarshal([]byte(want), &expected)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("of a cluster: %s", diff)
	}
	if err := m.Put(Metric{"Broken", Count, math.NaN()}); err == nil {
		t.Error("a value that is no number was written")
	}
	if err := (*Metrics)(nil).Put(Metric{"None", Count, 1}); err != nil {
		t.Errorf("no metrics: %v", err)
	}
}
