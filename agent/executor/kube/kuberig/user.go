//go:build kubetest

package kuberig

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Admin is the user that may do everything.
const Admin = "admin"

// User makes a user and returns its name, which nobody else of the test run has.
// It may do nothing but what its groups may: see Grant.
func (r *Rig) User(prefix string, groups ...string) string {
	r.t.Helper()
	name := r.Name(prefix)
	if _, err := writeUser(env(r.t, envProgram), r.dir, name, groups); err != nil {
		r.t.Fatal(err)
	}
	return name
}

func writeUser(program, dir, name string, groups []string) (string, error) {
	out, err := exec.Command(program, append([]string{"user", "--dir", dir, "--name", name}, groups...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("make user %s: %w: %s", name, err, exit.Stderr)
		}
		return "", fmt.Errorf("make user %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Kubeconfig is the path of a user's: Admin or one that User made. Any other name
// becomes a user of a private control plane, with no rights until granted.
func (r *Rig) Kubeconfig(user string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, "pki", user+".kubeconfig")
	if _, err := clientcmd.LoadFromFile(path); err == nil {
		return path
	}
	if r.shared {
		r.t.Fatalf("no user %q: the shared control plane's come from User, so that they are nobody else's", user)
	}
	path, err := writeUser(env(r.t, envProgram), r.dir, user, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

// Config is what a client of the user is made from. It is not slowed down.
func (r *Rig) Config(user string) *rest.Config {
	r.t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig(user))
	if err != nil {
		r.t.Fatalf("read kubeconfig of %s: %v", user, err)
	}
	c.QPS, c.Burst = -1, -1 // no limit
	c.UserAgent = "kuberig/" + user
	return c
}

// Client is a client of the user.
func (r *Rig) Client(user string) kubernetes.Interface {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.clients[user]; ok {
		return c
	}
	c, err := kubernetes.NewForConfig(r.Config(user))
	if err != nil {
		r.t.Fatalf("make client of %s: %v", user, err)
	}
	r.clients[user] = c
	return c
}

// admin is the client that the rig itself works with.
func (r *Rig) admin() kubernetes.Interface { return r.Client(Admin) }

// Rule is a right for Grant: verbs on one resource, "pods/eviction" for a
// subresource. names, if any, are the only objects.
func Rule(group, resource string, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs, ResourceNames: names}
}

// Grant gives a user rights in a namespace ("": in the whole cluster), waits until
// the API server heeds them, and returns what takes them back. They end with the
// test.
func (r *Rig) Grant(user, namespace string, rules ...rbacv1.PolicyRule) (revoke func()) {
	r.t.Helper()
	name := r.Name("grant")
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	rbac := r.admin().RbacV1()
	var err, berr error
	if namespace == "" {
		_, err = rbac.ClusterRoles().Create(r.t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		_, berr = rbac.ClusterRoleBindings().Create(r.t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{})
	} else {
		_, err = rbac.Roles(namespace).Create(r.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		_, berr = rbac.RoleBindings(namespace).Create(r.t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}}, metav1.CreateOptions{})
	}
	if err := errors.Join(err, berr); err != nil {
		r.t.Fatalf("grant rights to %s: %v", user, err)
	}
	r.awaitRights(user, namespace, rules, true)
	drop := func(ctx context.Context) error {
		if namespace == "" {
			return errors.Join(absent(rbac.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})), absent(rbac.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})))
		}
		return errors.Join(absent(rbac.RoleBindings(namespace).Delete(ctx, name, metav1.DeleteOptions{})), absent(rbac.Roles(namespace).Delete(ctx, name, metav1.DeleteOptions{})))
	}
	r.afterwards(func(ctx context.Context) { _ = drop(ctx) }) // the namespace may be gone with it
	return func() {
		r.t.Helper()
		if err := drop(r.t.Context()); err != nil {
			r.t.Fatalf("take rights from %s: %v", user, err)
		}
		r.awaitRights(user, namespace, rules, false)
	}
}

// awaitRights waits until the API server's answer about each right is allowed.
func (r *Rig) awaitRights(user, namespace string, rules []rbacv1.PolicyRule, allowed bool) {
	r.t.Helper()
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			if resource == rbacv1.ResourceAll || slices.Contains(rule.Verbs, rbacv1.VerbAll) {
				continue
			}
			resource, sub, _ := strings.Cut(resource, "/")
			attrs := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rule.Verbs[len(rule.Verbs)-1], Group: rule.APIGroups[0], Resource: resource, Subresource: sub}
			if len(rule.ResourceNames) > 0 {
				attrs.Name = rule.ResourceNames[0]
			}
			r.await(fmt.Sprintf("whether %s may %s %s is %v", user, attrs.Verb, resource, allowed), func(ctx context.Context) (bool, error) {
				a, err := r.admin().AuthorizationV1().SubjectAccessReviews().Create(ctx,
					&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &attrs}}, metav1.CreateOptions{})
				return err == nil && a.Status.Allowed == allowed, err
			})
		}
	}
}
