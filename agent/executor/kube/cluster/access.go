package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Allowed asks the API server whether the agent's role grants a. A 403 of something
// that is allowed came from admission, which refuses one object and not the right.
// Where the role may not even ask, it grants nothing. An error: nobody knows.
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
func (c *Cluster) Allowed(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a}}
	answer, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask whether a refusal was for want of a right: %w", err)
	}
	return answer.Status.Allowed, nil
}

// Denied is, for a preview, what stands in the way of whatever met err: a right that
// the agent's role lacks. nil: err is of another kind.
func Denied(resource string, err error) *protocol.Blocker {
	if !apierrors.IsForbidden(err) {
		return nil
	}
	return noRight(resource, forbidden(err))
}

// Missing is, for a preview, that the agent's role lacks the right, which it needs
// for what a resource is to meet.
func (r Right) Missing(resource string) *protocol.Blocker {
	return noRight(resource, fmt.Sprintf("the agent's role lacks the right to %s, which it needs %s", r, r.Why))
}

func noRight(resource, detail string) *protocol.Blocker {
	return &protocol.Blocker{Code: "forbidden", Resource: resource, Rule: "rbac", Detail: detail}
}

// lacking tells whether a 403 came from the authorizer, and then which right is
// missing. One of admission is for the caller to judge.
func (c *Cluster) lacking(ctx context.Context, seen *call, refused error) *executor.Outcome {
	asked := attributes(seen.method, seen.path)
	if asked == nil {
		o := executor.Permanent("forbidden", forbidden(refused))
		return &o
	}
	switch allowed, err := c.Allowed(ctx, asked); {
	case err != nil: // later
		o := Broken(err)
		return &o
	case allowed:
		return nil
	}
	o := executor.Permanent("forbidden", fmt.Sprintf("the agent's role lacks the right to %s: %v", inWords(asked), refused))
	return &o
}

func inWords(a *authorizationv1.ResourceAttributes) string {
	s := a.Verb + " " + a.Resource
	if a.Subresource != "" {
		s += "/" + a.Subresource
	}
	if a.Group != "" {
		s += "." + a.Group
	}
	if a.Namespace != "" {
		s += " in namespace " + a.Namespace
	}
	return s
}

// attributes reads what a request asks for from its method and path.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
func attributes(method, path string) *authorizationv1.ResourceAttributes {
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete", http.MethodGet: "get"}[method]
	part := strings.Split(strings.Trim(path, "/"), "/")
	a := &authorizationv1.ResourceAttributes{Verb: verb}
	switch {
	case verb == "":
		return nil
	case len(part) > 2 && part[0] == "api":
		a.Version, part = part[1], part[2:]
	case len(part) > 3 && part[0] == "apis":
		a.Group, a.Version, part = part[1], part[2], part[3:]
	default:
		return nil
	}
	if len(part) > 2 && part[0] == "namespaces" {
		a.Namespace, part = part[1], part[2:]
	}
	a.Resource = part[0]
	if len(part) > 1 {
		a.Name = part[1]
	}
	if len(part) > 2 {
		a.Subresource = part[2]
	}
	return a
}
