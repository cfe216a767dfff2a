package device

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

const (
	// container is the name of the Jobs' one container.
	container = "host"
	labelVerb = "opsplane.io/verb"
	// labelJobName is on a Job's pods.
	// https://kubernetes.io/docs/reference/labels-annotations-taints/#batch-kubernetes-io-job-name
	labelJobName = "batch.kubernetes.io/job-name"
	// How long finished Jobs stay: those that look for whoever looks, a reset's for
	// a successor.
	lookKept  = 10 * time.Minute
	resetKept = time.Hour
	// stopGrace is how long a Job's pod may take to stop: a reset that was begun is
	// not stopped half way.
	stopGrace = 30 * time.Second
	maxName   = 63 // of a Job, whose name is a label of its pods
)

const (
	podLogs      = "/var/log/pods"
	podResources = "/var/lib/kubelet/pod-resources"
)

var plain = regexp.MustCompile(`^[a-z0-9]{1,30}$`)

// jobName names a Job by the lease and the verb, and by what tells it from the
// others of that lease.
func jobName(m cluster.Mark, verb, ending string) string {
	op := strings.ToLower(strings.TrimPrefix(m.Operation, "op_"))
	if !plain.MatchString(op) { // nothing that the plane makes
		sum := sha256.Sum256([]byte(m.Operation))
		op = hex.EncodeToString(sum[:])[:26]
	}
	name := fmt.Sprintf("opsplane-%s-r%d-g%d-%s-%s", op, m.Run, m.Generation, verb, ending)
	if len(name) > maxName { // generations past any that are seen
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("opsplane-%s-%s", hex.EncodeToString(sum[:])[:32], verb)
	}
	return name
}

// looking is the name of a Job that only looks: no two are the same.
func looking(m cluster.Mark, verb string) string { return jobName(m, verb, utilrand.String(5)) }

// resetting is the name of the Job that resets: a lease's attempt has one.
func resetting(t *executor.Task) string {
	return jobName(cluster.MarkOf(t), report.VerbReset, "a"+strconv.Itoa(t.Attempt))
}

// limit is how long a verb's Job may take, from its creation.
func (e *devices) limit(t *executor.Task, verb string) time.Duration {
	d := e.cfg.LookTimeout
	if verb == report.VerbReset {
		d += e.cfg.ResetTimeout
	}
	if t.Remaining != nil {
		d = min(d, t.Remaining())
	}
	return max(d, time.Second)
}

// job is the Job that runs a verb on the device's node.
func (e *devices) job(t *executor.Task, d target, verb, name string) *batchv1.Job {
	m := cluster.MarkOf(t)
	labels := map[string]string{
		cluster.LabelManagedBy: cluster.ManagedBy, cluster.LabelJob: cluster.JobHost, labelVerb: verb,
		cluster.LabelOperation: m.Operation, cluster.LabelGeneration: strconv.FormatInt(m.Generation, 10),
	}
	annotations := map[string]string{cluster.AnnotationMark: m.String()}
	kept, grace := lookKept, stopGrace
	if verb == report.VerbReset {
		kept, grace = resetKept, e.cfg.ResetTimeout+stopGrace
	}
	limit := int64((e.limit(t, verb) + time.Second - 1) / time.Second)
	spec := corev1.PodSpec{
		// The device is on this node and no other, so the scheduler has nothing to
		// choose, and what closes the node to it (a cordon above all) is no obstacle.
		NodeName:                      d.node,
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		RestartPolicy:                 corev1.RestartPolicyNever,
		HostPID:                       true, // who holds the device is found among the host's processes
		ServiceAccountName:            e.cfg.ServiceAccount,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		PriorityClassName:             e.cfg.PriorityClass,
		TerminationGracePeriodSeconds: ptr.To(int64(grace / time.Second)),
		Containers: []corev1.Container{{
			Name: container, Image: e.cfg.Image, ImagePullPolicy: e.cfg.ImagePullPolicy,
			Command: e.cfg.Command, Args: e.args(m, d, verb),
			// A reset needs root on the host: device files, /dev/kmsg, other
			// processes' open files.
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To(int64(0))},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			TerminationMessagePath:   corev1.TerminationMessagePathDefault,
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}},
	}
	if e.cfg.RuntimeClass != "" {
		spec.RuntimeClassName = ptr.To(e.cfg.RuntimeClass)
	}
	for _, s := range e.cfg.ImagePullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	e.mount(&spec)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: e.c.Namespace, Labels: labels, Annotations: annotations},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To(int32(1)), Completions: ptr.To(int32(1)),
			BackoffLimit:            ptr.To(int32(0)), // a second try is the agent's to decide
			ActiveDeadlineSeconds:   &limit,
			TTLSecondsAfterFinished: ptr.To(int32(kept / time.Second)),
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}, Spec: spec},
		},
	}
}

// argDevice is before the device in the host program's arguments.
const argDevice = "--device="

// args are the host program's.
func (e *devices) args(m cluster.Mark, d target, verb string) []string {
	args := []string{verb, argDevice + d.uuid, "--node=" + d.node, "--state=" + e.cfg.State,
		"--operation=" + m.Operation, fmt.Sprintf("--run=%d", m.Run), fmt.Sprintf("--generation=%d", m.Generation),
		"--pod-logs=" + podLogs, "--pod-resources=" + path.Join(podResources, "kubelet.sock")}
	if verb == report.VerbReset {
		args = append(args, "--timeout="+e.cfg.ResetTimeout.String())
	}
	if e.cfg.ReleasePersistence {
		args = append(args, "--release-persistence")
	}
	if e.cfg.DriverRoot != "" {
		args = append(args, "--driver-root="+e.cfg.DriverRoot)
	}
	if e.cfg.Recorded != "" {
		args = append(args, "--recorded="+e.cfg.Recorded)
	}
	return args
}

// mount gives the pod the host's folders under their own names.
func (e *devices) mount(spec *corev1.PodSpec) {
	add := func(name, dir string, kind corev1.HostPathType, readOnly bool) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: ptr.To(kind)}}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: dir, ReadOnly: readOnly})
	}
	add("state", e.cfg.State, corev1.HostPathDirectoryOrCreate, false)
	add("pod-logs", podLogs, corev1.HostPathUnset, true)
	add("pod-resources", podResources, corev1.HostPathUnset, true)
	if e.cfg.DriverRoot != "" {
		add("driver", e.cfg.DriverRoot, corev1.HostPathDirectory, false)
		// nvidia-smi runs with the driver's root as its own: a reset writes sysfs there.
		add("driver-sys", "/sys", corev1.HostPathDirectory, false)
		last := &spec.Containers[0].VolumeMounts[len(spec.Containers[0].VolumeMounts)-1]
		last.MountPath = path.Join(e.cfg.DriverRoot, "sys")
	}
	if e.cfg.Recorded != "" {
		dir := e.cfg.Recorded
		if path.Ext(dir) != "" {
			dir = path.Dir(dir)
		}
		add("recorded", dir, corev1.HostPathUnset, false)
	}
}
