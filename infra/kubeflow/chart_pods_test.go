//go:build kubetest

package kubeflow

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// chartPods runs the agents of an installed chart: a process for each pod of its
// Deployment, with the pod's own arguments, configuration, token and account, from
// when the pod runs until it is deleted.
type chartPods struct {
	s        *site
	t        *testing.T
	ns       string
	programs map[string]string // by image

	mu      sync.Mutex
	end     func(p *process) // of a process whose pod is deleted
	runs    map[types.UID]*process
	endings sync.WaitGroup
}

// ends says how a process ends whose pod is deleted.
func (c *chartPods) ends(how func(p *process)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = how
}

// run follows the pods until the test ends.
func (c *chartPods) run() {
	c.t.Helper()
	c.runs = map[types.UID]*process{}
	pods := c.s.rig.Client(kuberig.Admin).CoreV1().Pods(c.ns)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=agent"}) // tells first of those that are there
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if p, is := e.Object.(*corev1.Pod); is {
				if err := c.see(ctx, p, e.Type == watch.Deleted); err != nil && ctx.Err() == nil {
					c.t.Errorf("pod %s: %v", p.Name, err)
				}
			}
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		w.Stop()
		<-ended
		c.endings.Wait()
	})
}

// see is told of a pod as it is now.
func (c *chartPods) see(ctx context.Context, pod *corev1.Pod, gone bool) error {
	c.mu.Lock()
	p := c.runs[pod.UID]
	c.mu.Unlock()
	switch {
	case gone || pod.DeletionTimestamp != nil:
		if p != nil {
			c.mu.Lock()
			end := c.end
			delete(c.runs, pod.UID)
			c.mu.Unlock()
			c.endings.Go(func() { end(p) })
		}
	case p == nil && pod.Status.Phase == corev1.PodRunning:
		p, err := c.process(ctx, pod)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.runs[pod.UID] = p
		c.mu.Unlock()
		return p.run()
	}
	return nil
}

// process is what the pod's container is here.
func (c *chartPods) process(ctx context.Context, pod *corev1.Pod) (*process, error) {
	dir := filepath.Join(c.s.dir, pod.Name)
	kubeconfig, err := c.account(ctx, pod, dir)
	if err != nil {
		return nil, err
	}
	container := pod.Spec.Containers[0]
	program := c.programs[container.Image]
	if program == "" {
		return nil, fmt.Errorf("no program stands for image %s", container.Image)
	}
	local := []string{"$(POD_NAME)", pod.Name} // and where the container's mounts are here
	for _, m := range container.VolumeMounts {
		to := filepath.Join(dir, m.Name)
		if err := c.mount(ctx, pod, m.Name, to); err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Name, err)
		}
		local = append(local, m.MountPath, to)
	}
	p := &process{t: c.t, path: program, log: dir + ".log", env: []string{"POD_NAME=" + pod.Name, "POD_UID=" + string(pod.UID),
		"POD_NAMESPACE=" + pod.Namespace, "OPSPLANE_NODE_NAME=" + pod.Spec.NodeName}}
	for _, a := range container.Args {
		p.args = append(p.args, strings.NewReplacer(local...).Replace(a))
	}
	// All are on one host here, so each takes a port of its own. The last word counts.
	p.args = append(p.args, "--listen=127.0.0.1:0", "--kubeconfig", kubeconfig)
	return p, nil
}

// mount puts a volume of the pod into a folder.
func (c *chartPods) mount(ctx context.Context, pod *corev1.Pod, name, to string) error {
	core := c.s.rig.Client(kuberig.Admin).CoreV1()
	files := map[string][]byte{}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Name != name:
		case v.Secret != nil:
			x, err := core.Secrets(pod.Namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, i := range v.Secret.Items {
				files[i.Path] = x.Data[i.Key]
			}
		case v.ConfigMap != nil:
			x, err := core.ConfigMaps(pod.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for k, text := range x.Data {
				files[k] = []byte(text)
			}
		}
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(to, file), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// account writes a kubeconfig with a token of the pod's service account.
func (c *chartPods) account(ctx context.Context, pod *corev1.Pod, dir string) (string, error) {
	token, err := c.s.rig.Client(kuberig.Admin).CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	api := c.s.rig.Config(kuberig.Admin)
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": api.Host, "certificate-authority-data": api.CAData}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]string{"cluster": "c", "user": "u"}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]string{"token": token.Status.Token}}}})
	if err != nil {
		return "", err
	}
	return dir + ".kubeconfig", os.WriteFile(dir+".kubeconfig", text, 0o600)
}
