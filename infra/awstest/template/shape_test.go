package template

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/gateway"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// number is a value that YAML may give as one of several kinds.
func number(t *testing.T, v any) int {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		t.Fatalf("%v is no number", v)
	}
	return n
}

func seconds(t *testing.T, v any) time.Duration {
	t.Helper()
	return time.Duration(number(t, v)) * time.Second
}

// TestTableIsTheEngines: the table that the template makes is the one that the
// engine reads and writes.
func TestTableIsTheEngines(t *testing.T) {
	t.Parallel()
	have := read(t).Resources["Table"].Properties
	want := dynamo.Schema("t")
	key := func(v any) (out []string) {
		for _, k := range List(v) {
			m := k.(map[string]any)
			out = append(out, fmt.Sprint(m["AttributeName"], " ", m["KeyType"]))
		}
		return out
	}
	attributes := map[string]string{}
	for _, a := range List(have["AttributeDefinitions"]) {
		m := a.(map[string]any)
		attributes[fmt.Sprint(m["AttributeName"])] = fmt.Sprint(m["AttributeType"])
	}
	indexes := map[string][]string{}
	for _, x := range List(have["GlobalSecondaryIndexes"]) {
		m := x.(map[string]any)
		indexes[fmt.Sprint(m["IndexName"])] = append(key(m["KeySchema"]), fmt.Sprint(m["Projection"]))
	}
	wantAttributes, wantIndexes, wantKey := map[string]string{}, map[string][]string{}, []string(nil)
	for _, a := range want.AttributeDefinitions {
		wantAttributes[aws.ToString(a.AttributeName)] = string(a.AttributeType)
	}
	for _, k := range want.KeySchema {
		wantKey = append(wantKey, aws.ToString(k.AttributeName)+" "+string(k.KeyType))
	}
	for _, x := range want.GlobalSecondaryIndexes {
		var of []string
		for _, k := range x.KeySchema {
			of = append(of, aws.ToString(k.AttributeName)+" "+string(k.KeyType))
		}
		wantIndexes[aws.ToString(x.IndexName)] = append(of, fmt.Sprint(map[string]any{"ProjectionType": string(x.Projection.ProjectionType)}))
	}
	for _, d := range []string{cmp.Diff(wantAttributes, attributes), cmp.Diff(wantIndexes, indexes), cmp.Diff(wantKey, key(have["KeySchema"])),
		cmp.Diff(any(string(want.BillingMode)), have["BillingMode"]),
		cmp.Diff(map[string]any{"StreamViewType": string(want.StreamSpecification.StreamViewType)}, have["StreamSpecification"]),
		cmp.Diff(map[string]any{"AttributeName": dynamo.TTLAttribute, "Enabled": true}, have["TimeToLiveSpecification"]),
		cmp.Diff(map[string]any{"PointInTimeRecoveryEnabled": true}, have["PointInTimeRecoverySpecification"])} {
		if d != "" {
			t.Errorf("the engine's table (-) and the template's (+) differ:\n%s", d)
		}
	}
}

// TestQueuesOutlastTheirReaders: a message is hidden for six times as long as its
// function may take, and becomes a dead letter after as many receives as the seam
// says (AWS Lambda Developer Guide, "Creating and configuring an Amazon SQS event
// source mapping").
func TestQueuesOutlastTheirReaders(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	read := 0
	for logical := range rig.Functions {
		fn := tpl.Resources[logical]
		timeout := seconds(t, fn.Properties["Timeout"])
		sources, _ := fn.Properties["Events"].(map[string]any)
		for name, s := range sources {
			source := s.(map[string]any)
			if source["Type"] != "SQS" {
				continue
			}
			read++
			props := source["Properties"].(map[string]any)
			ref := props["Queue"].(Call).Args.(string)
			q := tpl.Resources[strings.TrimSuffix(ref, ".Arn")].Properties
			if v := seconds(t, q["VisibilityTimeout"]); v < 6*timeout {
				t.Errorf("%s hides a message for %s, its reader %s takes up to %s", ref, v, logical, timeout)
			}
			redrive, _ := q["RedrivePolicy"].(map[string]any)
			if n := number(t, redrive["maxReceiveCount"]); n != queue.MaxReceives {
				t.Errorf("%s gives a message up after %d receives, the seam after %d", ref, n, queue.MaxReceives)
			}
			if fmt.Sprint(props["FunctionResponseTypes"]) != "[ReportBatchItemFailures]" {
				t.Errorf("%s.%s: a message that fails takes its batch with it", logical, name)
			}
		}
	}
	if read != 2 {
		t.Errorf("%d queues are read by functions, want those of sweep and plane", read)
	}
}

