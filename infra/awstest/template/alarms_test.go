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

// alarm is what an alarm looks at.
type alarm struct {
	metric    string // namespace, name, and dimensions as name=value
	statistic string
	below     bool // it alarms below its threshold, else above
	missing   string
}

// watched are the alarms of the template. None is over several metrics: the local
// AWS deploys no such.
func watched(t *testing.T, tpl *Template) map[string]alarm {
	t.Helper()
	out := map[string]alarm{}
	for logical, r := range tpl.Resources {
		if r.Type != "AWS::CloudWatch::Alarm" {
			continue
		}
		p := r.Properties
		var dims []string
		for _, d := range List(p["Dimensions"]) {
			d := d.(map[string]any)
			dims = append(dims, fmt.Sprint(d["Name"], "=", d["Value"]))
		}
		slices.Sort(dims)
		out[logical] = alarm{metric: fmt.Sprint(p["Namespace"], " ", p["MetricName"], " ", strings.Join(dims, " ")), statistic: fmt.Sprint(p["Statistic"]),
			below: p["ComparisonOperator"] == "LessThanThreshold", missing: fmt.Sprint(p["TreatMissingData"])}
		if topic := fmt.Sprint(p["AlarmActions"]); topic != "{If [HasTopic [{Ref AlarmTopicArn}] {Ref AWS::NoValue}]}" {
			t.Errorf("%s tells %s", logical, topic)
		}
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
	sum := func(metric string) alarm { return alarm{metric: metric, statistic: "Sum", missing: "notBreaching"} }
	silence := sum(own("SweepTicks", "SweepFunction"))
	silence.below, silence.missing = true, "breaching"
	age := sum("AWS/Lambda IteratorAge FunctionName={Ref RelayFunction}")
	age.statistic = "Maximum"
	judging := age
	judging.metric = "AWS/Lambda IteratorAge FunctionName={Ref ReactFunction}"
	want := map[string]alarm{
		"ReactDeadAlarm":        sum(own("ReactGivenUp", "SweepFunction")),
		"ReactAgeAlarm":         judging,
		"UnjudgedAlarm":         sum(own("StreamsUnjudged", "ReactFunction")),
		"DeadLettersAlarm":      sum(own("DeadLetters", "SweepFunction")),
		"StreamDeadAlarm":       sum(own("StreamGivenUp", "SweepFunction")),
		"StreamUnreadableAlarm": sum(own("StreamUnreadable", "RelayFunction")),
		"IteratorAgeAlarm":      age,
		"SweepSilenceAlarm":     silence,
		"ReadThrottleAlarm":     sum("AWS/DynamoDB ReadThrottleEvents TableName={Ref Table}"),
		"WriteThrottleAlarm":    sum("AWS/DynamoDB WriteThrottleEvents TableName={Ref Table}"),
	}
	for _, x := range dynamo.Schema("t").GlobalSecondaryIndexes {
		name := aws.ToString(x.IndexName)
		for _, kind := range []string{"Read", "Write"} {
			want[strings.ToUpper(name[:1])+name[1:]+kind+"ThrottleAlarm"] = sum(fmt.Sprintf("AWS/DynamoDB %sThrottleEvents GlobalSecondaryIndexName=%s TableName={Ref Table}", kind, name))
		}
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
