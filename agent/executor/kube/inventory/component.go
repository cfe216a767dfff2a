package inventory

import (
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/shared/protocol"
)

// builtinComponents names components by the Helm chart, or the
// app.kubernetes.io/name, of their parts. A subchart counts as what it is
// installed with. Options.Components adds to it.
var builtinComponents = map[string]string{
	"opsplane-agent":        "agent",
	"opsplane-operator":     "operator",
	"gpu-operator":          "gpu-operator",
	"dynamo-platform":       "dynamo-platform",
	"dynamo-operator":       "dynamo-platform",
	"network-operator":      "network-operator",
	"nvidia-dra-driver-gpu": "nvidia-dra-driver-gpu",
	"nvidia-device-plugin":  "nvidia-device-plugin",
	"dcgm-exporter":         "dcgm-exporter",
	"gpu-operator-charts":   "amd-gpu-operator", // the chart's name at AMD
	"lws":                   "lws",
	"grove-charts":          "grove",
	"kai-scheduler":         "kai-scheduler",
}

// builtinNamespaces are where components are installed, as their makers' guides
// say. Labels are no proof: whoever may make a Deployment in a namespace of their
// own can write on it what they like. What has the labels of a component and is
// elsewhere is reported beside it, under a name that says where it is, and is not
// taken for it. Options.Namespaces replaces a component's.
//
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html
// https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/install-gpu-ocp.html
// https://docs.nvidia.com/networking/display/kubernetes25100/getting-started-kubernetes.html
// https://docs.nvidia.com/dynamo/kubernetes-deployment/deployment-guide/installation-guide
// https://instinct.docs.amd.com/projects/gpu-operator/en/latest/installation/kubernetes-helm.html
// https://lws.sigs.k8s.io/docs/installation/
var builtinNamespaces = map[string][]string{
	"operator":              {"opsplane", "opsplane-system"},
	"gpu-operator":          {"gpu-operator", "nvidia-gpu-operator"},
	"dynamo-platform":       {"dynamo-system"},
	"network-operator":      {"nvidia-network-operator", "network-operator"},
	"nvidia-dra-driver-gpu": {"nvidia-dra-driver-gpu"},
	"nvidia-device-plugin":  {"nvidia-device-plugin", "gpu-operator", "nvidia-gpu-operator"},
	"dcgm-exporter":         {"gpu-operator", "nvidia-gpu-operator"},
	"amd-gpu-operator":      {"kube-amd-gpu"},
	"lws":                   {"lws-system"},
	"grove":                 {"grove-system", "dynamo-system"},
	"kai-scheduler":         {"kai-scheduler", "dynamo-system"},
}

// system is a namespace that only administrators install into.
const system = "kube-system"

// ComponentNamespaces are the namespaces in which a component is looked for unless
// Options.Namespaces names others; own is the agent's.
func ComponentNamespaces(name, own string) []string {
	out := append([]string{system}, builtinNamespaces[name]...)
	if name == "agent" && own != "" {
		out = append(out, own)
	}
	return out
}

// part says of which component a workload is a part.
type part struct {
	component string // what names it in the table: a chart or an app's name
	version   string
}

// Labels that charts put on what they install.
// https://helm.sh/docs/chart_best_practices/labels/
// https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
const (
	labelChart   = "helm.sh/chart"
	labelName    = "app.kubernetes.io/name"
	labelVersion = "app.kubernetes.io/version"
)

// chartForm is a chart's name and version. In a label Helm writes + as _.
var chartForm = regexp.MustCompile(`^(.+?)-(v?\d+\.\d+\.\d+.*)$`)

// partOf reads an object's labels. No release record is read: those are secrets,
// and whoever may list secrets may read them all.
func partOf(o metav1.Object) part {
	labels := o.GetLabels()
	if m := chartForm.FindStringSubmatch(labels[labelChart]); m != nil {
		return part{component: intern(m[1]), version: intern(strings.ReplaceAll(m[2], "_", "+"))}
	}
	if name, version := labels[labelName], labels[labelVersion]; name != "" && version != "" {
		return part{component: intern(name), version: intern(version)}
	}
	return part{}
}

