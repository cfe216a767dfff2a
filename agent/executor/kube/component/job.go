package component

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Labels of the Jobs, beside the cluster package's.
const (
	labelVerb = "opsplane.io/verb" // answer.Preflight, Upgrade or Status
	labelRun  = "opsplane.io/run"
	// annotationAfter is on a Job that asks what became of a run: the Jobs that had
	// tried the upgrade by then. Its answer stands until there is another of those.
	annotationAfter = "opsplane.io/after"
)

// Times of Jobs.
const (
	readDeadline = 5 * time.Minute // of one that only reads, from its making
	// slack is what a Job may take besides waiting: to be placed, to pull its image
	// and the chart, to render and to apply.
	slack = 5 * time.Minute
	// grace is how long a pod that is asked to stop may go on: the program does not
	// leave an upgrade half way if it can help it.
	grace = 5 * time.Minute
	// kept is how long an ended Job stays, with its answer and its log: longer than
	// an operation may be under way.
	kept = 25 * time.Hour
	// askedKept is how long an ended Job stays that asked what became of an upgrade. One
	// that is gone is asked again, and while a right is missing that is every few seconds:
	// kept for a day, thousands would fill the agent's namespace.
	askedKept = 10 * time.Minute

	maxName = 63 // of a Job, whose name is a label of its pods
)

// request is one Job that is asked for.
type request struct {
	verb      string
	component Component
	version   string
	rollback  bool
	timeout   time.Duration
	left      time.Duration // of the operation's time, of an upgrade
	recover   []int64       // generations whose pods are gone
	attempt   int           // of a verb that may be run again under one lease
	after     string        // annotationAfter
}

// prefix keeps Jobs of one lease apart: the history is asked what became of the
// upgrade, and by the step verify whether it is the release that is in force.
func (q request) prefix() string {
	switch {
	case q.verb == answer.Preflight:
		return "pre"
	case q.verb == answer.Upgrade:
		return "up"
	case q.after != "":
		return "st"
	}
	return "ve"
}

func (q request) name(a *protocol.Assignment) string {
	// op_ and a ULID: 29 bytes, which leaves room for the rest of a label's 63.
	name := fmt.Sprintf("opsplane-%s-%s-r%d-g%d", q.prefix(), strings.ReplaceAll(strings.ToLower(a.Operation), "_", "-"), a.Run, a.Generation)
	if q.attempt > 0 {
		name += "-a" + strconv.Itoa(q.attempt)
	}
	if len(name) > maxName { // generations past any that are seen
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("opsplane-%s-%s", q.prefix(), hex.EncodeToString(sum[:])[:32])
	}
	return name
}

// Flags of the program that say which release it is about.
const (
	argRelease   = "-release"
	argNamespace = "-namespace"
)

// attemptOf reads a Job's attempt from its name; 0: it tells none.
func attemptOf(j *batchv1.Job) int {
	i := strings.LastIndex(j.Name, "-a")
	if i < 0 {
		return 0
	}
	n, _ := strconv.Atoi(j.Name[i+len("-a"):])
	return n
}

func (q request) args(a *protocol.Assignment) []string {
	args := []string{q.verb, argRelease, q.component.Release, argNamespace, q.component.Namespace, "-operation", a.Operation,
		"-run", strconv.Itoa(a.Run), "-generation", strconv.FormatInt(a.Generation, 10), "-correlation", a.CorrelationID}
	if q.verb == answer.Status {
		return args
	}
	args = append(args, "-chart", q.component.Chart, "-version", q.version, "-timeout", q.timeout.String(), fmt.Sprintf("-rollback=%v", q.rollback))
	if q.component.Repository != "" {
		args = append(args, "-repository", q.component.Repository)
	}
	if q.component.PlainHTTP {
		args = append(args, "-plain-http")
	}
	if len(q.recover) > 0 {
		var g []string
		for _, n := range q.recover {
			g = append(g, strconv.FormatInt(n, 10))
		}
		args = append(args, "-recover", strings.Join(g, ","))
	}
	return args
}

// deadline is how long the Job may be active: an upgrade no longer than the
// operation, whose lock on the component ends with it.
func (q request) deadline() time.Duration {
	if q.verb != answer.Upgrade {
		return readDeadline
	}
	d := q.timeout + slack
	if q.rollback {
		d += q.timeout
	}
	return min(d, q.left)
}

// kept is how long the Job stays when it has ended.
func (q request) kept() time.Duration {
	if q.verb == answer.Status {
		return askedKept
	}
	return kept
}

// job is the Job of a request.
func (u *upgrader) job(a *protocol.Assignment, q request) *batchv1.Job {
	mark := cluster.Mark{Operation: a.Operation, Run: a.Run, Generation: a.Generation}
	labels := map[string]string{
		cluster.LabelJob: cluster.JobUpgrade, cluster.LabelManagedBy: cluster.ManagedBy, cluster.LabelOperation: a.Operation,
		cluster.LabelGeneration: strconv.FormatInt(a.Generation, 10), labelRun: strconv.Itoa(a.Run), labelVerb: q.verb,
	}
	command := u.config.Command
	if len(command) == 0 {
		command = []string{"opsplane-upgrade"}
	}
	container := corev1.Container{
		Name: "upgrade", Image: u.config.Image, ImagePullPolicy: corev1.PullPolicy(u.config.ImagePullPolicy), Command: command, Args: q.args(a),
		Env: []corev1.EnvVar{ // the root file system is read-only
			{Name: "HOME", Value: "/tmp"}, {Name: "HELM_CACHE_HOME", Value: "/tmp/cache"}, {Name: "HELM_CONFIG_HOME", Value: "/tmp/config"}, {Name: "HELM_DATA_HOME", Value: "/tmp/data"},
		},
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, ServiceAccountName: u.config.account(q.component), AutomountServiceAccountToken: ptr.To(true),
		PriorityClassName: u.config.PriorityClass, TerminationGracePeriodSeconds: ptr.To(int64(grace / time.Second)),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), RunAsGroup: ptr.To[int64](65532),
			FSGroup: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("256Mi"))}}}},
	}
	for _, s := range u.config.ImagePullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	if s := u.config.RegistrySecret; s != "" {
		container.Env = append(container.Env, corev1.EnvVar{Name: "HELM_REGISTRY_CONFIG", Value: "/registry/config.json"})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "registry", MountPath: "/registry", ReadOnly: true})
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "registry", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: s, Items: []corev1.KeyToPath{{Key: corev1.DockerConfigJsonKey, Path: "config.json"}}}}})
	}
	spec.Containers = []corev1.Container{container}
	notes := map[string]string{cluster.AnnotationMark: mark.String()}
	if q.after != "" {
		notes[annotationAfter] = q.after
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: q.name(a), Namespace: u.Namespace, Labels: labels, Annotations: notes},
		Spec: batchv1.JobSpec{
			// Never started again by itself, and not before its pod is seen to have ended.
			BackoffLimit: ptr.To[int32](0), PodReplacementPolicy: ptr.To(batchv1.Failed),
			ActiveDeadlineSeconds: ptr.To(int64(q.deadline() / time.Second)), TTLSecondsAfterFinished: ptr.To(int32(q.kept() / time.Second)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{cluster.AnnotationMark: mark.String()}}, Spec: spec},
		},
	}
}
