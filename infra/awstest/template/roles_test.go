//go:build awstest

package template

import (
	"cmp"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/ssa"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

// credentials are services that the SDK's own chain of credentials may call. In a
// function it ends at the environment, which Lambda fills in.
var credentials = []string{"sts", "sso", "ssooidc", "signin"}

// prefixes are the services' names in IAM, where they differ (Service
// Authorization Reference).
var prefixes = map[string]string{"eventbridge": "events", "dynamodbstreams": "dynamodb"}

// actions are what an operation needs where it is not the action of its own name
// (Service Authorization Reference, "Actions, resources, and condition keys" for
// Amazon SQS and for Amazon DynamoDB). What a transaction needs depends on what it
// is built from.
var actions = map[string][]string{
	"sqs:SendMessageBatch":             {"sqs:SendMessage"},
	"sqs:DeleteMessageBatch":           {"sqs:DeleteMessage"},
	"sqs:ChangeMessageVisibilityBatch": {"sqs:ChangeMessageVisibility"},
	"dynamodb:TransactGetItems":        {"dynamodb:GetItem"},
	"dynamodb:TransactWriteItems":      {},
	// Asked only with endpoint discovery turned on, which nothing here does.
	"dynamodb:DescribeEndpoints": {},
}

// parts are the SDK's parts of a transaction and what each needs.
var parts = map[string]string{
	"Put": "dynamodb:PutItem", "Update": "dynamodb:UpdateItem", "Delete": "dynamodb:DeleteItem", "ConditionCheck": "dynamodb:ConditionCheckItem",
}

// called are the actions that the reached code needs.
func called(at map[*ssa.Function]bool) map[string]bool {
	out := map[string]bool{}
	transacts := false
	for fn := range at {
		svc, name, ok := operation(fn)
		if !ok || slices.Contains(credentials, svc) {
			continue
		}
		op := cmp.Or(prefixes[svc], svc) + ":" + name
		transacts = transacts || op == "dynamodb:TransactWriteItems"
		needs, ok := actions[op]
		if !ok {
			needs = []string{op}
		}
		for _, a := range needs {
			out[a] = true
		}
	}
	for fn := range at {
		if fn.Pkg == nil || !strings.HasPrefix(fn.Pkg.Pkg.Path(), module) {
			continue
		}
		instructions(fn, func(in ssa.Instruction) {
			if a, ok := in.(*ssa.Alloc); ok && transacts {
				if n := named(a.Type()); n != nil && n.Pkg() != nil && n.Pkg().Path() == sdk+"dynamodb/types" && parts[n.Name()] != "" {
					out[parts[n.Name()]] = true
				}
			}
			// Tags at the creation of a queue are an action of their own.
			if f, ok := in.(*ssa.FieldAddr); ok && out["sqs:CreateQueue"] {
				if n := named(f.X.Type()); n != nil && n.Pkg().Path() == sdk+"sqs" && n.Name() == "CreateQueueInput" && fieldName(f) == "Tags" {
					out["sqs:TagQueue"] = true
				}
			}
		})
	}
	return out
}

// wired are the actions that Lambda takes by the function's role for what the
// template wires to it, though its code calls none of them (AWS Lambda Developer
// Guide: "Using Lambda with Amazon SQS", "Process DynamoDB records with Lambda",
// "Retain discarded records"; and the log group).
func wired(fn Resource) []string {
	out := []string{"logs:CreateLogStream", "logs:PutLogEvents"}
	sources, _ := fn.Properties["Events"].(map[string]any)
	for _, s := range sources {
		source, _ := s.(map[string]any)
		switch source["Type"] {
		case "SQS":
			out = append(out, "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
		case "DynamoDB":
			out = append(out, "dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams")
			props, _ := source["Properties"].(map[string]any)
			if _, ok := props["DestinationConfig"]; ok {
				out = append(out, "sqs:SendMessage")
			}
		}
	}
	return out
}

// TestRolesMatchCode: a role allows what its function's code can call and what is
// wired to it, and nothing else.
func TestRolesMatchCode(t *testing.T) {
	t.Parallel()
	tpl, p := read(t), load(t)
	for logical, folder := range rig.Functions {
		main := p.mains[folder]
		if main == nil {
			t.Errorf("there is no functions/%s", folder)
			continue
		}
		fn := tpl.Resources[logical]
		want := called(p.reached(main))
		if len(want) < 3 {
			t.Fatalf("%s calls only %v: the analysis sees too little", folder, want)
		}
		for _, a := range wired(fn) {
			want[a] = true
		}
		have := map[string]bool{}
		for _, s := range tpl.statements(t, fn) {
			for _, a := range s.actions {
				have[a] = true
			}
		}
		delete(have, "kms:Decrypt") // by the services, where the deployment has a key of its own
		for _, a := range slices.Sorted(maps.Keys(want)) {
			if !have[a] {
				t.Errorf("%s may not %s, which its code calls", folder, a)
			}
		}
		for _, a := range slices.Sorted(maps.Keys(have)) {
			if !want[a] {
				t.Errorf("%s may %s, which its code does not call", folder, a)
			}
		}
	}
}

// fieldName is the name of the field that an address is of.
func fieldName(f *ssa.FieldAddr) string {
	return f.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct).Field(f.Field).Name()
}
