package crashtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// TestStart looks at what a start prints and leaves: the token once, in a file
// that only its owner reads; nothing that is not loopback without TLS.
func TestStart(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	token := p.token()
	if n := strings.Count(read(t, p.log), token); n != 1 {
		t.Errorf("the first start prints the token %d times", n)
	}
	for _, name := range []string{"admin.token", "opsplane.db", "queue.db"} {
		if info, err := os.Stat(filepath.Join(p.data, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
	if code, took := p.term(30 * time.Second); code != 0 {
		t.Errorf("exit code %d after %s", code, took)
	}
	p.start()
	if p.token() != token {
		t.Error("the second start made another token")
	}
	if n := strings.Count(read(t, p.log), token); n != 1 {
		t.Errorf("after the second start the token is printed %d times", n)
	}
	if a := p.client().call(http.MethodGet, "/v1/operations", nil, ""); a.status != http.StatusOK {
		t.Errorf("with the token: %s", a)
	}
	other := folder(t)
	out, err := run("up", "--addr", "127.0.0.1:0", "--data", p.data)
	if err == nil || !strings.Contains(out, fmt.Sprintf("in use by process %d ", p.cmd.Process.Pid)) {
		t.Errorf("a second engine on the folder: %v\n%s", err, out)
	}
	out, err = run("up", "--addr", "0.0.0.0:0", "--data", filepath.Join(other, "data"))
	if err == nil || !strings.Contains(out, "--tls-cert") || !strings.Contains(out, "loopback") {
		t.Errorf("not loopback without TLS: %v\n%s", err, out)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestGracefulStop asks the engine to stop in the middle of drains: the work is
// handed back, not lost, and goes on at the next start. Ctrl-C reaches the whole
// process group at once.
func TestGracefulStop(t *testing.T) {
	for _, tc := range []struct {
		name  string
		s     syscall.Signal
		group bool
	}{{"SIGTERM", syscall.SIGTERM, false}, {"Ctrl-C", syscall.SIGINT, true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, "--demo", "--log", "warn")
			p.start()
			c := p.client()
			nodes := c.things("nodes", 40)
			var ids []string
			for _, n := range nodes[:12] {
				if strings.Contains(n.Name, "blocked") || strings.Contains(n.Name, "shared") {
					continue
				}
				ids = append(ids, c.create(request{Type: "node.drain", Target: n.ID, Reason: "stop in the middle", Payload: map[string]any{"force": true}}).ID)
			}
			c.until(ids[0], time.Minute, "running", func(o op) bool { return o.Phase == operation.Running || o.Phase.Terminal() })
			pid := p.cmd.Process.Pid
			if tc.group {
				pid = -pid
			}
			code, took := p.stop(pid, tc.s, 30*time.Second)
			if code != 0 {
				t.Errorf("exit code %d:\n%s", code, tail(p.log))
			}
			p.verify(p.data)
			p.start()
			back := 0
			for _, id := range ids {
				o := c.finish(id, 2*time.Minute)
				if o.Phase != operation.Succeeded {
					t.Errorf("%s is %s: %+v", id, o.Phase, o.Result)
				}
				for _, a := range o.Assignments {
					switch a.Ended {
					case "handed_back":
						back++
					case "reported":
					default:
						t.Errorf("%s was not handed back: %+v", id, a)
					}
				}
			}
			if back == 0 {
				t.Error("nothing was handed back")
			}
			t.Logf("stopped in %s, %d of %d handed back", took.Round(time.Millisecond), back, len(ids))
		})
	}
}

// TestOrphans kills the plane alone: its agents end by themselves.
func TestOrphans(t *testing.T) {
	t.Parallel()
	p := newPlane(t, "--demo", "--log", "warn")
	p.start()
	c := p.client()
	nodes := c.things("nodes", 40)
	for _, n := range nodes[:5] { // not idle
		c.create(request{Type: "node.drain", Target: n.ID, Reason: "under way", Payload: map[string]any{"force": true}})
	}
	pids := p.agentPIDs()
	if len(pids) != 3 {
		t.Fatalf("agents: %v", pids)
	}
	for name, pid := range pids {
		if !alive(pid) {
			t.Errorf("agent %s is not there", name)
		}
	}
	p.kill()
	began := time.Now()
	for len(pids) > 0 {
		for name, pid := range pids {
			if !alive(pid) {
				delete(pids, name)
			}
		}
		if time.Since(began) > time.Minute {
			t.Errorf("agents are there a minute after the plane was killed: %v", pids)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("the agents ended within %s", time.Since(began).Round(time.Millisecond))
}

// TestTLS runs an agent that checks the plane's certificate, and one that trusts
// another authority.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := newPlane(t)
	host, _, err := net.SplitHostPort(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := certificate(t, dir, "plane", net.ParseIP(host))
	wrong, _ := certificate(t, dir, "wrong", net.ParseIP(host))
	p.args = []string{"--tls-cert", cert, "--tls-key", key}
	p.spawn()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(read(t, cert)))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	c := &client{t: t, url: "https://" + p.addr, http: &http.Client{Transport: tr}}
	for end := time.Now().Add(time.Minute); c.call(http.MethodGet, "/readyz", nil, "").status != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not ready:\n%s", tail(p.log))
		}
	}
	c.token = p.token()
	_, token := p.cluster(c, "spare")
	start := func(name, ca string) *agent {
		return p.startAgent(name, token, "zoo", filepath.Join(p.dir, "sim"), "--plane", c.url, "--ca-file", ca)
	}
	bad := start("bad", wrong)
	said := regexp.MustCompile(`certificate|x509`)
	for end := time.Now().Add(time.Minute); !said.MatchString(read(t, bad.log)); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the agent with the wrong authority does not say so:\n%s", read(t, bad.log))
		}
	}
	if n := len(list[thing](c, "/v1/nodes")); n > 0 {
		t.Errorf("the agent with the wrong authority told of %d nodes", n)
	}
	bad.kill()
	start("good", cert)
	n := c.things("nodes", 10)
	if o := c.finish(c.create(request{Type: "node.cordon", Target: n[0].ID, Reason: "over TLS"}).ID, time.Minute); o.Phase != operation.Succeeded {
		t.Errorf("it is %s: %+v", o.Phase, o.Result)
	}
	if status, err := ready("http://" + p.addr); err == nil && status == http.StatusOK {
		t.Error("it answers without TLS as well")
	}
	if code, _ := p.term(30 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// certificate makes a certificate for an address that signs itself.
func certificate(t *testing.T, dir, name string, ip net.IP) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{ip}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for _, f := range []struct {
		path  string
		block pem.Block
	}{{certFile, pem.Block{Type: "CERTIFICATE", Bytes: der}}, {keyFile, pem.Block{Type: "PRIVATE KEY", Bytes: raw}}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&f.block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
