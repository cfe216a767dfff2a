//go:build kubetest

package kuberig_test

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestZoo: the API server answers evictions as each animal says.
func TestZoo(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	for _, a := range kuberig.Zoo {
		t.Run(a.Name, func(t *testing.T) {
			r := r.For(t)
			node := r.Put(ns, a)
			pods := r.PodsOn(node)
			if len(pods) != a.Pods {
				t.Errorf("%d pods are on the node, want %d", len(pods), a.Pods)
			}
			for i := range pods {
				err := r.Client(kuberig.Admin).CoreV1().Pods(ns).EvictV1(t.Context(), kuberig.DryEvict(&pods[i]))
				code := http.StatusCreated
				if status := apierrors.APIStatus(nil); errors.As(err, &status) {
					code = int(status.Status().Code)
				} else if err != nil {
					t.Fatal(err)
				}
				if code != a.Evicts {
					t.Errorf("the eviction of %s is answered %d, want %d: %v", pods[i].Name, code, a.Evicts, err)
				}
			}
		})
	}
}
