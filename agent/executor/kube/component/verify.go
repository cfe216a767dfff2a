package component

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
)

// Labels that charts put on what they install.
// https://helm.sh/docs/chart_best_practices/labels/
const (
	labelInstance = "app.kubernetes.io/instance"
	labelVersion  = "app.kubernetes.io/version"
	labelChart    = "helm.sh/chart"
)

// chartForm is a chart's name and version. In a label Helm writes + as _.
var chartForm = regexp.MustCompile(`^(.+?)-(v?\d+\.\d+\.\d+.*)$`)

// part is one workload of a release.
type part struct {
	name     string // kind/name
	chart    string // that it comes from, which may be a subchart
	version  string // of that chart
	app      string // app.kubernetes.io/version
	ready    bool
	state    string
	revision int64
}

// parts reads the workloads of a release.
func (u *upgrader) parts(ctx context.Context, c Component) ([]part, error) {
	ctx, cancel := u.Read(ctx)
	defer cancel()
	o := metav1.ListOptions{LabelSelector: labelInstance + "=" + c.Release}
	apps := u.Client.AppsV1()
	var list []part
	add := func(kind string, m metav1.ObjectMeta, observed int64, desired, total, updated, ready int32) {
		p := part{name: kind + "/" + m.Name, app: m.Labels[labelVersion],
			ready: observed >= m.Generation && updated >= desired && ready >= desired && total <= updated, // an old pod that is ready counts for nothing
			state: fmt.Sprintf("%d of %d updated, %d ready", updated, desired, ready)}
		if x := chartForm.FindStringSubmatch(m.Labels[labelChart]); x != nil {
			p.chart, p.version = x[1], strings.ReplaceAll(x[2], "_", "+")
		}
		p.revision, _ = strconv.ParseInt(m.ResourceVersion, 10, 64)
		list = append(list, p)
	}
	deployments, err := apps.Deployments(c.Namespace).List(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, d := range deployments.Items {
		add("Deployment", d.ObjectMeta, d.Status.ObservedGeneration, *d.Spec.Replicas, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas)
	}
	sets, err := apps.StatefulSets(c.Namespace).List(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, d := range sets.Items {
		updated := d.Status.UpdatedReplicas
		if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType { // its pods are renewed by hand
			updated = *d.Spec.Replicas
		}
		add("StatefulSet", d.ObjectMeta, d.Status.ObservedGeneration, *d.Spec.Replicas, *d.Spec.Replicas, updated, d.Status.ReadyReplicas)
	}
	daemons, err := apps.DaemonSets(c.Namespace).List(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, d := range daemons.Items {
		n := d.Status.DesiredNumberScheduled
		updated := d.Status.UpdatedNumberScheduled
		if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			updated = n
		}
		add("DaemonSet", d.ObjectMeta, d.Status.ObservedGeneration, n, n, updated, d.Status.NumberAvailable)
	}
	return list, nil
}

// versionOf is the version that the release's workloads show: that of the chart
// that most of them come from.
func versionOf(list []part) string {
	votes := map[string]int{}
	best := ""
	for _, p := range list {
		v := p.version
		if v == "" {
			v = p.app
		}
		if v == "" {
			continue
		}
		if votes[v]++; votes[v] > votes[best] || votes[v] == votes[best] && v > best {
			best = v
		}
	}
	return best
}

// shows tells whether the workloads are at a version: some of them, and none of
// the same chart at another. appVersion is what the chart says of its app.
func shows(list []part, version, appVersion string) (ok bool, seen []string) {
	others := map[string]bool{}
	charts := map[string]bool{}
	for _, p := range list {
		if p.version != "" && same(p.version, version) {
			charts[p.chart] = true
			ok = true
		} else if p.version == "" && p.app != "" && (same(p.app, version) || p.app == appVersion) {
			ok = true
		}
	}
	for _, p := range list {
		switch {
		case p.version != "" && same(p.version, version), p.version == "" && (same(p.app, version) || p.app == appVersion):
		case len(charts) > 0 && !charts[p.chart]: // of a subchart
		case p.version != "":
			others[p.name+" is of "+p.chart+" "+p.version] = true
		case p.app != "":
			others[p.name+" is at "+p.app] = true
		}
	}
	return ok && len(others) == 0, slices.Sorted(maps.Keys(others))
}

// same tells whether two spellings are of one version.
func same(a, b string) bool { return strings.TrimPrefix(a, "v") == strings.TrimPrefix(b, "v") }

// labelled tells whether any workload says of which version it is.
func labelled(list []part) bool {
	return slices.ContainsFunc(list, func(p part) bool { return p.version != "" || p.app != "" })
}

func unready(list []part) []string {
	var out []string
	for _, p := range list {
		if !p.ready {
			out = append(out, p.name+" ("+p.state+")")
		}
	}
	return out
}

// Times of verify.
const (
	// settle is how long workloads may still move after Helm saw them ready.
	settle = time.Minute
	look   = time.Second
)

// verify observes the release's workloads at the new version, and ready.
func (u *upgrader) verify(ctx context.Context, t *executor.Task) executor.Outcome {
	p, c, bad := u.read(t.Assignment.Payload)
	if bad != nil {
		return *bad
	}
	s, err := u.look(ctx, t.Assignment.Operation)
	if err != nil {
		return u.unread(t, err)
	}
	said, _ := s.settled(t.Assignment.Operation, t.Assignment.Run)
	for until := u.Now().Add(settle); ; {
		list, err := u.parts(ctx, c)
		if err != nil {
			return u.unread(t, err)
		}
		if !labelled(list) {
			return u.verifyByHelm(ctx, t, p, c)
		}
		ok, seen := shows(list, p.Version, said.AppTo)
		slow := unready(list)
		switch {
		case ok && len(slow) == 0:
			return executor.Done(fmt.Sprintf("%s is %s and healthy: %d workloads of release %s", p.Component, p.Version, len(list), c.Release))
		case u.Now().Before(until):
		case !ok:
			return executor.Permanent("version_mismatch", fmt.Sprintf("%s is %s, not %s: %s", p.Component, versionOf(list), p.Version, strings.Join(seen, ", ")))
		default:
			return executor.Permanent("unhealthy", fmt.Sprintf("%s %s is not healthy after the upgrade: %s", p.Component, p.Version, strings.Join(slow, ", ")))
		}
		t.Progress(len(list)-len(slow), len(list), "workloads", strings.Join(append(seen, slow...), ", "))
		if halt := executor.Wait(ctx, t, look); halt != "" {
			return executor.Waiting(halt, "stopped while the workloads were observed")
		}
	}
}

// verifyByHelm goes by the history where no workload says of which version it is.
func (u *upgrader) verifyByHelm(ctx context.Context, t *executor.Task, p payload, c Component) executor.Outcome {
	said, err := u.ask(ctx, t, request{verb: answer.Status, component: c, attempt: t.Attempt})
	switch {
	case err != nil:
		if o := cluster.Broken(err); o.Class == operation.OutcomeWaiting { // a webhook stands in the Job's way
			return o
		}
		return executor.Transient("job_failed", "Helm's history was not read: "+err.Error())
	case said.Release == nil || said.Release.Status != "deployed" || !same(said.Release.Chart, p.Version):
		return executor.Permanent("version_mismatch", fmt.Sprintf("%s: %s, not deployed at %s", p.Component, said.Detail, p.Version))
	}
	return executor.Done(fmt.Sprintf("%s is %s by Helm's history; no workload of release %s says of which version it is", p.Component, p.Version, c.Release))
}

// Rights are what component.upgrade needs of the agent's role. What Helm needs is
// the Job's, and the admin's to give.
var Rights = []cluster.Right{
	makeJobs,
	{Verb: "list", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to find the upgrade that an earlier lease began"},
	{Verb: "watch", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to follow an upgrade"},
	{Verb: "list", Resource: "pods", Namespace: cluster.OwnNamespace, Why: "to read what Helm answered"},
	{Verb: "watch", Resource: "pods", Namespace: cluster.OwnNamespace, Why: "to hear what Helm answers"},
	{Verb: "get", Resource: "serviceaccounts", Namespace: cluster.OwnNamespace, Why: "to say that the upgrade's service account is missing"},
	{Verb: "list", Group: "apps", Resource: "deployments", Why: "to observe a component at its new version"},
	{Verb: "list", Group: "apps", Resource: "statefulsets", Why: "to observe a component at its new version"},
	{Verb: "list", Group: "apps", Resource: "daemonsets", Why: "to observe a component at its new version"},
	{Verb: "list", Resource: "events", Namespace: cluster.OwnNamespace, Why: "to read why a Job's pod cannot be made"},
	cluster.EventRight,
}

var makeJobs = cluster.Right{Verb: "create", Group: "batch", Resource: "jobs", Namespace: cluster.OwnNamespace, Why: "to run Helm under a service account of its own"}
