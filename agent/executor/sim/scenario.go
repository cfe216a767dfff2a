package sim

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

//go:embed builtin
var builtin embed.FS

// Builtins names the scenarios that come with the program.
func Builtins() []string {
	var names []string
	_ = fs.WalkDir(builtin, "builtin", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(path, "builtin/"), ".yaml"))
		}
		return err
	}) // an embedded folder can always be read
	slices.Sort(names)
	return names
}

// Duration is written as "30s", "250ms" or a number of seconds.
type Duration time.Duration

// D is the duration as the standard library has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(f func(any) error) error {
	var n float64
	if f(&n) == nil {
		*d = Duration(n * float64(time.Second))
		return nil
	}
	var s string
	if err := f(&s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no duration such as 30s or 250ms", s)
	}
	*d = Duration(v)
	return nil
}

// Speeds are how long things take in the simulated cluster.
type Speeds struct {
	Call       Duration `yaml:"call" json:"call"`               // the answer of the API server
	Stop       Duration `yaml:"stop" json:"stop"`               // a pod stops
	StopJitter Duration `yaml:"stop_jitter" json:"stop_jitter"` // up to so much longer
	Start      Duration `yaml:"start" json:"start"`             // a pod gets ready
	Reset      Duration `yaml:"reset" json:"reset"`             // a GPU
	Roll       Duration `yaml:"roll" json:"roll"`               // a whole rollout
	Upgrade    Duration `yaml:"upgrade" json:"upgrade"`         // a component
}

// Scenario is what a scenario file holds. See builtin/zoo.yaml for every knob.
type Scenario struct {
	Cluster     string           `yaml:"cluster"`
	TimeScale   float64          `yaml:"time_scale"` // 10: everything goes ten times as fast
	Exclusive   bool             `yaml:"exclusive"`  // one process only: no lock on each change
	Speeds      Speeds           `yaml:"speeds"`
	Nodes       []NodeSpec       `yaml:"nodes"`
	Deployments []DeploymentSpec `yaml:"deployments"`
	DaemonSets  []string         `yaml:"daemonsets"` // namespace/name: a pod on each node
	PDBs        []PDBSpec        `yaml:"pdbs"`
	Components  []ComponentSpec  `yaml:"components"`
	Script      []Happening      `yaml:"script"`
}

// NodeSpec describes nodes.
type NodeSpec struct {
	Name  string `yaml:"name"`  // with Count: a pattern such as gpu-node-%02d
	Count int    `yaml:"count"` // how many
	From  int    `yaml:"from"`  // the number of the first

	Labels      map[string]string `yaml:"labels"`
	GPUs        *int              `yaml:"gpus"` // 8 if left out
	Product     string            `yaml:"product"`
	VM          bool              `yaml:"vm"`
	Unreachable bool              `yaml:"unreachable"`
	Cordoned    *CordonSpec       `yaml:"cordoned"` // by a person
	VanishAfter Duration          `yaml:"vanish_after"`
	Reborn      bool              `yaml:"reborn"`
	Transient   int               `yaml:"transient"`
	AnswerLost  int               `yaml:"answer_lost"`
	Pods        []PodSpec         `yaml:"pods"`
	Devices     []DeviceSpec      `yaml:"devices"`
}

// CordonSpec is a cordon that was there before.
type CordonSpec struct {
	By     string `yaml:"by"`
	Reason string `yaml:"reason"`
}

// PodSpec describes a pod that is on a node from the start.
type PodSpec struct {
	Name       string            `yaml:"name"` // namespace/name
	Owner      string            `yaml:"owner"`
	Labels     map[string]string `yaml:"labels"`
	Stop       *Duration         `yaml:"stop"`
	Grace      *Duration         `yaml:"grace"`
	Finalizer  string            `yaml:"finalizer"`
	EmptyDir   bool              `yaml:"empty_dir"`
	Completed  bool              `yaml:"completed"`
	GPUs       int               `yaml:"gpus"`
	Transient  int               `yaml:"transient"`
	AnswerLost int               `yaml:"answer_lost"`
}

