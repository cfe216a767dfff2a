package sim

import (
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// World is everything that the simulated cluster holds. Objects are keyed by
// their UID; a revision is the sequence number of the change that wrote it.
type World struct {
	Cluster string    `json:"cluster"`
	Seq     int64     `json:"seq"` // of the last change applied
	Born    time.Time `json:"born"`

	TimeScale float64 `json:"time_scale"` // simulated durations are divided by it
	Exclusive bool    `json:"exclusive"`
	Speeds    Speeds  `json:"speeds"`

	Script     []Happening `json:"script,omitempty"`
	ScriptDone int         `json:"script_done"`

	Nodes       map[string]*Node       `json:"nodes"`
	Pods        map[string]*Pod        `json:"pods"`
	PDBs        map[string]*PDB        `json:"pdbs"` // by namespace/name
	Devices     map[string]*Device     `json:"devices"`
	Deployments map[string]*Deployment `json:"deployments"`
	Components  map[string]*Component  `json:"components"`
	Drains      map[string]*Drain      `json:"drains"` // by operation
}

// Mark says which operation, run and generation wrote an object last. It is
// the annotation that fences older generations off.
type Mark struct {
	Operation  string `json:"operation"`
	Run        int    `json:"run"`
	Generation int64  `json:"generation"`
}

// Faults are the knobs that any object has. They count down as they are used.
type Faults struct {
	// Transient: so many calls on the object fail before one is taken.
	Transient int `json:"transient,omitempty"`
	// AnswerLost: so many calls are carried out while their answer is lost.
	AnswerLost int `json:"answer_lost,omitempty"`
}

// Node is a machine.
type Node struct {
	UID         string            `json:"uid"`
	Name        string            `json:"name"`
	Revision    int64             `json:"revision"` // resourceVersion: patches are conditional on it
	Touched     int64             `json:"touched"`  // the newest change of the node or of what is on it
	Schedulable bool              `json:"schedulable"`
	Ready       bool              `json:"ready"`
	Unreachable bool              `json:"unreachable,omitempty"`
	Cordon      *protocol.Cordon  `json:"cordon,omitempty"`
	Lifted      *protocol.Cordon  `json:"lifted,omitempty"` // who opened it last, as far as is known
	Labels      map[string]string `json:"labels,omitempty"`
	Mark        *Mark             `json:"mark,omitempty"`
	Faults      Faults            `json:"faults"`
	// VanishAfter: so long after its first cordon the node is deleted, and with
	// Reborn created again under the same name with another UID.
	VanishAfter time.Duration `json:"vanish_after,omitempty"`
	Reborn      bool          `json:"reborn,omitempty"`
	VanishAt    *time.Time    `json:"vanish_at,omitempty"`
}

// Owners of pods.
const (
	OwnerDeployment  = "Deployment"
	OwnerStatefulSet = "StatefulSet"
	OwnerJob         = "Job"
	OwnerDaemonSet   = "DaemonSet"
	OwnerMirror      = "Mirror" // a static pod of the kubelet
	OwnerNone        = "None"
)

// Pod is a pod.
type Pod struct {
	UID       string            `json:"uid"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Revision  int64             `json:"revision"`
	NodeUID   string            `json:"node_uid,omitempty"` // empty: no node takes it
	Owner     string            `json:"owner"`
	OwnerUID  string            `json:"owner_uid,omitempty"` // of a deployment of this world
	Labels    map[string]string `json:"labels,omitempty"`
	EmptyDir  bool              `json:"empty_dir,omitempty"`
	Completed bool              `json:"completed,omitempty"`
	Finalizer string            `json:"finalizer,omitempty"`
	GPUs      int               `json:"gpus,omitempty"`
	Template  int64             `json:"template,omitempty"` // of its deployment, when it was made
	Stop      time.Duration     `json:"stop"`               // how long it takes to stop
	Grace     time.Duration     `json:"grace"`              // its own grace period
	Ready     bool              `json:"ready"`
	ReadyAt   *time.Time        `json:"ready_at,omitempty"`
	DeletedAt *time.Time        `json:"deleted_at,omitempty"` // it is terminating
	StopAt    *time.Time        `json:"stop_at,omitempty"`    // when its containers are stopped
	Forced    bool              `json:"forced,omitempty"`     // deleted without grace
	Faults    Faults            `json:"faults"`
}

// Key is namespace/name.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Healthy tells whether a disruption budget counts the pod.
func (p *Pod) Healthy() bool { return p.Ready && p.DeletedAt == nil && !p.Completed }

// PDB is a disruption budget: one of MinAvailable and MaxUnavailable is set.
type PDB struct {
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	Revision       int64             `json:"revision"`
	Selector       map[string]string `json:"selector"`
	MinAvailable   *int              `json:"min_available,omitempty"`
	MaxUnavailable *int              `json:"max_unavailable,omitempty"`
}

// Key is namespace/name.
func (b *PDB) Key() string { return b.Namespace + "/" + b.Name }

// Holder is something other than a pod that has a GPU open.
type Holder struct {
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"`
}

// Reset is the host helper's record of the last reset of a GPU: its high-water
// mark.
type Reset struct {
	Mark
	At   time.Time `json:"at"`
	Ends time.Time `json:"ends"`
	Done bool      `json:"done"`
}

// Device health.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
	HealthUnusable = "unusable"
)

