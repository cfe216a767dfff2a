package component

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
)

// Config says what may be upgraded, and by what.
type Config struct {
	// Image has the program; Command starts it, "opsplane-upgrade" unless said.
	Image            string   `json:"image"`
	Command          []string `json:"command,omitempty"`
	ImagePullPolicy  string   `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	// ServiceAccount is what Jobs run as, in the agent's namespace.
	ServiceAccount string `json:"serviceAccount"`
	PriorityClass  string `json:"priorityClass,omitempty"`
	// RegistrySecret names a Secret of type kubernetes.io/dockerconfigjson in the
	// agent's namespace, for charts in registries that ask who it is.
	RegistrySecret string `json:"registrySecret,omitempty"`
	// Timeout is how long a new version may take to get ready, and a rollback
	// again; 0: DefaultTimeout.
	Timeout time.Duration `json:"-"`
	// Components by the name that the inventory gives them.
	Components map[string]Component `json:"components"`
}

// Component is one that may be upgraded.
type Component struct {
	Release   string `json:"release"` // Helm's
	Namespace string `json:"namespace"`
	// Chart is oci://registry/path, a name in Repository, or an absolute path in
	// the image.
	Chart      string `json:"chart"`
	Repository string `json:"repository,omitempty"`
	PlainHTTP  bool   `json:"plainHTTP,omitempty"` // a registry without TLS
	// ServiceAccount, if set, takes the place of Config's.
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// DefaultTimeout is Helm's own default doubled: GPU nodes pull large images.
const DefaultTimeout = 10 * time.Minute

// Check names the first fields that make no sense.
func (c Config) Check() error {
	if len(c.Components) == 0 {
		return nil
	}
	var errs []error
	need := func(field, v string) {
		if v == "" {
			errs = append(errs, fmt.Errorf("%s is missing", field))
		}
	}
	need("image", c.Image)
	if c.Timeout < 0 || c.Timeout > 6*time.Hour {
		errs = append(errs, fmt.Errorf("timeout: %s is not between 0 and 6h", c.Timeout))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Components)) {
		x, at := c.Components[name], "components."+name
		need(at+".release", x.Release)
		need(at+".namespace", x.Namespace)
		need(at+".chart", x.Chart)
		if x.ServiceAccount == "" {
			need("serviceAccount", c.ServiceAccount)
		}
		u, err := url.Parse(x.Repository)
		switch {
		case x.Repository != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == ""):
			errs = append(errs, fmt.Errorf("%s.repository: %q is no http(s) URL", at, x.Repository))
		case x.Repository != "" && u.User != nil:
			errs = append(errs, fmt.Errorf("%s.repository: no credentials go into a URL", at))
		case x.Repository == "" && x.Chart != "" && !strings.HasPrefix(x.Chart, "oci://") && !path.IsAbs(x.Chart):
			errs = append(errs, fmt.Errorf("%s.chart: %q is neither oci:// nor an absolute path, and there is no repository", at, x.Chart))
		}
	}
	return errors.Join(errs...)
}

func (c Config) account(x Component) string {
	if x.ServiceAccount != "" {
		return x.ServiceAccount
	}
	return c.ServiceAccount
}

// names words what may be upgraded.
func (c Config) names() string {
	if len(c.Components) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(c.Components)), ", ")
}
