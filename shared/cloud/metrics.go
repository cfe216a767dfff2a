package cloud

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/tally"
)

// Namespace is that of the functions' metrics in CloudWatch.
const Namespace = "Opsplane"

// Unit is a metric's unit (Amazon CloudWatch API Reference, "MetricDatum").
type Unit string

// The units in use.
const (
	Count        Unit = "Count"
	Milliseconds Unit = "Milliseconds"
	Seconds      Unit = "Seconds"
)

// Metric is one value of a metric.
type Metric struct {
	Name  string // such as SweepLateness
	Unit  Unit
	Value float64
}

// Counted are the counts that are not zero, as metrics of the same names.
func Counted(counts []tally.Count) (out []Metric) {
	for _, c := range counts {
		if c.Value != 0 {
			out = append(out, Metric{Name: c.Name, Unit: Count, Value: float64(c.Value)})
		}
	}
	return out
}

// Metrics writes metrics as log lines in the embedded metric format, from which
// CloudWatch makes metrics without a call of the function's (Amazon CloudWatch
// User Guide, "Specification: Embedded metric format"). Its dimensions are the
// stage and the function and nothing else: each new value of a dimension is a
// metric of its own, and is billed so; an id would be one per operation.
type Metrics struct {
	w          io.Writer
	dimensions map[string]string
	now        func() time.Time
}

// NewMetrics writes to the function's log; w takes each line in one write.
func NewMetrics(w io.Writer, c Config) *Metrics {
	return &Metrics{w: w, now: time.Now, dimensions: map[string]string{"Stage": c.Stage, "Function": FunctionName()}}
}

// Put writes the metrics in one line. The format takes 100 metrics a line.
func (m *Metrics) Put(ms ...Metric) error { return m.put("", ms) }

// PutOf is Put for what happened in one cluster. The line names it beside the
// dimensions: CloudWatch Logs Insights sums by it, and it makes no metric more.
func (m *Metrics) PutOf(cluster string, ms ...Metric) error { return m.put(cluster, ms) }

func (m *Metrics) put(cluster string, ms []Metric) error {
	if len(ms) == 0 || m == nil {
		return nil
	}
	type definition struct {
		Name string `json:"Name"`
		Unit Unit   `json:"Unit"`
	}
	type directive struct {
		Namespace  string       `json:"Namespace"`
		Dimensions [][]string   `json:"Dimensions"`
		Metrics    []definition `json:"Metrics"`
	}
	type metadata struct {
		Timestamp int64       `json:"Timestamp"` // Unix milliseconds
		Metrics   []directive `json:"CloudWatchMetrics"`
	}
	line := map[string]any{}
	d := directive{Namespace: Namespace, Dimensions: [][]string{slices.Sorted(maps.Keys(m.dimensions))}}
	for name, value := range m.dimensions {
		line[name] = value
	}
	if cluster != "" {
		line["Cluster"] = cluster
	}
	for _, v := range ms {
		d.Metrics = append(d.Metrics, definition{v.Name, v.Unit})
		line[v.Name] = v.Value
	}
	line["_aws"] = metadata{Timestamp: m.now().UnixMilli(), Metrics: []directive{d}}
	b, err := json.Marshal(line)
	if err != nil { // a value that is no number
		return fmt.Errorf("encode metrics: %w", err)
	}
	if _, err := m.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}
