package charttest

import (
	"io"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	chartPath = "../../../../infra/helm/opsplane-agent"
	namespace = "gpu-ops"
	name      = "blue"
	fullname  = "blue-opsplane-agent"
)

// values reads values as a person writes them.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// least is what every install has to say.
const least = `
plane: {url: "https://plane.example:8443"}
token: {existingSecret: plane-token}
`

// with adds values to the least ones.
func with(t *testing.T, text string) map[string]any {
	t.Helper()
	out := values(t, least)
	merge(out, values(t, text))
	return out
}

func merge(into, from map[string]any) {
	for k, v := range from {
		if inner, ok := v.(map[string]any); ok {
			if old, ok := into[k].(map[string]any); ok {
				merge(old, inner)
				continue
			}
		}
		into[k] = v
	}
}

// install renders the chart as `helm install --dry-run=client` does.
func install(t *testing.T, vals map[string]any) (*release.Release, error) {
	t.Helper()
	return installOn(t, "v1.33.0", vals)
}

// installOn renders it for a version of Kubernetes.
func installOn(t *testing.T, kubernetes string, vals map[string]any) (*release.Release, error) {
	t.Helper()
	chart, err := loader.Load(chartPath)
	if err != nil {
		t.Fatal(err)
	}
	i := action.NewInstall(action.NewConfiguration())
	i.DryRunStrategy = action.DryRunClient
	i.ReleaseName, i.Namespace = name, namespace
	version, err := common.ParseKubeVersion(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	i.KubeVersion = version
	got, err := i.Run(chart, vals)
	if err != nil {
		return nil, err
	}
	return got.(*release.Release), nil
}

// objects is a rendered chart by kind/name.
type objects map[string]*unstructured.Unstructured

// render returns the objects of the chart and its notes.
func render(t *testing.T, vals map[string]any) (objects, string) {
	t.Helper()
	r, err := install(t, vals)
	if err != nil {
		t.Fatal(err)
	}
	out := objects{}
	d := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(r.Manifest), 4096)
	for {
		var u unstructured.Unstructured
		err := d.Decode(&u.Object)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, r.Manifest)
		}
		if len(u.Object) == 0 {
			continue
		}
		key := u.GetKind() + "/" + u.GetName()
		if out[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		out[key] = &u
	}
	return out, r.Info.Notes
}

// get converts an object to its type, strictly.
func get[T any](t *testing.T, from objects, key string) *T {
	t.Helper()
	u := from[key]
	if u == nil {
		t.Fatalf("the chart has no %s; it has %s", key, keys(from))
	}
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &out, true); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return &out
}
