package auth

import (
	"errors"
	"fmt"
	"testing"
)

func TestCan(t *testing.T) {
	t.Parallel()
	all := func(kind Kind, roles ...Role) Principal { return Principal{Kind: kind, Roles: roles} }
	in := func(p Principal, clusters ...string) Principal { p.Clusters = clusters; return p }
	force := func(p Principal) Principal { p.Force = true; return p }
	viewer, operator, admin := all(KindToken, Viewer), all(KindToken, Operator), all(KindOIDC, Admin)
	agent := in(all(KindAgent, Agent), "c1")
	for i, tt := range []struct {
		p       Principal
		action  Action
		cluster string
		code    string // of the refusal; "" when allowed
	}{
		{viewer, Read, "c1", ""},
		{viewer, Read, "", ""},
		{viewer, Operate, "c1", "forbidden"},
		{viewer, Serve, "c1", "forbidden"},
		{operator, Read, "c1", ""},
		{operator, Operate, "c1", ""},
		{operator, Operate, "", ""},
		{operator, Silence, "", ""},
		{operator, Resolve, "c1", "forbidden"},
		{operator, ManageTokens, "", "forbidden"},
		{operator, Force, "c1", "force_not_allowed"},
		{force(operator), Force, "c1", ""},
		{force(viewer), Force, "c1", "forbidden"},
		{admin, Resolve, "c1", ""},
		{admin, ManageTokens, "", ""},
		{admin, Force, "c1", "force_not_allowed"},
		{admin, Serve, "c1", "forbidden"},
		{in(operator, "c1", "c2"), Operate, "c2", ""},
		{in(operator, "c1"), Operate, "c2", "forbidden"},
		{in(operator, "c1"), Operate, "", "forbidden"},
		{in(viewer, "c1"), Read, "", ""},
		{in(viewer, "c1"), Read, "c2", "forbidden"},
		{in(admin, "c1"), ManageTokens, "", "forbidden"},
		{in(force(operator), "c1"), Force, "c2", "forbidden"},
		{agent, Serve, "c1", ""},
		{agent, Serve, "c2", "forbidden"},
		{agent, Serve, "", "forbidden"},
		{agent, Read, "c1", "forbidden"},
		{agent, Operate, "c1", "forbidden"},
		{all(KindAgent, Agent), Serve, "c1", "forbidden"}, // no cluster is not all
		{all(KindToken), Read, "", "forbidden"},
		{all(KindToken, "root"), Read, "", "forbidden"},
		{all(KindToken, Viewer, Operator), Operate, "c1", ""},
		{admin, "no_such_action", "", "forbidden"},
	} {
		err := tt.p.Authorize(tt.action, tt.cluster)
		code := ""
		if f, ok := errors.AsType[*ForbiddenError](err); ok {
			code = f.Code()
		}
		if code != tt.code || tt.p.Can(tt.action, tt.cluster) != (tt.code == "") {
			t.Errorf("%d: %v %s in %q: %v, want %q", i, tt.p.Roles, tt.action, tt.cluster, err, tt.code)
		}
		if err != nil && fmt.Sprint(err) == "" {
			t.Errorf("%d: no text", i)
		}
	}
	if len(viewer.Roles) != 1 || !viewer.Sees("c1") || !viewer.Sees("") || in(viewer, "c1").Sees("") || agent.Sees("c2") {
		t.Error("Sees")
	}
}

func TestEveryActionHasItsRight(t *testing.T) {
	t.Parallel()
	for a, r := range actions {
		if !r.role.Valid() {
			t.Errorf("%s: role %q", a, r.role)
		}
	}
	if Role("").Valid() || Admin.Includes("") || Admin.Includes(Agent) || Agent.Includes(Viewer) || !Agent.Includes(Agent) {
		t.Error("roles")
	}
}
