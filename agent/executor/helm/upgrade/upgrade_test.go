//go:build kubetest

package upgrade

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

func TestUpgradeKeepsValuesAndIsDoneOnce(t *testing.T) {
	t.Parallel()
	s := setup(t)
	o := s.options("v1.1.0") // as payloads may spell it
	o.Chart = folder(t, "1.1.0")
	if a := s.run(answer.Preflight, o); a.Code != "" || a.From != "1.0.0" || a.To != "1.1.0" || a.Already || len(a.Warnings) != 0 {
		t.Fatalf("preflight: %+v", a)
	}
	if n := len(s.revisions()); n != 1 {
		t.Fatalf("the preflight left %d revisions", n)
	}
	a := s.run(answer.Upgrade, o)
	if a.Code != "" || a.To != "1.1.0" || a.AppTo != "v1.1.0" || a.Own == nil || a.Own.Revision != 2 || a.Own.Status != "deployed" {
		t.Fatalf("upgrade: %+v", a)
	}
	h := s.revisions()
	if h.last().Config["password"] != secret || len(h.last().Config) != 2 {
		t.Errorf("values after the upgrade: %v", h.last().Config)
	}
	d, err := s.admin.AppsV1().Deployments(s.ns).Get(t.Context(), "demo", metav1.GetOptions{})
	if err != nil || d.Spec.Template.Spec.Containers[0].Image != "demo:v1.1.0" || d.Status.ReadyReplicas != 1 {
		t.Errorf("%v %+v", err, d.Status)
	}
	// The same lease again, the next one, and one that only asks.
	o.Mark.Generation = 2
	for _, again := range []Options{o, s.options("1.1.0")} {
		again.Chart = o.Chart
		if again.Mark.Generation == 1 && s.revisions().newer(again.Mark) != 0 {
			t.Error("a revision of a newer generation was made")
		}
		if b := s.run(answer.Upgrade, again); b.Code != "" || b.Own == nil || b.Own.Revision != 2 {
			t.Errorf("again: %+v", b)
		}
	}
	if b := s.run(answer.Status, o); b.Code != "" || b.Own == nil || b.Own.Generation != 1 || b.Release.Chart != "1.1.0" {
		t.Errorf("status: %+v", b)
	}
	other := s.options("1.1.0")
	other.Mark.Operation = "op_2"
	for _, verb := range []string{answer.Preflight, answer.Upgrade} {
		if b := s.run(verb, other); b.Code != "" || !b.Already || b.Own != nil {
			t.Errorf("%s of another operation: %+v", verb, b)
		}
	}
	if n := len(s.revisions()); n != 2 {
		t.Errorf("%d revisions", n)
	}
}

