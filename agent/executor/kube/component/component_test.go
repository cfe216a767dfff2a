package component

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func good() Config {
	return Config{Image: "x", ServiceAccount: "up", Components: map[string]Component{"gpu-operator": {Release: "r", Namespace: "n", Chart: "oci://a/b"}}}
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"good", func(*Config) {}, ""},
		{"nothing to upgrade", func(c *Config) { *c = Config{} }, ""},
		{"no image", func(c *Config) { c.Image = "" }, "image is missing"},
		{"no account", func(c *Config) { c.ServiceAccount = "" }, "serviceAccount is missing"},
		{"too patient", func(c *Config) { c.Timeout = 7 * time.Hour }, "timeout: 7h0m0s is not between 0 and 6h"},
		{"no release", func(c *Config) { c.Components["a"] = Component{Namespace: "n", Chart: "/c"} }, "components.a.release is missing"},
		{"a name without a repository", func(c *Config) { c.Components["a"] = Component{Release: "r", Namespace: "n", Chart: "c"} }, "components.a.chart"},
		{"no URL", func(c *Config) {
			c.Components["a"] = Component{Release: "r", Namespace: "n", Chart: "c", Repository: "charts"}
		}, `"charts" is no http(s) URL`},
		{"credentials", func(c *Config) {
			c.Components["a"] = Component{Release: "r", Namespace: "n", Chart: "c", Repository: "https://u:p@charts"}
		}, "no credentials go into a URL"},
	}
	for _, tt := range tests {
		c := good()
		tt.change(&c)
		err := c.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// An agent whose admin has not turned upgrades on says so at once, in the dry run and
// to the operation, by the setting's name: neither waits for another agent in vain.
func TestUpgradesThatAreOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{"on": good(), "off": {}} {
		if offers := Upgrade(&cluster.Cluster{}, c).Capabilities; len(offers) != 1 || offers[0] != (protocol.Capability{Name: "component.upgrade", Version: 2}) {
			t.Errorf("%s: offers %v", name, offers)
		}
	}
	u := Upgrade(&cluster.Cluster{}, Config{}) // without a client: nothing is asked of the cluster
	asked := []byte(`{"component":"gpu-operator","version":"1.0.0"}`)
	list, err := u.Preview(t.Context(), protocol.PreviewRequest{Payload: asked})
	if err != nil || len(list) != 1 || list[0].Code != "upgrades_off" || !strings.Contains(list[0].Detail, "componentUpgrade.enabled") {
		t.Errorf("the dry run shows %+v, %v", list, err)
	}
	o := u.Steps["preflight"].Execute(t.Context(), &executor.Task{Assignment: &protocol.Assignment{Operation: "op_1", Run: 1, Payload: asked}})
	if o.Class != operation.OutcomePermanent || o.ErrorCode != "upgrades_off" || !strings.Contains(o.Detail, "componentUpgrade.enabled") || !o.Retryable || o.ActionText == "" {
		t.Errorf("the operation ends with %+v", o)
	}
}

// A Job's name is a label of its pods, and another for each lease and attempt.
func TestJobNames(t *testing.T) {
	t.Parallel()
	a := &protocol.Assignment{Operation: id.New(id.Operation, time.Now()), Run: 99, Generation: 9999}
	seen := map[string]bool{}
	for _, q := range []request{{verb: answer.Preflight, attempt: 999}, {verb: answer.Upgrade}, {verb: answer.Status}} {
		u := &upgrader{Cluster: &cluster.Cluster{Namespace: "opsplane"}, config: good()}
		j := u.job(a, q)
		if len(j.Name) > 63 || seen[j.Name] || !strings.Contains(j.Name, "-r99-g9999") {
			t.Errorf("%s (%d bytes)", j.Name, len(j.Name))
		}
		seen[j.Name] = true
		if s := j.Spec; *s.BackoffLimit != 0 || *s.PodReplacementPolicy != batchv1.Failed || s.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("%s may start twice: %+v", j.Name, s)
		}
	}
}

