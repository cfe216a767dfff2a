package plane

import (
	"fmt"
	"strconv"
	"time"
)

// arguments are a component's. None of them elects a leader: each is alone.
func (p *Plane) arguments(name string) []string {
	switch name {
	case Etcd:
		client, peer := fmt.Sprintf("http://127.0.0.1:%d", p.ports.etcd), fmt.Sprintf("http://127.0.0.1:%d", p.ports.peer)
		return []string{
			"--data-dir=" + p.path("etcd"), "--log-level=error",
			"--unsafe-no-fsync", // a killed process loses nothing by it, a dead machine may
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		}
	case APIServer:
		args := []string{
			fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", p.ports.etcd),
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", p.ports.api),
			"--endpoint-reconciler-type=none", // nobody reaches it from a pod
			"--cert-dir=" + p.path("pki"), "--tls-cert-file=" + p.path("pki", "apiserver.crt"), "--tls-private-key-file=" + p.path("pki", "apiserver.key"),
			"--client-ca-file=" + p.path("pki", "ca.crt"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + p.path("pki", "sa.pub"), "--service-account-signing-key-file=" + p.path("pki", "sa.key"),
			"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC", "--allow-privileged=true",
		}
		if p.opts.Audit {
			// Its default mode writes an entry before the answer's end is sent. By default
			// the file is put aside at 100 MB, and what tests read of it is gone.
			args = append(args, "--audit-policy-file="+p.path("audit.yaml"), "--audit-log-path="+p.path("audit.log"), "--audit-log-maxsize=0")
		}
		return args
	case ControllerManager:
		args := append(p.client(ControllerManager),
			"--use-service-account-credentials=true", "--service-account-private-key-file="+p.path("pki", "sa.key"), "--root-ca-file="+p.path("pki", "ca.crt"))
		if g := p.opts.NodeGrace; g > 0 {
			args = append(args, "--node-monitor-grace-period="+g.String(), "--node-monitor-period="+(g/4).String())
		}
		return args
	case Scheduler:
		return p.client(Scheduler)
	case Kwok:
		return []string{
			"--kubeconfig=" + p.path("pki", Kwok+".kubeconfig"), "--config=" + p.path("stages.yaml"),
			"--manage-nodes-with-label-selector=rig.opsplane.io/kubelet!=dead",
			"--node-lease-duration-seconds=" + strconv.Itoa(int(p.lease()/time.Second)),
			"--node-ip=127.0.0.1", "--cidr=10.64.0.0/12", fmt.Sprintf("--server-address=127.0.0.1:%d", p.ports.kwok),
		}
	}
	panic("no component " + name)
}

// client are the arguments of what works through the API server, with rates that
// a test does not wait for.
func (p *Plane) client(name string) []string {
	return []string{
		"--kubeconfig=" + p.path("pki", name+".kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}

// lease is how long a node's heartbeat holds: 40 s, as a kubelet's, unless the
// grace of nodes is shorter.
func (p *Plane) lease() time.Duration {
	if p.opts.NodeGrace > 0 {
		return min(40*time.Second, p.opts.NodeGrace)
	}
	return 40 * time.Second
}
