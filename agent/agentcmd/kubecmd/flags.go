package kubecmd

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// Environment that the chart fills in from the pod.
// https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
const (
	envNode      = "OPSPLANE_NODE_NAME"
	envPod       = "POD_NAME"
	envPodUID    = "POD_UID"
	envNamespace = "POD_NAMESPACE"
)

// Limits of flags.
const (
	maxQPS   = 10_000
	maxBurst = 20_000
)

// flags are the executor's own.
type flags struct {
	kubeconfig, context, namespace string
	node, pod, podUID              string
	qps                            float64
	burst                          int
	configFile                     string
	resetImage, upgradeImage       string

	config Config
}

func (f *flags) add(fs *flag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials (default: the pod's own)")
	fs.StringVar(&f.context, "kube-context", "", "`name` of the kubeconfig's context (default: its current one)")
	fs.StringVar(&f.namespace, "namespace", cmp.Or(os.Getenv(envNamespace), cluster.DefaultNamespace), "`namespace` of the agent's own objects, Jobs and host reports (or "+envNamespace+")")
	fs.StringVar(&f.node, "node-name", os.Getenv(envNode), "`name` of the node that the agent runs on (or "+envNode+")")
	fs.StringVar(&f.pod, "pod-name", os.Getenv(envPod), "`name` of the agent's own pod (or "+envPod+")")
	fs.StringVar(&f.podUID, "pod-uid", os.Getenv(envPodUID), "`UID` of the agent's own pod (or "+envPodUID+")")
	fs.Float64Var(&f.qps, "kube-qps", cluster.DefaultQPS, fmt.Sprintf("calls to the API server a second, 1 to %d", maxQPS))
	fs.IntVar(&f.burst, "kube-burst", cluster.DefaultBurst, fmt.Sprintf("calls to the API server at once, 1 to %d", maxBurst))
	fs.StringVar(&f.configFile, "kube-config-file", "", "YAML `file` of what is too long for flags: inventory, deviceReset, componentUpgrade")
	fs.StringVar(&f.resetImage, "device-reset-image", "", "`image` with opsplane-host for device.reset (default: as the file says; without either there are no resets)")
	fs.StringVar(&f.upgradeImage, "component-upgrade-image", "", "`image` with opsplane-upgrade for component.upgrade, in place of the one in the file")
}

// check looks at the values and reads the file.
func (f *flags) check() error {
	for _, n := range []struct{ flag, value string }{{"node-name", f.node}, {"pod-name", f.pod}} {
		if n.value != "" && !subdomainShape.MatchString(n.value) {
			return fmt.Errorf("--%s %q: it must be 1 to 253 lower-case letters, digits, dashes and dots", n.flag, n.value)
		}
	}
	switch {
	case !labelShape.MatchString(f.namespace):
		return fmt.Errorf("--namespace %q: it must be 1 to 63 lower-case letters, digits and dashes", f.namespace)
	case f.podUID != "" && f.pod == "":
		return errors.New("--pod-uid without --pod-name")
	case !(f.qps >= 1 && f.qps <= maxQPS): // NaN neither
		return fmt.Errorf("--kube-qps %s: it must be 1 to %d", strconv.FormatFloat(f.qps, 'g', -1, 64), maxQPS)
	case f.burst < 1 || f.burst > maxBurst:
		return fmt.Errorf("--kube-burst %d: it must be 1 to %d", f.burst, maxBurst)
	}
	var err error
	if f.config, err = readConfig(f.configFile); err != nil {
		return err
	}
	if f.resetImage != "" {
		if f.config.DeviceReset == nil {
			f.config.DeviceReset = &DeviceReset{}
		}
		f.config.DeviceReset.Image = f.resetImage
	}
	if f.upgradeImage != "" {
		if f.config.ComponentUpgrade == nil {
			f.config.ComponentUpgrade = &ComponentUpgrade{}
		}
		f.config.ComponentUpgrade.Image = f.upgradeImage
	}
	if c := f.config.DeviceReset; c != nil {
		if err := checkImage("deviceReset.image (--device-reset-image)", c.Image); err != nil {
			return err
		}
		if err := c.check(); err != nil {
			return fmt.Errorf("--kube-config-file %s: %w", f.configFile, err)
		}
	}
	if c := f.config.ComponentUpgrade; c != nil {
		if err := checkImage("componentUpgrade.image (--component-upgrade-image)", c.Image); err != nil {
			return err
		}
		if err := c.check(); err != nil {
			return fmt.Errorf("--kube-config-file %s: %w", f.configFile, err)
		}
	}
	return nil
}

func (f *flags) options() cluster.Options {
	return cluster.Options{
		Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace, NodeName: f.node, PodName: f.pod, PodUID: f.podUID,
		QPS: float32(f.qps), Burst: f.burst,
	}
}
