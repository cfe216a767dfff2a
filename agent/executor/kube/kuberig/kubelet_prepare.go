//go:build kubetest

package kuberig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// prepare makes the container's command with all that it refers to.
func (p *podRun) prepare(ctx context.Context) (*exec.Cmd, error) {
	c := &p.pod.Spec.Containers[0]
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	env, err := p.environment(ctx, c)
	if err != nil {
		return nil, err
	}
	mounts, err := p.mounts(ctx, c)
	if err != nil {
		return nil, err
	}
	var argv []string
	for _, a := range append(c.Command[:len(c.Command):len(c.Command)], c.Args...) {
		argv = append(argv, mounts.local(expand(a, env)))
	}
	path, perr := p.k.program(c, c.Command)
	if perr != nil {
		path = "/nonexistent" // its start fails, as a container's does
	}
	if len(c.Command) == 0 {
		argv = append([]string{filepath.Base(path)}, argv...)
	}
	cmd := &exec.Cmd{Path: path, Args: argv, Dir: p.dir, Stdout: p, Stderr: p}
	if perr != nil {
		cmd.Err = perr
	}
	// The image's environment is this process's but for what would tell of another
	// cluster.
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "KUBE") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "HOSTNAME="+p.pod.Name, EnvTerminationLog+"="+p.terminationLog())
	kubeconfig, err := p.account(ctx)
	if err != nil {
		return nil, err
	}
	if kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+kubeconfig)
	}
	cmd.Env = append(cmd.Env, p.k.opts.Env...)
	for _, e := range env {
		cmd.Env = append(cmd.Env, e.name+"="+mounts.local(e.value))
	}
	return cmd, nil
}

type variable struct{ name, value string }

// environment is the container's, with later variables standing on earlier ones.
func (p *podRun) environment(ctx context.Context, c *corev1.Container) ([]variable, error) {
	var out []variable
	for _, from := range c.EnvFrom {
		var all map[string]string
		var err error
		switch {
		case from.ConfigMapRef != nil:
			all, err = p.configMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			all, err = p.secret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
		}
		if err != nil {
			return nil, err
		}
		for k, v := range all {
			out = append(out, variable{from.Prefix + k, v})
		}
	}
	for _, e := range c.Env {
		v := expand(e.Value, out)
		if from := e.ValueFrom; from != nil {
			var err error
			if v, err = p.valueFrom(ctx, from); err != nil {
				return nil, fmt.Errorf("env %s: %w", e.Name, err)
			}
		}
		out = append(out, variable{e.Name, v})
	}
	return out, nil
}

func (p *podRun) valueFrom(ctx context.Context, from *corev1.EnvVarSource) (string, error) {
	switch {
	case from.FieldRef != nil:
		return p.field(from.FieldRef.FieldPath)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		all, err := p.configMap(ctx, ref.Name, ref.Optional)
		return key(all, ref.Key, ref.Optional, err)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		all, err := p.secret(ctx, ref.Name, ref.Optional)
		return key(all, ref.Key, ref.Optional, err)
	}
	return "", errors.New("the stand-in kubelet does not know this source")
}

func key(all map[string]string, name string, optional *bool, err error) (string, error) {
	if v, ok := all[name]; ok || err != nil || optional != nil && *optional {
		return v, err
	}
	return "", fmt.Errorf("couldn't find key %s", name)
}

var keyedField = regexp.MustCompile(`^metadata\.(labels|annotations)\['(.+)'\]$`)

// field is a pod's own, by the paths that the downward API knows.
func (p *podRun) field(path string) (string, error) {
	if m := keyedField.FindStringSubmatch(path); m != nil {
		if m[1] == "labels" {
			return p.pod.Labels[m[2]], nil
		}
		return p.pod.Annotations[m[2]], nil
	}
	v, ok := map[string]string{
		"metadata.name": p.pod.Name, "metadata.namespace": p.pod.Namespace, "metadata.uid": string(p.pod.UID),
		"spec.nodeName": p.pod.Spec.NodeName, "spec.serviceAccountName": p.pod.Spec.ServiceAccountName,
		"status.hostIP": "127.0.0.1", "status.podIP": "127.0.0.1",
	}[path]
	if !ok {
		return "", fmt.Errorf("the stand-in kubelet does not know field %s", path)
	}
	return v, nil
}

func (p *podRun) configMap(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	m, err := p.k.client.CoreV1().ConfigMaps(p.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unless(optional, err)
	}
	out := map[string]string{}
	for k, v := range m.BinaryData {
		out[k] = string(v)
	}
	for k, v := range m.Data {
		out[k] = v
	}
	return out, nil
}

