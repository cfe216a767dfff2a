package plane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Ports are taken below those that Linux gives to outgoing connections (32768 and
// up, ip(7)): between the choice of one and its use nobody else gets it.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ports are what a plane listens on.
type ports struct {
	api, etcd, peer, kwok int
	locks                 []*os.File // one a port, held as long as the plane is
}

// reserve finds ports that nobody listens on and that no other plane of this
// machine has reserved. A lock ends with the process that holds it.
func reserve() (p ports, err error) {
	dir := filepath.Join(os.TempDir(), "opsplane-kubetest-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return p, fmt.Errorf("reserve ports: %w", err)
	}
	for _, port := range []*int{&p.api, &p.etcd, &p.peer, &p.kwok} {
		lock, err := one(dir, port)
		if err != nil {
			return p, errors.Join(err, p.release())
		}
		p.locks = append(p.locks, lock)
	}
	return p, nil
}

func one(dir string, port *int) (*os.File, error) {
	const tries = 1000
	for range tries {
		*port = firstPort + rand.IntN(lastPort-firstPort)
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(*port)), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return nil, fmt.Errorf("reserve a port: %w", err)
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && free(*port) {
			return f, nil
		}
		_ = f.Close() // another plane's
	}
	return nil, fmt.Errorf("reserve a port: none of %d between %d and %d is free", tries, firstPort, lastPort)
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}

// release gives the ports back.
func (p *ports) release() error {
	var errs []error
	for _, f := range p.locks {
		errs = append(errs, f.Close())
	}
	p.locks = nil
	return errors.Join(errs...)
}