// DeviceSpec describes what is special about one GPU of a node.
type DeviceSpec struct {
	Index        int      `yaml:"index"`
	UID          string   `yaml:"uid"`
	Aliases      []string `yaml:"aliases"` // besides the usual ones
	Health       string   `yaml:"health"`
	Detail       string   `yaml:"detail"`
	Holders      []string `yaml:"holders"` // processes that are no pods
	Persistence  bool     `yaml:"persistence"`
	MIGPending   bool     `yaml:"mig_pending"`
	NVLinkPeers  []int    `yaml:"nvlink_peers"`
	NeedsReboot  bool     `yaml:"needs_reboot"`
	ResetRefused string   `yaml:"reset_refused"`
	StaysBroken  bool     `yaml:"stays_broken"`
	ProbeUnknown bool     `yaml:"probe_unknown"`
	Transient    int      `yaml:"transient"`
	AnswerLost   int      `yaml:"answer_lost"`
}

// DeploymentSpec describes a deployment and its pods.
type DeploymentSpec struct {
	Name       string    `yaml:"name"` // namespace/name; with Count a pattern
	Count      int       `yaml:"count"`
	Kind       string    `yaml:"kind"`
	Replicas   int       `yaml:"replicas"`
	Image      string    `yaml:"image"`
	GPUs       int       `yaml:"gpus"`
	EmptyDir   bool      `yaml:"empty_dir"`
	Nodes      []string  `yaml:"nodes"`
	Stop       *Duration `yaml:"stop"`
	StopJitter *Duration `yaml:"stop_jitter"`
	Start      *Duration `yaml:"start"`
	Grace      *Duration `yaml:"grace"`
	Roll       *Duration `yaml:"roll"`
	Virtual    bool      `yaml:"virtual"`
	RollFault  string    `yaml:"roll_fault"`
	Transient  int       `yaml:"transient"`
	AnswerLost int       `yaml:"answer_lost"`
}

// PDBSpec describes a disruption budget.
type PDBSpec struct {
	Name           string            `yaml:"name"` // namespace/name
	Selector       map[string]string `yaml:"selector"`
	MinAvailable   *int              `yaml:"min_available"`
	MaxUnavailable *int              `yaml:"max_unavailable"`
}

// ComponentSpec describes a component and the versions that fit.
type ComponentSpec struct {
	Name        string    `yaml:"name"`
	Version     string    `yaml:"version"`
	Min         string    `yaml:"min"`
	Max         string    `yaml:"max"`
	Takes       *Duration `yaml:"takes"`
	StaysBroken bool      `yaml:"stays_broken"`
	Transient   int       `yaml:"transient"`
	AnswerLost  int       `yaml:"answer_lost"`
}

// Happening is something that the world does at a time after its birth.
type Happening struct {
	At         Duration `yaml:"at" json:"at"`
	Do         string   `yaml:"do" json:"do"` // one of Happenings
	Node       string   `yaml:"node" json:"node,omitempty"`
	GPU        int      `yaml:"gpu" json:"gpu,omitempty"`
	Deployment string   `yaml:"deployment" json:"deployment,omitempty"`
	By         string   `yaml:"by" json:"by,omitempty"`
	Detail     string   `yaml:"detail" json:"detail,omitempty"`
	XID        int      `yaml:"xid" json:"xid,omitempty"` // of device.xid: what the driver reports
}

// Happenings lists what a script may do.
var Happenings = []string{"device.degrade", "device.recover", "device.xid", "deployment.oom", "deployment.crash_loop", "node.join", "node.leave",
	"node.cordon", "node.uncordon", "node.unreachable", "node.reachable"}

// LoadScenario reads a scenario: the name of a builtin one, or a file of YAML
// or JSON. Unknown fields and values that make no sense are errors that name
// the field.
func LoadScenario(name string) (*Scenario, error) {
	raw, err := builtin.ReadFile("builtin/" + name + ".yaml")
	if err != nil {
		if raw, err = os.ReadFile(name); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("read scenario %q: no such file, and no builtin one (%s)", name, strings.Join(Builtins(), ", "))
			}
			return nil, fmt.Errorf("read scenario: %w", err)
		}
	}
	sc, err := ParseScenario(raw)
	if err != nil {
		return nil, fmt.Errorf("read scenario %s: %w", name, err)
	}
	return sc, nil
}

// ParseScenario reads a scenario from its text.
func ParseScenario(raw []byte) (*Scenario, error) {
	sc := &Scenario{TimeScale: 1}
	if err := yaml.UnmarshalWithOptions(raw, sc, yaml.Strict()); err != nil {
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	return sc, sc.check()
}
