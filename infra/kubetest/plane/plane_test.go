package plane

import (
	"strings"
	"testing"
)

// TestPorts: planes that are up at the same time share no port, and a port comes
// back.
func TestPorts(t *testing.T) {
	t.Parallel()
	taken := map[int]bool{}
	var all []ports
	for range 20 {
		p, err := reserve()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		for _, n := range []int{p.api, p.etcd, p.peer, p.kwok} {
			if taken[n] || n < firstPort || n >= lastPort {
				t.Errorf("port %d is taken, or outside of %d to %d", n, firstPort, lastPort)
			}
			taken[n] = true
		}
	}
	for _, p := range all {
		if err := p.release(); err != nil {
			t.Error(err)
		}
	}
}

// TestUsers: a name becomes a file's, so that one outside the folder is refused.
func TestUsers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &Plane{opts: Options{Bin: dir, Dir: dir}, ports: ports{api: 20000}}
	if err := p.prepare(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"agent": "", "agent-0.a": "", "": "must match", "../up": "must match", "Upper": "must match", "-a": "must match", strings.Repeat("a", 101): "must match",
	} {
		path, err := WriteUser(dir, name, nil)
		if want == "" && (err != nil || !strings.HasSuffix(path, "/pki/"+name+".kubeconfig")) {
			t.Errorf("user %q: %s, %v", name, path, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("user %q: %v, want %s", name, err, want)
		}
	}
}