func (p *podRun) secret(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	s, err := p.k.client.CoreV1().Secrets(p.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unless(optional, err)
	}
	out := map[string]string{}
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

// unless makes no error of an optional object that is not there.
func unless(optional *bool, err error) error {
	if optional != nil && *optional {
		return absent(err)
	}
	return err
}

var reference = regexp.MustCompile(`\$\$|\$\([-._a-zA-Z][-._a-zA-Z0-9]*\)`)

// expand replaces $(NAME) as Kubernetes does: $$ is a dollar, and what is unknown
// stays.
func expand(s string, env []variable) string {
	return reference.ReplaceAllStringFunc(s, func(m string) string {
		if m == "$$" {
			return "$"
		}
		for i := len(env) - 1; i >= 0; i-- {
			if env[i].name == m[2:len(m)-1] {
				return env[i].value
			}
		}
		return m
	})
}

// mounted is a path in the container and where it lies here.
type mounted struct{ path, local string }

type mountTable []mounted

// mounts puts the container's volumes into folders.
func (p *podRun) mounts(ctx context.Context, c *corev1.Container) (mountTable, error) {
	var out mountTable
	for _, m := range c.VolumeMounts {
		if strings.HasPrefix(m.MountPath, "/var/run/secrets/kubernetes.io/serviceaccount") {
			continue // see account
		}
		if m.SubPath != "" || m.SubPathExpr != "" {
			return nil, fmt.Errorf("mount of %s: the stand-in kubelet knows no subPath", m.Name)
		}
		for _, v := range p.pod.Spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			local, err := p.volume(ctx, &v)
			if err != nil {
				return nil, fmt.Errorf("volume %s: %w", v.Name, err)
			}
			out = append(out, mounted{filepath.Clean(m.MountPath), local})
		}
	}
	return out, nil
}

func (p *podRun) volume(ctx context.Context, v *corev1.Volume) (string, error) {
	dir := filepath.Join(p.dir, "volumes", v.Name)
	var all map[string]string
	var items []corev1.KeyToPath
	var err error
	switch {
	case v.HostPath != nil:
		return p.hostPath(v.HostPath)
	case v.EmptyDir != nil:
	case v.ConfigMap != nil:
		all, err = p.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Optional)
		items = v.ConfigMap.Items
	case v.Secret != nil:
		all, err = p.secret(ctx, v.Secret.SecretName, v.Secret.Optional)
		items = v.Secret.Items
	default:
		err = errors.New("the stand-in kubelet knows hostPath, emptyDir, configMap and secret")
	}
	if err != nil {
		return "", err
	}
	if len(items) == 0 {
		for k := range all {
			items = append(items, corev1.KeyToPath{Key: k, Path: k})
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, i := range items {
		v, ok := all[i.Key]
		if !ok {
			return "", fmt.Errorf("no key %s", i.Key)
		}
		file := filepath.Join(dir, filepath.Clean("/"+i.Path))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(v), 0o600)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// hostPath finds a path of the node, and makes or misses it as its type says.
// https://kubernetes.io/docs/concepts/storage/volumes/#hostpath
func (p *podRun) hostPath(v *corev1.HostPathVolumeSource) (string, error) {
	at := p.k.HostPath(p.pod.Spec.NodeName, v.Path)
	switch kind := cmp.Or(ptr.Deref(v.Type, ""), corev1.HostPathUnset); kind {
	case corev1.HostPathDirectoryOrCreate:
		return at, os.MkdirAll(at, 0o755)
	case corev1.HostPathUnset:
		return at, nil
	default:
		if _, err := os.Stat(at); err != nil {
			return "", fmt.Errorf("hostPath type check failed: %s is not a %s", v.Path, kind)
		}
		return at, nil
	}
}

// local replaces what a string says of mounted paths by where those lie: the
// process has no file system of its own.
func (t mountTable) local(s string) string {
	for _, m := range t {
		if m.path == m.local {
			continue
		}
		at := regexp.MustCompile(`(^|[=:,\s"'])` + regexp.QuoteMeta(m.path) + `(/|$|[:,\s"'])`)
		s = at.ReplaceAllString(s, "${1}"+strings.ReplaceAll(m.local, "$", "$$")+"${2}")
	}
	return s
}

// account writes a kubeconfig with a token of the pod's service account, bound to
// the pod; none where the pod wants none.
func (p *podRun) account(ctx context.Context) (string, error) {
	if want := p.pod.Spec.AutomountServiceAccountToken; want != nil && !*want {
		return "", nil
	}
	name := p.pod.Spec.ServiceAccountName
	hour := int64(3600)
	token, err := p.k.client.CoreV1().ServiceAccounts(p.pod.Namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &hour, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.pod.Name, UID: p.pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s: %w", name, err)
	}
	path := filepath.Join(p.dir, "kubeconfig")
	if err := writeKubeconfig(path, p.k.opts.Server, p.k.config.CAData, clientcmdapi.AuthInfo{Token: token.Status.Token}); err != nil {
		return "", err
	}
	return path, setNamespace(path, p.pod.Namespace)
}

// setNamespace makes the pod's namespace the kubeconfig's.
func setNamespace(path, namespace string) error {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	for _, x := range c.Contexts {
		x.Namespace = namespace
	}
	return clientcmd.WriteToFile(*c, path)
}
