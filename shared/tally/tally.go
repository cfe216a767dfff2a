// Package tally has counts under the names by which people know them: the same at
// /metrics of one machine, there behind opsplane_, and in CloudWatch.
package tally

// Count is how often something happened since its counter was made.
type Count struct {
	Name  string // such as events_in_total (Prometheus: "Metric and label naming")
	Help  string
	Value int64
}
