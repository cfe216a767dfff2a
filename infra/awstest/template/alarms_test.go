package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
)

// alarm is what an alarm looks at, dimensions as name=value.
type alarm struct {
	metrics   []string // namespace, name and dimensions
	statistic string
	below     bool // it alarms below its threshold, else above
	missing   string
}

// watched are the alarms of the template. An alarm over several metrics takes
// their sum.
func watched(t *testing.T, tpl *Template) map[string]alarm {
	t.Helper()
	of := func(m map[string]any) string {
		var dims []string
		for _, d := range List(m["Dimensions"]) {
			d := d.(map[string]any)
			dims = append(dims, fmt.Sprint(d["Name"], "=", d["Value"]))
		}
		slices.Sort(dims)
		return fmt.Sprint(m["Namespace"], " ", m["MetricName"], " ", strings.Join(dims, " "))
	}
	out := map[string]alarm{}
	for logical, r := range tpl.Resources {
		if r.Type != "AWS::CloudWatch::Alarm" {
			continue
		}
		p := r.Properties
		a := alarm{statistic: fmt.Sprint(p["Statistic"]), below: p["ComparisonOperator"] == "LessThanThreshold", missing: fmt.Sprint(p["TreatMissingData"])}
		if p["MetricName"] != nil {
			a.metrics = []string{of(p)}
		}
		for _, m := range List(p["Metrics"]) {
			m := m.(map[string]any)
			if stat, ok := m["MetricStat"].(map[string]any); ok {
				a.statistic = fmt.Sprint(stat["Stat"])
				a.metrics = append(a.metrics, of(stat["Metric"].(map[string]any)))
			} else if m["Expression"] != "SUM(METRICS())" {
				t.Errorf("%s: expression %v", logical, m["Expression"])
			}
		}
		slices.Sort(a.metrics)
		if topic := fmt.Sprint(p["AlarmActions"]); topic != "{If [HasTopic [{Ref AlarmTopicArn}] {Ref AWS::NoValue}]}" {
			t.Errorf("%s tells %s", logical, topic)
		}
		out[logical] = a
	}
	return out
}

// own is a metric that a function writes into its log, with the dimensions that
// package cloud gives it.
func own(metric, function string) string {
	return fmt.Sprintf("%s %s Function={Ref %s} Stage={Ref Stage}", cloud.Namespace, metric, function)
}

// TestAlarms: each alarm looks at a metric that shows what it is for. The queues
// of dead letters are emptied within a minute, so that their depth may never show
// one; the sweep is invoked by wake-ups too, so that its invocations do not show
// that its rule is silent; what an index refuses is a metric of the index.
func TestAlarms(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	sum := func(metrics ...string) alarm {
		slices.Sort(metrics)
		return alarm{metrics: metrics, statistic: "Sum", missing: "notBreaching"}
	}
	table := func(metric string) alarm {
		metrics := []string{"AWS/DynamoDB " + metric + " TableName={Ref Table}"}
		for _, x := range dynamo.Schema("t").GlobalSecondaryIndexes {
			metrics = append(metrics, fmt.Sprintf("AWS/DynamoDB %s GlobalSecondaryIndexName=%s TableName={Ref Table}", metric, aws.ToString(x.IndexName)))
		}
		return sum(metrics...)
	}
	silence := sum(own("SweepTicks", "SweepFunction"))
	silence.below, silence.missing = true, "breaching"
	age := sum("AWS/Lambda IteratorAge FunctionName={Ref RelayFunction}")
	age.statistic = "Maximum"
	want := map[string]alarm{
		"DeadLettersAlarm":      sum(own("DeadLetters", "SweepFunction")),
		"StreamDeadAlarm":       sum(own("StreamGivenUp", "SweepFunction")),
		"StreamUnreadableAlarm": sum(own("StreamUnreadable", "RelayFunction")),
		"IteratorAgeAlarm":      age,
		"SweepSilenceAlarm":     silence,
		"ReadThrottleAlarm":     table("ReadThrottleEvents"),
		"WriteThrottleAlarm":    table("WriteThrottleEvents"),
	}
	for logical := range rig.Functions {
		for _, metric := range []string{"Errors", "Throttles"} {
			want[strings.TrimSuffix(logical, "Function")+metric+"Alarm"] = sum(fmt.Sprintf("AWS/Lambda %s FunctionName={Ref %s}", metric, logical))
		}
	}
	have := watched(t, tpl)
	for _, logical := range slices.Sorted(maps.Keys(want)) {
		if d := cmp.Diff(want[logical], have[logical], cmp.AllowUnexported(alarm{})); d != "" {
			t.Errorf("%s: %s", logical, d)
		}
		delete(have, logical)
	}
	for logical := range have {
		t.Errorf("%s is for nothing that is known here", logical)
	}
}