// TestQueuesAreGuarded: each queue is encrypted and refuses what is not TLS.
func TestQueuesAreGuarded(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	policy := tpl.Resources["QueuePolicy"].Properties
	covered := fmt.Sprint(policy["Queues"])
	on := fmt.Sprint(List(policy["PolicyDocument"].(map[string]any)["Statement"])[0].(map[string]any)["Resource"])
	n := 0
	for logical, r := range tpl.Resources {
		if r.Type != "AWS::SQS::Queue" {
			continue
		}
		n++
		if r.Properties["SqsManagedSseEnabled"] != true {
			t.Errorf("%s is not encrypted", logical)
		}
		if !strings.Contains(covered, "{Ref "+logical+"}") || !strings.Contains(on, "{GetAtt "+logical+".Arn}") {
			t.Errorf("%s is not under the policy that asks for TLS", logical)
		}
	}
	if n != 5 {
		t.Errorf("%d queues, want plane, sweep, dead, stream-dead and react-dead", n)
	}
}

// TestGatewayTimes: what the code says of the gateway's times is what the template
// sets.
func TestGatewayTimes(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	a := tpl.Resources["Authorizer"].Properties
	if ttl := seconds(t, a["AuthorizerResultTtlInSeconds"]); ttl != gateway.AuthorizerTTL {
		t.Errorf("the authorizer's answers are kept for %s, the code says %s", ttl, gateway.AuthorizerTTL)
	}
	if fmt.Sprint(a["IdentitySource"]) != "[$request.header.Authorization]" || a["EnableSimpleResponses"] != true || a["AuthorizerPayloadFormatVersion"] != "2.0" {
		t.Errorf("the authorizer's answers are not kept by the credential alone: %v", a)
	}
	for _, logical := range []string{"ApiFunction", "AgentApiFunction"} {
		timeout := seconds(t, tpl.Resources[logical].Properties["Timeout"])
		integration := time.Duration(number(t, tpl.Resources[strings.TrimSuffix(logical, "Function")+"Integration"].Properties["TimeoutInMillis"])) * time.Millisecond
		if timeout >= integration || timeout < gateway.Budget || gateway.MaxWait >= gateway.Budget {
			t.Errorf("%s: wait %s, budget %s, timeout %s and the gateway's %s must end in this order", logical, gateway.MaxWait, gateway.Budget, timeout, integration)
		}
	}
}

// TestEnvironment: each function is told what package cloud reads.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	vars := func(m map[string]any) map[string]any {
		env, _ := m["Environment"].(map[string]any)
		v, _ := env["Variables"].(map[string]any)
		return v
	}
	all := vars(tpl.Globals["Function"].(map[string]any))
	for _, name := range []string{cloud.EnvStage, cloud.EnvTable, cloud.EnvQueuePrefix, cloud.EnvBus, cloud.EnvLogLevel} {
		if all[name] == nil {
			t.Errorf("no function is told %s", name)
		}
	}
	notifies := []string{cloud.EnvWebhookAllow, cloud.EnvPublicURL}
	for function, names := range map[string][]string{
		"Authorizer": {cloud.EnvOIDCIssuer, cloud.EnvOIDCAudience, cloud.EnvOIDCRoleClaim, cloud.EnvOIDCRoles, cloud.EnvOIDCForceValue, cloud.EnvOIDCClustersClaim},
		"Api":        notifies, "React": notifies, "Sweep": append([]string{cloud.EnvEventDetails}, notifies...),
		// A bad value stops whom it is for and no other.
		"AgentApi": nil, "Relay": nil, "Plane": nil,
	} {
		own := vars(tpl.Resources[function+"Function"].Properties)
		for _, name := range names {
			if own[name] == nil {
				t.Errorf("%s is not told %s", function, name)
			}
		}
		if len(own) != len(names) {
			t.Errorf("%s is told %v, and reads %v", function, own, names)
		}
	}
}

