package template

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/auth"
)

// statement is one statement of a role's policy.
type statement struct {
	sid       string
	actions   []string
	resources []any
	condition any
}

// statements are those of the function's role.
func (tpl *Template) statements(t *testing.T, fn Resource) []statement {
	t.Helper()
	get, _ := fn.Properties["Role"].(Call)
	name, _ := get.Args.(string)
	role, ok := tpl.Resources[strings.TrimSuffix(name, ".Arn")]
	if get.Name != "GetAtt" || !ok || role.Type != "AWS::IAM::Role" {
		t.Fatalf("role of %v is %v, no role of the template", fn.Properties["FunctionName"], fn.Properties["Role"])
	}
	if role.Properties["ManagedPolicyArns"] != nil || fn.Properties["Policies"] != nil {
		t.Errorf("%s has policies beside its own", name)
	}
	var out []statement
	for _, p := range List(role.Properties["Policies"]) {
		policy, _ := p.(map[string]any)
		doc, _ := policy["PolicyDocument"].(map[string]any)
		for _, s := range List(doc["Statement"]) {
			if c, ok := s.(Call); ok && c.Name == "If" { // condition, then, else
				s = List(c.Args)[1]
			}
			m, ok := s.(map[string]any)
			if !ok || m["Effect"] != "Allow" || m["NotAction"] != nil || m["NotResource"] != nil {
				t.Fatalf("%s: statement %v is not understood", name, s)
			}
			st := statement{resources: List(m["Resource"]), condition: m["Condition"]}
			st.sid, _ = m["Sid"].(string)
			for _, a := range List(m["Action"]) {
				action, _ := a.(string)
				st.actions = append(st.actions, action)
			}
			out = append(out, st)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no statement", name)
	}
	return out
}

// TestRolesAreNarrow: no role has a wildcard among its actions, and none in what
// they are allowed on but for the queues made at run time, the table's indexes
// and its stream's next name.
func TestRolesAreNarrow(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	roles := map[string]string{}
	for logical := range rig.Functions {
		fn := tpl.Resources[logical]
		if fn.Type != "AWS::Serverless::Function" {
			t.Errorf("%s is a %q", logical, fn.Type)
			continue
		}
		role, _ := fn.Properties["Role"].(Call)
		name, _ := role.Args.(string)
		if other := roles[name]; other != "" {
			t.Errorf("%s and %s share the role %s", logical, other, name)
		}
		roles[name] = logical
		for _, s := range tpl.statements(t, fn) {
			for _, a := range s.actions {
				if strings.Contains(a, "*") || !strings.Contains(a, ":") {
					t.Errorf("%s: statement %s allows %q", logical, s.sid, a)
				}
			}
			for _, r := range s.resources {
				c, ok := r.(Call)
				text, _ := c.Args.(string)
				wild := strings.Contains(text, "*") && !strings.HasSuffix(text, ":opsplane-${Stage}-cluster-*") && text != "${Table.Arn}/index/*"
				if !ok || text == "" || wild {
					t.Errorf("%s: statement %s is on %v", logical, s.sid, r)
				}
			}
		}
	}
	for logical, r := range tpl.Resources {
		if r.Type == "AWS::Serverless::Function" && rig.Functions[logical] == "" {
			t.Errorf("%s is not among the functions that tests look at", logical)
		}
	}
}

// TestAuthorizerReachesTokensAlone: what anyone can have called without a
// credential gets to no other items (Amazon DynamoDB Developer Guide, "Using IAM
// policy conditions for fine-grained access control").
func TestAuthorizerReachesTokensAlone(t *testing.T) {
	t.Parallel()
	_, _, write, err := auth.NewStore(nil, time.Now).CreateWrite(auth.TokenSpec{Name: "a", Role: auth.Viewer, CreatedBy: "b"})
	if err != nil {
		t.Fatal(err)
	}
	kind, _, _ := strings.Cut(write.Item.Key.PK, "#")
	want := map[string]any{"ForAllValues:StringLike": map[string]any{"dynamodb:LeadingKeys": []any{kind + "#*"}}}
	tpl, n := read(t), 0
	for _, s := range tpl.statements(t, tpl.Resources["AuthorizerFunction"]) {
		if !strings.HasPrefix(s.actions[0], "dynamodb:") {
			continue
		}
		n++
		if d := cmp.Diff(any(want), s.condition); d != "" {
			t.Errorf("statement %s: %s", s.sid, d)
		}
	}
	if n == 0 {
		t.Error("the authorizer may not read tokens")
	}
}
