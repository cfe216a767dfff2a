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
)

// lacking tells whether a 403 came from the authorizer, and then which right is
// missing. Admission answers 403 too: that is a refusal of this one object, for
// the caller to judge. The API server itself is asked which it was.
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
func (c *Cluster) lacking(ctx context.Context, seen *call, refused error) *executor.Outcome {
	asked := attributes(seen.method, seen.path)
	if asked == nil {
		o := executor.Permanent("forbidden", forbidden(refused))
		return &o
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}
	answer, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err == nil && answer.Status.Allowed:
		return nil
	case err != nil && !apierrors.IsForbidden(err): // nobody said whose refusal it was: later
		o := Broken(fmt.Errorf("ask whether a refusal was for want of a right: %w", err))
		return &o
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
