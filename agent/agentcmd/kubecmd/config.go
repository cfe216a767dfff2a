package kubecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/device"
)

// Limits of the configuration file.
const (
	maxConfigBytes = 1 << 20
	maxNames       = 1000 // entries of one list or map
	maxImageBytes  = 1024
	maxJob         = time.Hour // timeouts of Jobs
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
	// ComponentNamespaces are where a component is installed, by its name, in place
	// of the built-in ones: elsewhere its labels prove nothing.
	ComponentNamespaces map[string][]string `json:"componentNamespaces,omitempty"`
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
	for name, n := range map[string]int{"inventory.excludeNamespaces": len(i.ExcludeNamespaces), "inventory.nodeLabels": len(i.NodeLabels), "inventory.components": len(i.Components),
		"inventory.componentNamespaces": len(i.ComponentNamespaces)} {
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
	for name, in := range i.ComponentNamespaces {
		if name == "" || len(in) == 0 || len(in) > maxNames {
			return fmt.Errorf("inventory.componentNamespaces: %q has %d namespaces, which must be 1 to %d of a named component", name, len(in), maxNames)
		}
		if k := slices.IndexFunc(in, func(n string) bool { return !labelShape.MatchString(n) }); k >= 0 {
			return fmt.Errorf("inventory.componentNamespaces.%s[%d]: %q is no namespace", name, k, in[k])
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
	Image            string   `json:"image"`
	Command          []string `json:"command,omitempty"` // absent: the image's own place for it
	ImagePullPolicy  string   `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	ServiceAccount   string   `json:"serviceAccount,omitempty"`
	PriorityClass    string   `json:"priorityClass,omitempty"`
}

// DeviceReset turns device.reset on. See device.Config for what the fields do.
type DeviceReset struct {
	Job
	RuntimeClass       string   `json:"runtimeClass,omitempty"`
	State              string   `json:"state,omitempty"`
	DriverRoot         string   `json:"driverRoot,omitempty"`
	ReleasePersistence bool     `json:"releasePersistence,omitempty"`
	Recorded           string   `json:"recorded,omitempty"`
	ResetTimeout       Duration `json:"resetTimeout,omitempty"`
	LookTimeout        Duration `json:"lookTimeout,omitempty"`
}

func (d *DeviceReset) config() device.Config {
	if d == nil {
		return device.Config{}
	}
	return device.Config{
		Enabled: true, Image: d.Image, Command: d.Command, ImagePullPolicy: corev1.PullPolicy(d.ImagePullPolicy), ImagePullSecrets: d.ImagePullSecrets,
		ServiceAccount: d.ServiceAccount, RuntimeClass: d.RuntimeClass, PriorityClass: d.PriorityClass, State: d.State, DriverRoot: d.DriverRoot,
		ReleasePersistence: d.ReleasePersistence, Recorded: d.Recorded, ResetTimeout: time.Duration(d.ResetTimeout), LookTimeout: time.Duration(d.LookTimeout),
	}
}

// ComponentUpgrade turns component.upgrade on.
type ComponentUpgrade struct {
	component.Config
	Timeout Duration `json:"timeout,omitempty"`
}

// config is the package's own, with what JSON writes otherwise.
func (u *ComponentUpgrade) config() component.Config {
	if u == nil {
		return component.Config{}
	}
	c := u.Config
	c.Timeout = time.Duration(u.Timeout)
	return c
}

func (u *ComponentUpgrade) check() error {
	c := u.config()
	job := Job{ImagePullPolicy: c.ImagePullPolicy, ImagePullSecrets: c.ImagePullSecrets, ServiceAccount: c.ServiceAccount, PriorityClass: c.PriorityClass}
	if err := job.check("componentUpgrade"); err != nil {
		return err
	}
	switch {
	case len(c.Components) == 0:
		return errors.New("componentUpgrade.components is empty: nothing could be upgraded")
	case len(c.Components) > maxNames:
		return fmt.Errorf("componentUpgrade.components has %d entries, the limit is %d", len(c.Components), maxNames)
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("componentUpgrade: %w", err)
	}
	return nil
}

// Duration is written as Go writes it: 90s, 2m.
type Duration time.Duration

// UnmarshalJSON reads a duration of more than nothing.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is no duration such as \"90s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is no duration such as \"90s\"", s)
	}
	*d = Duration(v)
	return nil
}

func (j *Job) check(field string) error {
	switch j.ImagePullPolicy {
	case "", "Always", "IfNotPresent", "Never":
	default:
		return fmt.Errorf("%s.imagePullPolicy: %q is none of Always, IfNotPresent, Never", field, j.ImagePullPolicy)
	}
	for name, value := range map[string]string{"serviceAccount": j.ServiceAccount, "priorityClass": j.PriorityClass} {
		if value != "" && !subdomainShape.MatchString(value) {
			return fmt.Errorf("%s.%s: %q is no name", field, name, value)
		}
	}
	for i, s := range j.ImagePullSecrets {
		if !subdomainShape.MatchString(s) {
			return fmt.Errorf("%s.imagePullSecrets[%d]: %q is no name", field, i, s)
		}
	}
	return nil
}

func (d *DeviceReset) check() error {
	if err := d.Job.check("deviceReset"); err != nil {
		return err
	}
	for name, value := range map[string]string{"state": d.State, "driverRoot": d.DriverRoot, "recorded": d.Recorded} {
		if value != "" && (!path.IsAbs(value) || path.Clean(value) != value || value == "/") {
			return fmt.Errorf("deviceReset.%s: %q is no absolute path below /", name, value)
		}
	}
	if d.RuntimeClass != "" && !subdomainShape.MatchString(d.RuntimeClass) {
		return fmt.Errorf("deviceReset.runtimeClass: %q is no name", d.RuntimeClass)
	}
	for name, v := range map[string]Duration{"resetTimeout": d.ResetTimeout, "lookTimeout": d.LookTimeout} {
		if time.Duration(v) > maxJob {
			return fmt.Errorf("deviceReset.%s: %s, the limit is %s", name, time.Duration(v), maxJob)
		}
	}
	if d.DriverRoot != "" && d.Recorded != "" {
		return errors.New("deviceReset.recorded and deviceReset.driverRoot do not go together")
	}
	return nil
}
