package upgrade

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// preflight finds what would keep the upgrade from coming through, and changes
// nothing.
func (j *job) preflight(ctx context.Context) answer.Answer {
	h, err := j.history()
	if err != nil {
		return refusal(err)
	}
	a := h.describe(j.Mark)
	fail := func(err error) answer.Answer {
		j.log.Error("preflight", "err", full(err))
		r := refusal(err)
		a.Code, a.Detail = r.Code, r.Detail
		return a
	}
	if h.last().Info.Status.IsPending() {
		return fail(pending(j.Release, h))
	}
	c, err := j.chart()
	if err != nil {
		return fail(err)
	}
	a.To, a.AppTo = c.Metadata.Version, c.Metadata.AppVersion
	if h.at(c.Metadata.Version) {
		a.Already, a.Detail = true, fmt.Sprintf("release %s is at version %s already", j.Release, a.To)
		return a
	}
	if err := j.check(c, h); err != nil {
		return fail(err)
	}
	now := h.deployed()
	if now == nil {
		now = h.last()
	}
	a.Warnings = crdChanges(now, c)
	up := j.action()
	up.DryRunStrategy = action.DryRunServer
	next, err := up.RunWithContext(ctx, j.Release, c, map[string]any{})
	if err != nil {
		return fail(notRendered(err))
	}
	rel, ok := next.(*release.Release)
	if !ok {
		return fail(fmt.Errorf("render release %s: a release of type %T", j.Release, next))
	}
	if err := j.rights(ctx, now, rel); err != nil {
		return fail(err)
	}
	a.Detail = fmt.Sprintf("release %s can go from version %s to %s", j.Release, a.From, a.To)
	return a
}

// at tells whether the release is at a version with nothing left to do.
func (h history) at(v string) bool {
	d := h.deployed()
	return d != nil && d == h.last() && sameVersion(version(d), v)
}

// action is a Helm upgrade as this program does it. The user's values are kept;
// the new chart's defaults fill the rest.
func (j *job) action() *action.Upgrade {
	up := action.NewUpgrade(j.cfg)
	up.Namespace = j.Namespace
	up.ResetThenReuseValues = true
	up.WaitStrategy = kube.StatusWatcherStrategy
	up.Timeout = j.Timeout
	up.RollbackOnFailure, up.CleanupOnFail = j.Rollback, j.Rollback
	up.MaxHistory = 10 // the command's own default
	up.Description = fmt.Sprintf("Upgraded to %s by Opsplane operation %s", j.Version, j.Mark.Operation)
	return up
}

func pending(name string, h history) error {
	l := h.last()
	who := ""
	if m, ok := markOf(l); ok {
		who = fmt.Sprintf(" by operation %s, generation %d", m.Operation, m.Generation)
	}
	return refuse(answer.ReleasePending, "revision %d of release %s is %s%s", l.Version, name, l.Info.Status, who)
}

// notRendered words why the chart's objects could not be made for this cluster.
func notRendered(err error) error {
	if forbidden(err) != "" || unreachable(err) {
		return err
	}
	return refuseWith(err, answer.ChartInvalid, "the chart cannot be rendered for this cluster: %s", kindOf(err))
}

// full is the whole error, for the pod's log alone.
func full(err error) string {
	var parts []string
	for e := range tree(err) {
		if s := e.Error(); !slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(p, s) }) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

// rights asks the API server whether the service account may do all that the
// upgrade does: a right that is missing in the middle is a rollback.
func (j *job) rights(ctx context.Context, from, to *release.Release) error {
	was, err := j.objects(from.Manifest)
	if err != nil {
		return notRendered(err)
	}
	is, err := j.objects(to.Manifest)
	if err != nil {
		return notRendered(err)
	}
	asked := map[authorizationv1.ResourceAttributes]bool{}
	for _, verb := range []string{"create", "update"} {
		asked[authorizationv1.ResourceAttributes{Namespace: j.Namespace, Verb: verb, Resource: "secrets"}] = true
	}
	add := func(o object, verbs ...string) {
		for _, v := range verbs {
			asked[authorizationv1.ResourceAttributes{Namespace: o.namespace, Verb: v, Group: o.group, Resource: o.resource}] = true
		}
	}
	for o := range is {
		add(o, "get", "list", "watch")
		if was[o] {
			add(o, "patch")
		} else {
			add(o, "create")
		}
	}
	for o := range was {
		if !is[o] {
			add(o, "get", "delete")
		}
	}
	var missing []string
	for attributes := range asked {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes}}
		got, err := j.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for the right to %s %s: %w", attributes.Verb, attributes.Resource, err)
		}
		if !got.Status.Allowed {
			missing = append(missing, wordRight(attributes))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	more := ""
	if n := len(missing); n > 8 {
		missing, more = missing[:8], fmt.Sprintf(" and %d more", n-8)
	}
	return refuse(answer.Forbidden, "the upgrade's service account lacks the rights to %s%s", strings.Join(missing, ", "), more)
}

func wordRight(a authorizationv1.ResourceAttributes) string {
	s := a.Verb + " " + a.Resource
	if a.Group != "" {
		s += "." + a.Group
	}
	if a.Namespace != "" {
		s += " in namespace " + a.Namespace
	}
	return s
}

// object is what of an object counts for rights: one kind in one namespace, and
// the name to tell new ones from old ones.
type object struct{ group, resource, namespace, name string }

func (j *job) objects(manifest string) (map[object]bool, error) {
	list, err := j.cfg.KubeClient.Build(strings.NewReader(manifest), false)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	m := map[object]bool{}
	for _, i := range list {
		o := object{group: i.Mapping.Resource.Group, resource: i.Mapping.Resource.Resource, name: i.Name}
		if i.Namespaced() {
			o.namespace = i.Namespace
		}
		m[o] = true
	}
	return m, nil
}