// component is what is kept of an installed component, or of what has the labels
// of one.
type component struct {
	name, version string
	namespace     string // "": its parts are in several
	healthy       bool
	// up tells whether its parts are available and none is given up on: healthy but
	// for what is being rolled out, of which nothing is told while it comes along.
	up      bool
	changed int64
}

// componentNamed returns the component's name, "" for what is none.
func (m *model) componentNamed(chart string) string {
	if name, ok := m.opts.Components[chart]; ok {
		return name
	}
	return builtinComponents[chart]
}

// installed tells whether a namespace is one that the component is installed in.
func (m *model) installed(name, namespace string) bool {
	if given, ok := m.opts.Namespaces[name]; ok {
		return slices.Contains(given, namespace)
	}
	own := ""
	if m.opts.Cluster != nil {
		own = m.opts.Cluster.Namespace
	}
	return slices.Contains(ComponentNamespaces(name, own), namespace)
}

// joinComponent makes a workload a part of its component; one that is where the
// component is not installed, a part of NAMESPACE/COMPONENT.
func (m *model) joinComponent(w *workload) {
	name := m.componentNamed(w.part.component)
	if name != "" && !m.installed(name, w.namespace) {
		name = intern(w.namespace + "/" + name)
	}
	if w.part.component = name; name == "" {
		return
	}
	if m.parts[name] == nil {
		m.parts[name] = map[*workload]struct{}{}
	}
	m.parts[name][w] = struct{}{}
}

func (m *model) leaveComponent(w *workload) {
	if set := m.parts[w.part.component]; set != nil {
		delete(set, w)
	}
}

// refreshComponent sums up a component's parts: its version is that of most of
// them, and it is healthy while all of them are available and rolled out.
func (m *model) refreshComponent(name string) {
	parts, was := m.parts[name], m.comps[name]
	if len(parts) == 0 {
		delete(m.parts, name)
		if was != nil {
			delete(m.comps, name)
			m.mark(kindComponent, name)
		}
		return
	}
	is := &component{name: name, healthy: true, up: true}
	votes := map[string]int{}
	var down []string
	spaces := map[string]bool{}
	for w := range parts {
		votes[w.part.version]++
		spaces[w.namespace], is.namespace = true, w.namespace
		if w.halfway {
			is.healthy = false
		}
		if !w.available || w.stuck != "" {
			is.healthy, is.up = false, false
			down = append(down, w.path())
		}
	}
	for version, n := range votes {
		if best := votes[is.version]; n > best || n == best && version > is.version {
			is.version = version
		}
	}
	if len(spaces) > 1 {
		is.namespace = ""
	}
	if was != nil && was.version == is.version && was.healthy == is.healthy && was.up == is.up && was.namespace == is.namespace {
		return
	}
	m.comps[name] = is
	is.changed = m.mark(kindComponent, name)
	if was == nil {
		return
	}
	if was.version != is.version {
		m.tell("component.version_changed", kindComponent, name, name, time.Time{}, map[string]any{"from": was.version, "to": is.version})
	}
	switch {
	case was.up && !is.up:
		slices.Sort(down)
		m.tell("component.unhealthy", kindComponent, name, name, time.Time{}, map[string]any{"version": is.version, "unavailable": down[:min(len(down), 16)]})
	case !was.up && is.up:
		m.tell("component.recovered", kindComponent, name, name, time.Time{}, map[string]any{"version": is.version})
	}
}

func (m *model) reportComponent(c *component) protocol.Component {
	return protocol.Component{UID: c.name, Name: c.name, Version: c.version, Revision: m.revision(c.changed), Healthy: c.healthy, Namespace: c.namespace}
}