// Device is a GPU.
type Device struct {
	UID         string   `json:"uid"` // GPU-<lower-case uuid>
	Aliases     []string `json:"aliases,omitempty"`
	NodeUID     string   `json:"node_uid"`
	Index       int      `json:"index"`
	Product     string   `json:"product"`
	Revision    int64    `json:"revision"`
	Touched     int64    `json:"touched"`
	Health      string   `json:"health"`
	Detail      string   `json:"detail,omitempty"`
	XID         int      `json:"xid,omitempty"`  // the last one that the driver reported
	XIDs        int      `json:"xids,omitempty"` // how many it has reported
	Pods        []string `json:"pods,omitempty"` // UIDs of the pods that hold it
	Holders     []Holder `json:"holders,omitempty"`
	Persistence bool     `json:"persistence,omitempty"`
	MIGPending  bool     `json:"mig_pending,omitempty"`
	NVLinkPeers []string `json:"nvlink_peers,omitempty"`
	InVM        bool     `json:"in_vm,omitempty"`
	NeedsReboot bool     `json:"needs_reboot,omitempty"`
	// ResetRefused: the host refuses a reset with this code.
	ResetRefused string `json:"reset_refused,omitempty"`
	// StaysBroken: a reset is carried out and does not help.
	StaysBroken bool `json:"stays_broken,omitempty"`
	// ProbeUnknown: whether a reset was done cannot be read.
	ProbeUnknown bool `json:"probe_unknown,omitempty"`
	// ReservedUntil keeps the scheduler off while an operation empties it.
	ReservedUntil *time.Time `json:"reserved_until,omitempty"`
	Resets        []Reset    `json:"resets,omitempty"` // newest last, bounded
	Faults        Faults     `json:"faults"`
}

// Roll is a rollout under way.
type Roll struct {
	Mark
	At   time.Time `json:"at"`
	Next time.Time `json:"next"` // when the next replica is replaced
}

// Deployment is a set of replicas.
type Deployment struct {
	UID        string            `json:"uid"`
	Namespace  string            `json:"namespace"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"` // Deployment, StatefulSet, Job
	Revision   int64             `json:"revision"`
	Touched    int64             `json:"touched"`
	Desired    int               `json:"desired"`
	Updated    int               `json:"updated"`
	Template   int64             `json:"template"` // revision of its pod template
	Image      string            `json:"image,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	GPUs       int               `json:"gpus,omitempty"`      // a pod
	EmptyDir   bool              `json:"empty_dir,omitempty"` // its pods have one
	Nodes      []string          `json:"nodes,omitempty"`     // names of the only nodes for its pods
	Stop       time.Duration     `json:"stop"`
	StopJitter time.Duration     `json:"stop_jitter,omitempty"`
	Start      time.Duration     `json:"start"`
	Grace      time.Duration     `json:"grace"`
	RollFor    time.Duration     `json:"roll_for"` // a whole rollout
	// Virtual: its pods are not simulated.
	Virtual bool `json:"virtual,omitempty"`
	// RollFault: a rollout ends with this error code.
	RollFault string `json:"roll_fault,omitempty"`
	OOMs      int    `json:"ooms,omitempty"`
	Crashes   int    `json:"crashes,omitempty"` // times it entered a crash loop
	Made      int64  `json:"made,omitempty"`    // pods made so far, for names
	Mark      *Mark  `json:"mark,omitempty"`    // the last restart
	Roll      *Roll  `json:"roll,omitempty"`
	Undone    bool   `json:"undone,omitempty"` // the last restart was taken back
	Faults    Faults `json:"faults"`
}

// Key is namespace/name.
func (d *Deployment) Key() string { return d.Namespace + "/" + d.Name }

// Upgrade is an upgrade of a component under way.
type Upgrade struct {
	Mark
	To   string    `json:"to"`
	Ends time.Time `json:"ends"`
}

// Component is an installed part of the cluster's software.
type Component struct {
	UID      string        `json:"uid"`
	Name     string        `json:"name"`
	Version  string        `json:"version"`
	Min      string        `json:"min,omitempty"` // lowest version that fits the cluster
	Max      string        `json:"max,omitempty"` // highest
	Revision int64         `json:"revision"`
	Healthy  bool          `json:"healthy"`
	Takes    time.Duration `json:"takes"`
	// StaysBroken: an upgrade leaves it unhealthy.
	StaysBroken bool     `json:"stays_broken,omitempty"`
	Mark        *Mark    `json:"mark,omitempty"` // the last upgrade
	Upgrade     *Upgrade `json:"upgrade,omitempty"`
	Faults      Faults   `json:"faults"`
}

// Drain is which pods a drain (or the emptying of a GPU) planned to remove.
// Evicted and Gone are filled in as the world changes.
type Drain struct {
	Operation string     `json:"operation"`
	NodeUID   string     `json:"node_uid"`
	Revision  int64      `json:"revision"`
	Pods      []DrainPod `json:"pods"`
}

// DrainPod is a planned pod and what became of it.
type DrainPod struct {
	UID     string     `json:"uid"`
	Name    string     `json:"name"`
	Evicted *time.Time `json:"evicted_at,omitempty"`
	Gone    *time.Time `json:"gone_at,omitempty"`
	Forced  bool       `json:"forced,omitempty"` // deleted without grace
	// Unmanaged: nothing starts it again, and the payload's force allowed that.
	Unmanaged bool `json:"unmanaged,omitempty"`
}

// wasForced tells whether the pod was removed against a rule.
func (p DrainPod) wasForced() bool { return p.Forced || p.Unmanaged && p.Evicted != nil }
