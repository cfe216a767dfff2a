//go:build kubetest

package charttest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// A real API server takes what the chart renders, field by field, and with the
// pod security that the docs name: restricted, but for what is privileged.
func TestAPIServerTakesIt(t *testing.T) {
	t.Parallel()
	for name, text := range matrix() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			ns := r.Namespace()
			level := "restricted"
			if strings.Contains(text, "deviceReset: {enabled: true}") || strings.Contains(text, "hostHelper: {enabled: true}") {
				level = "privileged"
			}
			client := r.Client(kuberig.Admin)
			space, err := client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			space.Labels["pod-security.kubernetes.io/enforce"] = level
			if _, err := client.CoreV1().Namespaces().Update(t.Context(), space, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
			dyn, err := dynamic.NewForConfig(r.Config(kuberig.Admin))
			if err != nil {
				t.Fatal(err)
			}
			o, _ := render(t, with(t, text))
			for key, u := range o {
				gvk := u.GroupVersionKind()
				m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
				if meta.IsNoMatchError(err) && gvk.Group == "monitoring.coreos.com" {
					continue // the Prometheus operator's, which is not here
				}
				if err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				u.SetNamespace("")
				var to dynamic.ResourceInterface = dyn.Resource(m.Resource)
				if m.Scope.Name() == meta.RESTScopeNameNamespace {
					u.SetNamespace(ns)
					to = dyn.Resource(m.Resource).Namespace(ns)
				}
				dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
				if _, err := to.Create(t.Context(), u, dry); err != nil {
					t.Errorf("%s: %v", key, err)
				}
				pods(t, dyn, ns, key, u.Object)
			}
		})
	}
}

// pods asks whether the pods of a template may be made in the namespace: workloads
// themselves are taken whatever their pods are like.
func pods(t *testing.T, dyn dynamic.Interface, ns, key string, object map[string]any) {
	t.Helper()
	spec, _ := object["spec"].(map[string]any)
	template, ok := spec["template"].(map[string]any)
	if !ok {
		return
	}
	podSpec := template["spec"].(map[string]any)
	// These are not made in a dry run, and a pod asks for them.
	delete(podSpec, "serviceAccountName")
	delete(podSpec, "runtimeClassName")
	u := unstructuredPod(ns, podSpec)
	r := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(ns)
	if _, err := r.Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Errorf("a pod of %s: %v", key, err)
	}
}

func unstructuredPod(ns string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"generateName": "chart-", "namespace": ns}, "spec": spec,
	}}
}
