package kubecmd

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parse parses the kind's flags alone, with a configuration file if config is
// not empty.
func parse(t *testing.T, config string, args ...string) (*flags, error) {
	t.Helper()
	if config != "" {
		path := filepath.Join(t.TempDir(), "kube.yaml")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--kube-config-file", path)
	}
	f := &flags{}
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f.add(fs)
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	return f, f.check()
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string
		says string
	}{
		{"--kube-qps 0", "--kube-qps 0: it must be 1 to 10000"},
		{"--kube-qps NaN", "--kube-qps"},
		{"--kube-qps 1e9", "10000"},
		{"--kube-burst 0", "--kube-burst 0: it must be 1 to 20000"},
		{"--kube-burst many", "kube-burst"},
		{"--namespace Not_One", "--namespace"},
		{"--namespace " + strings.Repeat("a", 64), "63"},
		{"--node-name UPPER", "--node-name"},
		{"--node-name " + strings.Repeat("a", 254), "253"},
		{"--pod-name a/b", "--pod-name"},
		{"--pod-uid 1 --pod-name=", "--pod-uid without --pod-name"},
		{"--device-reset-image https://registry/x", "--device-reset-image"},
		{"--component-upgrade-image " + strings.Repeat("a", 1025), "1024"},
		{"--kube-config-file /nonexistent", "--kube-config-file"},
	} {
		if _, err := parse(t, "", strings.Fields(tc.args)...); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s", tc.args, err, tc.says)
		}
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ config, says string }{
		{"inventroy: {}", `unknown field "inventroy"`},
		{"inventory: {exclude: [a]}", `unknown field "exclude"`},
		{"inventory: {excludeNamespaces: [Kube]}", "inventory.excludeNamespaces[0]"},
		{"inventory: {excludeNamespaces: [a], excludeNamespaces: [b]}", "already set"},
		{"inventory: {nodeLabels: [fine/one, 'not fine']}", "inventory.nodeLabels[1]"},
		{"inventory: {components: {gpu-operator: ''}}", "inventory.components"},
		{"inventory: {componentNamespaces: {gpu-operator: []}}", "inventory.componentNamespaces: \"gpu-operator\" has 0 namespaces"},
		{"inventory: {componentNamespaces: {gpu-operator: [a, B]}}", "inventory.componentNamespaces.gpu-operator[1]: \"B\" is no namespace"},
		{"inventory: {componentNamespaces: {gpu-operator: a}}", "componentNamespaces"},
		{"inventory: {excludeNamespaces: [" + strings.Repeat("a,", 1001) + "]}", "1001 entries, the limit is 1000"},
		{"deviceReset: {}", "deviceReset.image"},
		{"deviceReset: {image: 'a b'}", "deviceReset.image"},
		{"deviceReset: {image: a, imagePullPolicy: sometimes}", "deviceReset.imagePullPolicy"},
		{"deviceReset: {image: a, imagePullSecrets: [A_B]}", "deviceReset.imagePullSecrets[0]"},
		{"deviceReset: {image: a, serviceAccount: A_B}", "deviceReset.serviceAccount"},
		{"deviceReset: {image: a, runtimeClass: A_B}", "deviceReset.runtimeClass"},
		{"deviceReset: {image: a, driverRoot: run/nvidia}", "deviceReset.driverRoot"},
		{"deviceReset: {image: a, driverRoot: /}", "deviceReset.driverRoot"},
		{"deviceReset: {image: a, state: /var/../etc}", "deviceReset.state"},
		{"deviceReset: {image: a, resetTimeout: 90}", "no duration"},
		{"deviceReset: {image: a, resetTimeout: -1s}", "no duration"},
		{"deviceReset: {image: a, lookTimeout: 61m}", "deviceReset.lookTimeout: 1h1m0s, the limit is 1h0m0s"},
		{"deviceReset: {image: a, driverRoot: /d, recorded: /r}", "do not go together"},
		{"componentUpgrade: {}", "componentUpgrade.image"},
		{"componentUpgrade: {image: a}", "componentUpgrade.components is empty"},
		{"componentUpgrade: {image: a, components: {x: {}}}", "components.x.release is missing"},
		{"componentUpgrade: {image: a, components: {x: {version: 1}}}", `unknown field "version"`},
		{"componentUpgrade: {image: a, timeout: never}", "no duration"},
		{"componentUpgrade: {image: a, serviceAccount: A_B}", "componentUpgrade.serviceAccount"},
		{strings.Repeat("# long\n", maxConfigBytes/7+1), "more than 1048576 bytes"},
		{"- a", "--kube-config-file"},
	} {
		if _, err := parse(t, tc.config); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%.80s: %v, want %s", tc.config, err, tc.says)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	f, err := parse(t, `
inventory: {excludeNamespaces: [kube-system, monitoring], nodeLabels: [example.com/pool], components: {my-operator: operator}, componentNamespaces: {operator: [ours]}}
deviceReset: {image: host:1, serviceAccount: reset, driverRoot: /run/nvidia/driver, releasePersistence: true, resetTimeout: 90s}
`, "--device-reset-image", "host:2", "--kubeconfig", "/k", "--kube-context", "c", "--namespace", "n", "--node-name", "gpu-1.example", "--pod-name", "p", "--pod-uid", "u", "--kube-qps", "7.5", "--kube-burst", "9")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Inventory: Inventory{ExcludeNamespaces: []string{"kube-system", "monitoring"}, NodeLabels: []string{"example.com/pool"}, Components: map[string]string{"my-operator": "operator"},
			ComponentNamespaces: map[string][]string{"operator": {"ours"}}},
		DeviceReset: &DeviceReset{Job: Job{Image: "host:2", ServiceAccount: "reset"}, DriverRoot: "/run/nvidia/driver", ReleasePersistence: true, ResetTimeout: Duration(90 * time.Second)},
	}
	if diff := cmp.Diff(want, f.config); diff != "" {
		t.Error(diff)
	}
	o := f.options()
	if o.Kubeconfig != "/k" || o.Context != "c" || o.Namespace != "n" || o.NodeName != "gpu-1.example" || o.PodName != "p" || o.PodUID != "u" || o.QPS != 7.5 || o.Burst != 9 {
		t.Errorf("%+v", o)
	}
	// Nothing named: no resets and no upgrades.
	if f, err = parse(t, ""); err != nil || f.config.DeviceReset != nil || f.config.ComponentUpgrade != nil {
		t.Errorf("%+v, %v", f.config, err)
	}
}

// The pod's own place comes from its environment.
func TestEnvironment(t *testing.T) {
	for k, v := range map[string]string{envNode: "n1", envPod: "p1", envPodUID: "u1", envNamespace: "ops"} {
		t.Setenv(k, v)
	}
	f, err := parse(t, "")
	if o := f.options(); err != nil || o.NodeName != "n1" || o.PodName != "p1" || o.PodUID != "u1" || o.Namespace != "ops" {
		t.Errorf("%+v, %v", o, err)
	}
}

// What the chart writes is understood. The file is what it renders with all
// turned on; a test beside the chart's keeps it current
// (agent/executor/helm/charttest).
func TestChartsConfig(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := parse(t, string(text))
	if err != nil {
		t.Fatal(err)
	}
	if c := f.config; c.DeviceReset == nil || c.DeviceReset.ServiceAccount != "blue-opsplane-agent-reset" || time.Duration(c.DeviceReset.ResetTimeout) != 2*time.Minute || c.ComponentUpgrade == nil || c.ComponentUpgrade.ServiceAccount != "blue-opsplane-agent-upgrade" ||
		c.ComponentUpgrade.config().Timeout != 10*time.Minute || c.ComponentUpgrade.Components["gpu-operator"].Namespace != "gpu-operator" {
		t.Errorf("%+v", c)
	}
}
