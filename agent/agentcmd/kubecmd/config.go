package kubecmd

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Limits of the configuration file.
const (
	maxConfigBytes = 1 << 20
	maxNames       = 1000 // entries of one list or map
	maxImageBytes  = 1024
)

// Config is what --kube-config-file holds: what is too long for flags. Unknown
// fields are refused.
type Config struct {
	Inventory        Inventory         `json:"inventory"`
	DeviceReset      *DeviceReset      `json:"deviceReset,omitempty"`      // nil: no resets here
	ComponentUpgrade *ComponentUpgrade `json:"componentUpgrade,omitempty"` // nil: no upgrades here
}

// Inventory says what is reported.
type Inventory struct {
	// ExcludeNamespaces are those whose deployments are not reported; absent:
	// kube-system.
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`
	// NodeLabels are reported beside the built-in ones.
	NodeLabels []string `json:"nodeLabels,omitempty"`
	// Components names components by the charts that install them.
	Components map[string]string `json:"components,omitempty"`
}

// names of Kubernetes (RFC 1123): a namespace, an object.
var (
	labelShape     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomainShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	// labelKey is a label's key: an optional prefix and a name.
	// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
	labelKey = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

// readConfig reads the file; no file is an empty configuration.
func readConfig(path string) (Config, error) {
	var c Config
	if path == "" {
		return c, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return c, fmt.Errorf("--kube-config-file: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return c, fmt.Errorf("--kube-config-file: %w", err)
	}
	if len(text) > maxConfigBytes {
		return c, fmt.Errorf("--kube-config-file %s: it has more than %d bytes", path, maxConfigBytes)
	}
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, fmt.Errorf("--kube-config-file %s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("--kube-config-file %s: %w", path, err)
	}
	return c, nil
}

func (c *Config) check() error {
	i := c.Inventory
	for name, n := range map[string]int{"inventory.excludeNamespaces": len(i.ExcludeNamespaces), "inventory.nodeLabels": len(i.NodeLabels), "inventory.components": len(i.Components)} {
		if n > maxNames {
			return fmt.Errorf("%s has %d entries, the limit is %d", name, n, maxNames)
		}
	}
	if k := slices.IndexFunc(i.ExcludeNamespaces, func(n string) bool { return !labelShape.MatchString(n) }); k >= 0 {
		return fmt.Errorf("inventory.excludeNamespaces[%d]: %q is no namespace", k, i.ExcludeNamespaces[k])
	}
	if k := slices.IndexFunc(i.NodeLabels, func(n string) bool { return !labelKey.MatchString(n) }); k >= 0 {
		return fmt.Errorf("inventory.nodeLabels[%d]: %q is no label's key", k, i.NodeLabels[k])
	}
	for chart, name := range i.Components {
		if chart == "" || name == "" {
			return fmt.Errorf("inventory.components: %q: %q: neither may be empty", chart, name)
		}
	}
	return nil
}

// checkImage refuses what is no image's name.
func checkImage(field, image string) error {
	switch {
	case image == "":
		return fmt.Errorf("%s is needed", field)
	case len(image) > maxImageBytes:
		return fmt.Errorf("%s has %d bytes, the limit is %d", field, len(image), maxImageBytes)
	case strings.ContainsAny(image, " \t\r\n") || strings.Contains(image, "://"):
		return fmt.Errorf("%s: %q is no image's name", field, image)
	}
	return nil
}

// Job is how the pods of a Job are made.
type Job struct {
	Image            string      `json:"image"`
	ImagePullPolicy  string      `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []Reference `json:"imagePullSecrets,omitempty"`
	ServiceAccount   string      `json:"serviceAccount,omitempty"`
}

// Reference names an object of the agent's namespace.
type Reference struct {
	Name string `json:"name"`
}

// DeviceReset turns device.reset on.
type DeviceReset struct {
	Job `json:",inline"`
}

// ComponentUpgrade turns component.upgrade on.
type ComponentUpgrade struct {
	Job `json:",inline"`
}
