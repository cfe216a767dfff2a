package charttest

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// Hosts are kept to their own reports where there are hosts that report and a
// server that knows policies, and the policy works the report's name out as the
// helper does.
func TestReportPolicy(t *testing.T) {
	t.Parallel()
	const policy = "opsplane." + namespace + "." + fullname + "-reports"
	for _, tc := range []struct {
		values string
		there  bool
	}{
		{"hostHelper: {enabled: true}", true},
		{"", false},
		{"hostHelper: {enabled: true}\nadmissionPolicy: {enabled: false}", false},
	} {
		o, _ := render(t, with(t, tc.values))
		if there := o["ValidatingAdmissionPolicy/"+policy] != nil; there != tc.there || there != (o["ValidatingAdmissionPolicyBinding/"+policy] != nil) {
			t.Errorf("%q: the policy is there: %v; there are %s", tc.values, there, keys(o))
		}
	}
	for version, there := range map[string]bool{"v1.29.9": false, "v1.30.0": true, "v1.30.0-eks-1": true} {
		r, err := installOn(t, version, with(t, "hostHelper: {enabled: true}"))
		if err != nil || strings.Contains(r.Manifest, policy) != there {
			t.Errorf("on %s: want it there: %v; %v", version, there, err)
		}
	}
	o, _ := render(t, with(t, "hostHelper: {enabled: true}"))
	p := get[admissionv1.ValidatingAdmissionPolicy](t, o, "ValidatingAdmissionPolicy/"+policy)
	if *p.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("what it cannot judge is let through")
	}
	if c := p.Spec.MatchConditions; len(c) != 1 || !strings.Contains(c[0].Expression, `"system:serviceaccount:`+namespace+":"+fullname+`-host"`) {
		t.Errorf("it is about %+v", c)
	}
	var name string
	for _, v := range p.Spec.Variables {
		if v.Name == "report" {
			name = v.Expression
		}
	}
	want := fmt.Sprintf("variables.node.size() <= %d ? %q + variables.node", report.MaxNameBytes-len(report.Prefix), report.Prefix)
	if !strings.HasPrefix(name, want) {
		t.Errorf("a report is called %s, want %s", name, want)
	}
	b := get[admissionv1.ValidatingAdmissionPolicyBinding](t, o, "ValidatingAdmissionPolicyBinding/"+policy)
	if a := b.Spec.ValidationActions; b.Spec.PolicyName != policy || len(a) != 1 || a[0] != admissionv1.Deny {
		t.Errorf("bound: %+v", b.Spec)
	}
}