func TestShows(t *testing.T) {
	t.Parallel()
	at := func(name, chart, version, app string) part {
		return part{name: name, chart: chart, version: version, app: app}
	}
	tests := []struct {
		name  string
		parts []part
		app   string
		ok    bool
		seen  []string
	}{
		{"all there", []part{at("D/a", "demo", "1.1.0", ""), at("D/b", "demo", "1.1.0", "")}, "", true, nil},
		{"spelt with v", []part{at("D/a", "demo", "v1.1.0", "")}, "", true, nil},
		{"one left behind", []part{at("D/a", "demo", "1.1.0", ""), at("D/b", "demo", "1.0.0", "")}, "", false, []string{"D/b is of demo 1.0.0"}},
		{"a subchart has versions of its own", []part{at("D/a", "demo", "1.1.0", ""), at("D/b", "nfd", "0.15.0", "v0.15.0")}, "", true, nil},
		{"none there", []part{at("D/a", "demo", "1.0.0", "v1.1.0")}, "", false, []string{"D/a is of demo 1.0.0"}},
		{"the app's version alone", []part{at("D/a", "", "", "v9.0")}, "v9.0", true, nil},
		{"another app's version", []part{at("D/a", "", "", "v8.0")}, "v9.0", false, []string{"D/a is at v8.0"}},
		{"nothing says so", []part{at("D/a", "", "", "")}, "", false, nil},
	}
	for _, tt := range tests {
		ok, seen := shows(tt.parts, "1.1.0", tt.app)
		if ok != tt.ok || !cmp.Equal(seen, tt.seen) {
			t.Errorf("%s: %v, seen %v", tt.name, ok, seen)
		}
	}
	if v := versionOf([]part{at("a", "x", "1.0.0", ""), at("b", "x", "2.0.0", ""), at("c", "x", "2.0.0", ""), at("d", "", "", "")}); v != "2.0.0" {
		t.Errorf("version %s", v)
	}
}

// ended is a Job whose pod has ended with a message.
func madeJob(generation, run, verb string, over bool, message string) (*batchv1.Job, *corev1.Pod) {
	labels := map[string]string{cluster.LabelGeneration: generation, labelRun: run, labelVerb: verb}
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: verb + generation, UID: types.UID(verb + generation), Labels: labels}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: j.Name, OwnerReferences: []metav1.OwnerReference{{UID: j.UID, Controller: new(true)}}}}
	p.Status.Phase = corev1.PodRunning
	if over {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}}}
	}
	return j, p
}

func TestSceneFindsTheAnswerThatCounts(t *testing.T) {
	t.Parallel()
	type made struct {
		generation, verb string
		over             bool
		a                *answer.Answer
	}
	pending := &answer.Answer{Code: answer.ReleasePending, Release: &answer.Release{Operation: "op_1"}}
	tests := []struct {
		name    string
		jobs    []made
		settled string // generation
		busy    bool
		dead    []int64
	}{
		{"nothing begun", nil, "", false, nil},
		{"under way", []made{{"1", answer.Upgrade, false, nil}}, "", true, nil},
		{"done", []made{{"1", answer.Upgrade, true, &answer.Answer{}}}, "1", false, []int64{1}},
		{"answer lost", []made{{"1", answer.Upgrade, true, nil}}, "", false, []int64{1}},
		{"the newer lost to the older", []made{{"1", answer.Upgrade, true, &answer.Answer{}}, {"2", answer.Upgrade, true, pending}}, "1", false, []int64{1, 2}},
		{"the older is refused", []made{{"1", answer.Upgrade, true, &answer.Answer{Code: answer.StaleGeneration}}, {"2", answer.Upgrade, true, &answer.Answer{}}}, "2", false, []int64{1, 2}},
		{"pending by somebody else", []made{{"1", answer.Upgrade, true, &answer.Answer{Code: answer.ReleasePending, Release: &answer.Release{}}}}, "1", false, []int64{1}},
		{"a preflight says nothing", []made{{"1", answer.Preflight, true, &answer.Answer{}}}, "", false, nil},
	}
	for _, tt := range tests {
		var s scene
		for _, m := range tt.jobs {
			message := ""
			if m.a != nil {
				message = string(m.a.Encode())
			}
			j, p := madeJob(m.generation, "1", m.verb, m.over, message)
			s.jobs, s.pods = append(s.jobs, j), append(s.pods, p)
		}
		got := ""
		if _, j := s.settled("op_1", 1); j != nil {
			got = j.Labels[cluster.LabelGeneration]
		}
		if got != tt.settled || (s.busy(answer.Upgrade) != nil) != tt.busy || !cmp.Equal(s.dead(), tt.dead) {
			t.Errorf("%s: settled by %q, busy %v, dead %v", tt.name, got, s.busy(answer.Upgrade) != nil, s.dead())
		}
		if _, j := s.settled("op_1", 2); j != nil {
			t.Errorf("%s: another run's answer counts", tt.name)
		}
	}
}

// A Job that has ended is not over as long as a pod of it was not seen to end.
func TestJobWithALivingPodIsActive(t *testing.T) {
	t.Parallel()
	j, p := madeJob("1", "1", answer.Upgrade, true, "")
	p.Status.Phase = corev1.PodRunning
	s := scene{jobs: []*batchv1.Job{j}, pods: []*corev1.Pod{p}}
	if !s.active(j) || len(s.dead()) != 0 {
		t.Error("its pod may still act")
	}
}