func TestUpgradeThatFails(t *testing.T) {
	t.Parallel()
	for _, rollback := range []bool{true, false} {
		t.Run(fmt.Sprint(rollback), func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			o := s.options("1.2.0")
			o.Rollback, o.Timeout = rollback, 3*time.Second
			if a := s.run(answer.Preflight, o); a.Code != "" {
				t.Fatalf("preflight: %+v", a)
			}
			a := s.run(answer.Upgrade, o)
			if a.Code != answer.UpgradeFailed || a.RolledBack != rollback || a.Own == nil || a.Own.Revision != 2 || !strings.Contains(a.Detail, "Deployment/"+s.ns+"/demo is not ready") {
				t.Fatalf("upgrade: %+v", a)
			}
			want := map[bool]string{true: "1.0.0", false: "1.2.0"}[rollback]
			d, err := s.admin.AppsV1().Deployments(s.ns).Get(t.Context(), "demo", metav1.GetOptions{})
			if err != nil || d.Spec.Template.Labels["version"] != want {
				t.Errorf("%v: the deployment is %v, want %s", err, d.Spec.Template.Labels, want)
			}
			o.Mark.Generation = 2
			if b := s.run(answer.Upgrade, o); b.Code != answer.UpgradeFailed || b.RolledBack != rollback || b.Own.Revision != 2 {
				t.Errorf("the next lease of the run: %+v", b)
			}
			retry := s.options("1.1.0") // a retry of the operation is another run: it may
			retry.Mark.Run, retry.Mark.Generation = 2, 3
			if b := s.run(answer.Upgrade, retry); b.Code != "" || b.Own.Run != 2 {
				t.Errorf("the retry: %+v", b)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := setup(t)
	tests := []struct {
		name, version string
		change        func(*Options)
		code          string
		detail        []string
	}{
		{"no such release", "1.1.0", func(o *Options) { o.Release = "other" }, answer.ReleaseNotFound, []string{"other"}},
		{"no chart there", "1.1.0", func(o *Options) { o.Chart = "/nowhere/demo" }, answer.ChartNotFound, []string{"/nowhere/demo"}},
		{"another version there", "1.1.0", func(o *Options) { o.Chart = folder(t, "1.6.0") }, answer.ChartNotFound, []string{"1.6.0", "1.1.0"}},
		{"another Kubernetes", "1.3.0", nil, answer.Incompatible, []string{">=9.0.0"}},
		{"schema", "1.4.0", nil, answer.ValuesInvalid, []string{"/password"}},
		{"template", "1.5.0", nil, answer.ChartInvalid, []string{"demo/templates/bad.yaml:1"}},
	}
	for _, tt := range tests {
		for _, verb := range []string{answer.Preflight, answer.Upgrade} {
			o := s.options(tt.version)
			if tt.change != nil {
				tt.change(&o)
			}
			a := s.run(verb, o)
			if a.Code != tt.code {
				t.Errorf("%s, %s: %+v", tt.name, verb, a)
			}
			for _, part := range tt.detail {
				if !strings.Contains(a.Detail, part) {
					t.Errorf("%s, %s: the detail does not name %q: %s", tt.name, verb, part, a.Detail)
				}
			}
		}
	}
	if n := len(s.revisions()); n != 1 {
		t.Errorf("%d revisions", n)
	}
}

func TestWarnsOfDefinitions(t *testing.T) {
	t.Parallel()
	s := setup(t)
	a := s.run(answer.Preflight, s.options("1.6.0"))
	if a.Code != "" || len(a.Warnings) != 1 || a.Warnings[0].Code != answer.WarningCRDs || !strings.Contains(a.Warnings[0].Detail, "crds/things.yaml") {
		t.Errorf("%+v", a)
	}
}

// What the API server finds invalid is told by its field; the value stays.
func TestInvalidObjectIsToldByItsField(t *testing.T) {
	t.Parallel()
	s := setup(t)
	a := s.run(answer.Upgrade, s.options("1.7.0"))
	if a.Code != answer.UpgradeFailed || !strings.Contains(a.Detail, "metadata.labels") || !a.RolledBack {
		t.Errorf("%+v", a)
	}
}

func TestReleaseThatIsPending(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.store(func(r *release.Release) { r.SetStatus(common.StatusPendingUpgrade, "somebody's") })
	for _, recover := range [][]int64{nil, {1}} { // nobody takes over what is not the operation's
		o := s.options("1.1.0")
		o.Recover, o.Mark.Generation = recover, 2
		for _, verb := range []string{answer.Preflight, answer.Upgrade} {
			if a := s.run(verb, o); a.Code != answer.ReleasePending || !strings.Contains(a.Detail, "revision 1 of release demo is pending-upgrade") {
				t.Errorf("%s: %+v", verb, a)
			}
		}
	}
	if s.revisions().last().Info.Description != "somebody's" {
		t.Error("the pending revision was changed")
	}
}

// cutOff leaves the release as an upgrade leaves it that was killed on the way.
func (s *site) cutOff(by Mark, rollback bool) {
	s.t.Helper()
	h := s.revisions()
	next := *h.last()
	info := *h.last().Info
	next.Info, next.Version, next.Labels = &info, h.last().Version+1, by.labels(h.last().Version+1)
	next.SetStatus(common.StatusPendingUpgrade, "Preparing upgrade")
	if rollback {
		next.SetStatus(common.StatusFailed, "not ready")
	}
	if err := s.helm.Releases.Create(&next); err != nil {
		s.t.Fatal(err)
	}
	if !rollback {
		return
	}
	last := next
	again := info
	last.Info, last.Version, last.Labels = &again, next.Version+1, by.labels(next.Version+1)
	last.Info.RollbackRevision = h.last().Version
	last.SetStatus(common.StatusPendingRollback, "rolling back")
	if err := s.helm.Releases.Create(&last); err != nil {
		s.t.Fatal(err)
	}
}

func TestUpgradeThatWasCutOffIsTakenUp(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.cutOff(Mark{"op_1", 1, 1}, false)
	o := s.options("1.1.0")
	o.Mark.Generation = 2
	if a := s.run(answer.Upgrade, o); a.Code != answer.ReleasePending || a.Release.Operation != "op_1" || a.Release.Generation != 1 {
		t.Errorf("while its pod may live: %+v", a)
	}
	o.Recover = []int64{1}
	a := s.run(answer.Upgrade, o)
	if a.Code != "" || a.Own.Revision != 3 || a.Own.Generation != 2 {
		t.Errorf("taken up: %+v", a)
	}
	h := s.revisions()
	if h[1].Info.Status != common.StatusFailed || !strings.HasPrefix(h[1].Info.Description, interrupted) || h.last().Info.Status != common.StatusDeployed {
		t.Errorf("revision 2 is %s: %s", h[1].Info.Status, h[1].Info.Description)
	}
	// The one that was cut off comes back to life: it is refused.
	o.Mark.Generation = 1
	if a := s.run(answer.Upgrade, o); a.Code != answer.StaleGeneration {
		t.Errorf("the older generation: %+v", a)
	}
}

func TestRollbackThatWasCutOffIsTakenUp(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.cutOff(Mark{"op_1", 1, 1}, true)
	o := s.options("1.1.0")
	o.Mark.Generation, o.Recover = 2, []int64{1}
	a := s.run(answer.Upgrade, o)
	if a.Code != answer.UpgradeFailed || !a.RolledBack || a.Own.Revision != 2 {
		t.Errorf("%+v", a)
	}
	if l := s.revisions().last(); l.Info.Status != common.StatusDeployed || l.Info.RollbackRevision != 1 {
		t.Errorf("revision %d is %s", l.Version, l.Info.Status)
	}
}

// Two programs at once: Helm's storage lets one through.
func TestTwoUpgradesAtOnce(t *testing.T) {
	t.Parallel()
	s := setup(t)
	answers := make([]answer.Answer, 2)
	var wg sync.WaitGroup
	for i := range answers {
		o := s.options("1.1.0")
		o.Mark.Generation = int64(i + 1)
		wg.Go(func() { answers[i] = s.run(answer.Upgrade, o) })
	}
	wg.Wait()
	made := 0
	for i, a := range answers {
		switch {
		case a.Code == "" && a.Own.Generation == int64(i+1):
			made++
		case a.Code == "", a.Code == answer.ReleasePending, a.Code == answer.StaleGeneration:
		default:
			t.Errorf("generation %d: %+v", i+1, a)
		}
	}
	if n := len(s.revisions()); made != 1 || n != 2 {
		t.Errorf("%d made a revision, there are %d: %+v", made, n, answers)
	}
}

// Labels go from revision to revision: a person's upgrade is not the operation's.
func TestMarkOfAnEarlierRevisionDoesNotCount(t *testing.T) {
	t.Parallel()
	s := setup(t)
	if a := s.run(answer.Upgrade, s.options("1.1.0")); a.Code != "" {
		t.Fatalf("%+v", a)
	}
	h := s.revisions()
	next := *h.last()
	info := *next.Info
	next.Info, next.Version = &info, 3
	next.Labels = Mark{"op_1", 1, 1}.labels(2) // as Helm copies them
	if err := s.helm.Releases.Create(&next); err != nil {
		t.Fatal(err)
	}
	if a := s.run(answer.Status, s.options("1.1.0")); a.Release.Operation != "" || a.Own == nil || a.Own.Revision != 2 {
		t.Errorf("%+v", a)
	}
}

func TestRightsAreAskedForBeforehand(t *testing.T) {
	t.Parallel()
	s := setup(t)
	user := s.rig.User("upgrader")
	o := s.options("1.6.0")
	o.Kubeconfig = s.rig.Kubeconfig(user)
	if a := s.run(answer.Preflight, o); a.Code != answer.Forbidden || !strings.Contains(a.Detail, `cannot list resource "secrets"`) {
		t.Errorf("without any right: %+v", a)
	}
	s.rig.Grant(user, s.ns, kuberig.Rule("", "secrets", []string{"get", "list", "create", "update"}),
		kuberig.Rule("apps", "deployments", []string{"get", "list", "watch"}), kuberig.Rule("", "configmaps", []string{"get", "list", "watch"}))
	a := s.run(answer.Preflight, o)
	if want := "create configmaps in namespace " + s.ns + ", patch deployments.apps in namespace " + s.ns; a.Code != answer.Forbidden || !strings.Contains(a.Detail, want) {
		t.Errorf("with the rights to read: %+v", a)
	}
	o.Timeout = 5 * time.Second
	if a := s.run(answer.Upgrade, o); a.Code != answer.Forbidden || !strings.Contains(a.Detail, "cannot") {
		t.Errorf("upgrade all the same: %+v", a)
	}
}
