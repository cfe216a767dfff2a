//go:build kubetest

package kuberig

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cleanWithin bounds what a test's end takes with it from the shared plane.
const cleanWithin = 20 * time.Second

// afterwards does what a test's end does on the shared control plane; a private
// one is thrown away.
func (r *Rig) afterwards(do func(ctx context.Context)) {
	if !r.shared {
		return
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanWithin)
		defer cancel()
		do(ctx)
	})
}

// absent makes no error of what is gone already.
func absent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Namespace makes a namespace that nobody else has, ready to take pods, and
// returns its name. It is deleted with the test.
func (r *Rig) Namespace() string {
	r.t.Helper()
	name := r.Name("ns")
	r.NamespaceNamed(name)
	return name
}

// NamespaceNamed makes a namespace of this name, as Namespace does.
func (r *Rig) NamespaceNamed(name string) {
	r.t.Helper()
	if _, err := r.admin().CoreV1().Namespaces().Create(r.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatalf("make namespace: %v", err)
	}
	r.afterwards(func(ctx context.Context) {
		none := int64(0)
		// Pods first and at once: a namespace waits for what takes long to end.
		_ = r.admin().CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, metav1.ListOptions{})
		_ = r.admin().CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	})
	r.await("the default service account of "+name, func(ctx context.Context) (bool, error) {
		_, err := r.admin().CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}
