//go:build kubetest

package kubeflow

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestUpgrades: component.upgrade under agents that are killed and stopped, and
// under those that it replaces. The Jobs go to any node, so the control plane is
// one of their own.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	rig := upgradeRig(t)
	of := func(t *testing.T) *kuberig.Rig {
		mine := rig.For(t)
		mine.MarkAudit() // what others did before is nobody's here
		return mine
	}
	w := work{rig: of, scene: upgradeScene}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		killedAtEach(t, w)
	})
	t.Run("paused", func(t *testing.T) {
		t.Parallel()
		pausedAtBoth(t, w)
	})
	t.Run("of the agent itself", func(t *testing.T) {
		t.Parallel()
		taken(t)
		ownUpgrades(t, of(t))
	})
}

// Versions of the agent's own chart. The pods of the broken one never get ready.
const (
	ownFirst  = "0.1.0"
	ownSecond = "0.2.0"
	ownThird  = "0.3.0"
	ownBroken = "0.9.0"
)

const (
	ownRelease = "opsplane-agent"
	ownImage   = "ghcr.io/opsplane/opsplane-agent:"
)

// ownUpgrades upgrades the agent's own chart, by its own two agents, whose processes
// end with their pods.
func ownUpgrades(t *testing.T, rig *kuberig.Rig) {
	next, err := nextAgent(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := installOwn(t, rig, next)
	o.goesBack()
	o.pods.ends((*process).term)
	for name := range o.comesThrough(ownSecond) {
		if version := o.online()[name]; version != "v"+ownSecond {
			t.Errorf("agent %s is of version %s, and its image of %s", name, version, ownSecond)
		}
	}
	o.pods.ends((*process).kill)
	o.comesThrough(ownThird)
	o.staysFailed()
}

// ownChart is the agent's chart, installed, with its two agents.
type ownChart struct {
	*site
	t    *testing.T
	ns   string
	pods *chartPods
}

// installOwn installs the chart by Helm's library and runs the agents of its pods,
// next those of later versions.
func installOwn(t *testing.T, rig *kuberig.Rig, next string) *ownChart {
	t.Helper()
	s := newSite(t, rig)
	o := &ownChart{site: s, t: t, ns: rig.Namespace()}
	node := rig.Node("")
	rig.Node("")
	token, err := os.ReadFile(s.tokens)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{ownFirst, ownSecond, ownThird, ownBroken} {
		ownVersion(t, s.dir, v)
	}
	text, err := json.Marshal(map[string]any{
		"plane":            map[string]any{"url": s.url, "insecure": true},
		"token":            map[string]any{"value": string(token)},
		"stopGraceSeconds": 2,
		"gpuNodes": map[string]any{"affinity": "required", "matchExpressions": []any{
			map[string]any{"key": kuberig.LabelRig, "operator": "In", "values": []string{node.Labels[kuberig.LabelRig]}}}},
		"componentUpgrade": map[string]any{"enabled": true, "timeoutSeconds": 12, "components": map[string]any{
			"agent": map[string]any{"release": ownRelease, "namespace": o.ns, "chart": ownRelease,
				"repository": repository(t, s.dir, ownRelease, ownSecond, ownThird, ownBroken)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(s.dir, "values.yaml")
	if err := os.WriteFile(values, text, 0o600); err != nil {
		t.Fatal(err)
	}
	installChart(t, rig, o.ns, ownRelease, chartDir(s.dir, ownRelease, ownFirst), values)
	o.mayUpgrade()
	o.pods = &chartPods{s: s, t: t, ns: o.ns, end: (*process).term,
		programs: map[string]string{ownImage + ownFirst: rig.Program("./agent"), ownImage + ownSecond: next, ownImage + ownThird: next}}
	o.pods.run()
	o.await("both agents are online", time.Minute, func() bool { return len(o.online()) == 2 })
	s.thing("components", "agent")
	return o
}

// ownVersion writes the agent's chart as a version of it.
func ownVersion(t *testing.T, dir, version string) {
	t.Helper()
	to := chartDir(dir, ownRelease, version)
	if err := os.CopyFS(to, os.DirFS("../helm/opsplane-agent")); err != nil {
		t.Fatal(err)
	}
	change := func(file string, f func(text string) string) {
		path := filepath.Join(to, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change("Chart.yaml", func(text string) string {
		lines := strings.Split(text, "\n")
		for i, l := range lines {
			if key, _, _ := strings.Cut(l, ":"); key == "version" || key == "appVersion" {
				lines[i] = key + ": " + version
			}
		}
		return strings.Join(lines, "\n")
	})
	if version == ownBroken {
		change("values.yaml", func(text string) string {
			return strings.Replace(text, "\npodLabels: {}\n", "\npodLabels: {rig.opsplane.io/ready: never}\n", 1)
		})
	}
}

// nextAgent builds the agent as the release after this one.
func nextAgent(dir string) (string, error) {
	path := filepath.Join(dir, "agent-"+ownSecond)
	out, err := exec.Command("go", "build", "-ldflags", "-X github.com/opsplane/opsplane/agent/agentcmd.linked=v"+ownSecond, "-o", path, "../../agent").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the next agent: %w\n%s", err, out)
	}
	return path, nil
}

// mayUpgrade gives the Jobs' account what the chart's roles grant, which only
// whoever has it may grant.
func (o *ownChart) mayUpgrade() {
	o.t.Helper()
	_, err := o.rig.Client(kuberig.Admin).RbacV1().ClusterRoleBindings().Create(o.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: o.ns + "-upgrade"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: o.ns, Name: ownRelease + "-upgrade"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if err != nil {
		o.t.Fatal(err)
	}
}

// online are the agents that the plane hears, with their versions.
func (o *ownChart) online() map[string]string {
	o.t.Helper()
	out := map[string]string{}
	for _, a := range list[struct {
		Name, Version string
		Online        bool
	}](o.site, "/v1/agents?limit=200") {
		if a.Online {
			out[a.Name] = a.Version
		}
	}
	return out
}

// upgrade asks for a version of the agent and returns how it ended.
func (o *ownChart) upgrade(version, rollback string) op {
	o.t.Helper()
	asked := o.want("component.upgrade", "cluster:rig", map[string]any{"component": "agent", "version": version, "rollback": rollback}, 3*time.Minute)
	end := o.ended(asked.ID, 2*time.Minute)
	made := jobs(o.t, o.rig, o.ns, answer.Upgrade)
	maps.DeleteFunc(made, func(lease string, _ int) bool { return !strings.HasPrefix(lease, asked.ID+"/") })
	if len(made) != 1 {
		o.t.Errorf("Jobs of the upgrade by operation and generation: %v", made)
	}
	return end
}

// shows waits until the inventory, which an agent reports, has the agents' version.
func (o *ownChart) shows(version string) {
	o.t.Helper()
	o.await("the inventory shows version "+version, time.Minute, func() bool {
		return slices.ContainsFunc(list[struct{ Name, Version string }](o.site, "/v1/components?limit=200"),
			func(c struct{ Name, Version string }) bool { return c.Name == "agent" && c.Version == version })
	})
}

// comesThrough: both agents are replaced, and the operation ends by the word of one
// of the new version. It returns the names of the new ones.
func (o *ownChart) comesThrough(version string) map[string]string {
	t := o.t
	t.Helper()
	was, before := o.online(), revisions(t, o.rig, o.ns, ownRelease)
	end := o.upgrade(version, "on_failure")
	if end.Phase != operation.Succeeded || !slices.Contains(end.Result.Verified, "agent reports version "+version) {
		t.Fatalf("the upgrade: %s", end)
	}
	status, b := o.call(http.MethodGet, "/v1/agents/"+end.Assignments[len(end.Assignments)-1].Agent, nil)
	if last := decode[struct{ Name string }](o.site, status, b).Name; was[last] != "" {
		t.Errorf("it was ended by agent %s, which the upgrade replaced: %s", last, end)
	}
	o.shows(version)
	now := map[string]string{}
	o.await("two agents of the new version are online, and no other", time.Minute, func() bool {
		now = o.online()
		for name := range now {
			if was[name] != "" {
				return false
			}
		}
		return len(now) == 2
	})
	if after := revisions(t, o.rig, o.ns, ownRelease); len(after) != len(before)+1 || after[len(after)-1].status != "deployed" {
		t.Errorf("revisions %v, before %v", after, before)
	}
	return now
}

// fails asks for the version that never gets ready.
func (o *ownChart) fails(rollback, says string) op {
	o.t.Helper()
	end := o.upgrade(ownBroken, rollback)
	if c := end.Result.Cause; end.Phase != operation.Failed || c == nil || c.ErrorCode != answer.UpgradeFailed || !strings.Contains(c.Detail, says) ||
		!strings.Contains(c.Detail, "Deployment/"+o.ns+"/"+ownRelease+" is not ready") {
		o.t.Fatalf("the upgrade: %s", end)
	}
	return end
}

// goesBack: the new version never gets ready, and Helm rolls the release back.
func (o *ownChart) goesBack() {
	o.t.Helper()
	end := o.fails("on_failure", "rolled back to version "+ownFirst)
	if len(end.Result.Residual) > 0 {
		o.t.Errorf("left behind: %s", end)
	}
	o.shows(ownFirst)
	o.await("two agents are online", time.Minute, func() bool { return len(o.online()) == 2 })
	if all := revisions(o.t, o.rig, o.ns, ownRelease); len(all) != 3 || all[1].status != "failed" || all[2].status != "deployed" {
		o.t.Errorf("revisions %v", all)
	}
}

// staysFailed: the new version never gets ready, and nothing is rolled back: an agent
// of before is left, and tells.
func (o *ownChart) staysFailed() {
	o.t.Helper()
	end := o.fails("never", "not rolled back")
	if len(end.Result.Residual) == 0 {
		o.t.Errorf("nothing is left behind: %s", end)
	}
	o.shows(ownBroken)
	o.await("one agent is online", time.Minute, func() bool { return len(o.online()) == 1 })
}