// TestRoutes: only what needs no caller is open, and the agents' calls have a
// function of their own.
func TestRoutes(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	have := map[string]string{}
	for _, r := range tpl.Resources {
		if r.Type == "AWS::ApiGatewayV2::Route" {
			have[fmt.Sprint(r.Properties["RouteKey"])] = fmt.Sprint(r.Properties["AuthorizationType"], " ", r.Properties["AuthorizerId"], " ", r.Properties["Target"].(Call).Args)
		}
	}
	open, user := "NONE <nil> integrations/${ApiIntegration}", "CUSTOM {Ref Authorizer} integrations/${ApiIntegration}"
	want := map[string]string{
		"GET /healthz": open, "GET /readyz": open, "GET /openapi.json": open, "GET /docs": open, "GET /docs/{proxy+}": open, "$default": user, gateway.PreflightRoute: open,
		"ANY /v1/agent/{proxy+}": "CUSTOM {Ref Authorizer} integrations/${AgentApiIntegration}",
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
	if r := tpl.Resources["PreflightRoute"]; r.Condition != "HasOrigins" {
		t.Errorf("preflights are taken under the condition %q", r.Condition)
	}
}

// TestBrowsersMaySend: a browser may send and read each header of its own that
// the API's document names.
func TestBrowsersMaySend(t *testing.T) {
	t.Parallel()
	cors := List(read(t).Resources["HttpApi"].Properties["CorsConfiguration"].(Call).Args)[1].(map[string]any)
	b, err := os.ReadFile(filepath.Join(root, "infra", "docs", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ In, Name string }
			Responses  map[string]struct{ Headers map[string]any }
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	methods, send, show := map[string]bool{}, map[string]bool{"authorization": true, "content-type": true}, map[string]bool{}
	for path, ops := range doc.Paths {
		if strings.HasPrefix(path, "/v1/agent/") {
			continue
		}
		for method, op := range ops {
			methods[strings.ToUpper(method)] = true
			for _, p := range op.Parameters {
				if p.In == "header" {
					send[strings.ToLower(p.Name)] = true
				}
			}
			for _, r := range op.Responses {
				for name := range r.Headers {
					show[strings.ToLower(name)] = true
				}
			}
		}
	}
	for property, needed := range map[string]map[string]bool{"AllowMethods": methods, "AllowHeaders": send, "ExposeHeaders": show} {
		for name := range needed {
			if !slices.Contains(List(cors[property]), any(name)) {
				t.Errorf("%s lacks %s", property, name)
			}
		}
	}
}

// TestStreamReaders: relay takes only what asked for the feed, react of that the
// heads of event streams and the mark of the rules; a bad record takes no batch
// with it, and what is given up is kept. No more than two may read a shard
// (Amazon DynamoDB Developer Guide, "Change data capture for DynamoDB Streams").
func TestStreamReaders(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	pattern := func(k ledger.Key) any {
		keys := fmt.Sprintf(`"pk":{"S":[%q]},"sk":{"S":[%q]}`, k.PK, k.SK)
		if k.PK == "" {
			keys = fmt.Sprintf(`"sk":{"S":[%q]}`, k.SK)
		}
		return map[string]any{"Pattern": `{"dynamodb":{"Keys":{` + keys + `},"NewImage":{"f":{"N":["1"]}}}}`}
	}
	former := record.FormerKey("")
	ended := map[string]any{"Pattern": fmt.Sprintf(`{"dynamodb":{"Keys":{"pk":{"S":[%q]},"sk":{"S":[{"prefix":%q}]}},"NewImage":{"f":{"N":["1"]}}}}`, former.PK, former.SK)}
	readers := map[string][]any{
		"RelayFunction": {map[string]any{"Pattern": `{"dynamodb":{"NewImage":{"f":{"N":["1"]}}}}`}, "StreamDeadQueue.Arn"},
		"ReactFunction": {pattern(ledger.Key{SK: record.StreamHeadKey("").SK}), pattern(record.RulesKey), ended, "ReactDeadQueue.Arn"},
	}
	for logical := range rig.Functions {
		sources, _ := tpl.Resources[logical].Properties["Events"].(map[string]any)
		for name, s := range sources {
			source := s.(map[string]any)
			if source["Type"] != "DynamoDB" {
				continue
			}
			of, ok := readers[logical]
			if delete(readers, logical); !ok {
				t.Errorf("%s.%s reads the stream too", logical, name)
				continue
			}
			p := source["Properties"].(map[string]any)
			want := map[string]any{
				"StartingPosition": "TRIM_HORIZON", "FunctionResponseTypes": []any{"ReportBatchItemFailures"}, "BisectBatchOnFunctionError": true,
				"FilterCriteria":    map[string]any{"Filters": of[:len(of)-1]},
				"DestinationConfig": map[string]any{"OnFailure": map[string]any{"Type": "SQS", "Destination": Call{"GetAtt", of[len(of)-1]}}},
			}
			for name, v := range want {
				if d := cmp.Diff(v, p[name]); d != "" {
					t.Errorf("%s of %s: %s", name, logical, d)
				}
			}
			for _, bound := range []string{"MaximumRecordAgeInSeconds", "MaximumRetryAttempts"} {
				if number(t, p[bound]) <= 0 {
					t.Errorf("%s of %s is not bounded", bound, logical)
				}
			}
		}
	}
	for logical := range readers {
		t.Errorf("%s reads no stream", logical)
	}
}
