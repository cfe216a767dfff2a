package notify

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// names is a name server: each lookup of an IPv4 address has the next of its
// addresses, and the first again behind the last. IPv6 addresses it has none.
type names struct {
	mu    sync.Mutex
	next  int
	addrs []netip.Addr
}

func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		c, s := net.Pipe()
		go n.serve(s)
		return c, nil
	}}
}

// serve answers as over TCP (RFC 1035, 4.2.2) until the other side is gone.
func (n *names) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		a := n.answer(q)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

// answer answers a message of one question (RFC 1035, 4.1).
func (n *names) answer(q []byte) []byte {
	end := 12
	for q[end] != 0 {
		end += int(q[end]) + 1
	}
	question := q[12 : end+5]
	out := append(append([]byte{}, q[:2]...), 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0) // an answer, no error
	out = append(out, question...)
	if binary.BigEndian.Uint16(q[end+1:]) != 1 { // A
		return out
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	ip := n.addrs[n.next%len(n.addrs)].As4()
	n.next++
	out[7] = 1
	out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // of the question's name, for 0 s
	return append(out, ip[:]...)
}

func portOf(t *testing.T, s *site) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// refused are the messages to a receiver that wait since their address was refused.
func (p *plane) refused(r Receiver, address string) (n int) {
	for _, d := range p.deliveries(r, Pending) {
		if strings.Contains(d.LastError, errAddress.Error()+": "+address) {
			n++
		}
	}
	return n
}

// TestInsideIsRefused: a name of an address inside is refused when it is dialled, and
// its server gets nothing; where the address is allowed, it does.
func TestInsideIsRefused(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.Allow = nil
	p.resolver = (&names{addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}).resolver()
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: "https://hook.example.com:" + portOf(t, s)})
	p.tell(alert.TypeFiring, p.alert("hot"))
	p.run()
	if n := p.refused(r, "127.0.0.1"); n != 1 || len(s.all()) != 0 {
		t.Errorf("%d are refused, %d came", n, len(s.all()))
	}
	x := p.another(p.db) // which allows loopback
	x.roots, x.resolver = p.roots, p.resolver
	p.Service = x
	p.advance(time.Minute)
	p.serve()
	if n := len(p.deliveries(r, Delivered)); n != 1 || len(s.all()) != 1 {
		t.Errorf("where it is allowed %d are delivered, %d came", n, len(s.all()))
	}
}

// TestNameThatChanges: of a name that has another address at each lookup, the one that
// is dialled is the one that was checked; a server inside gets nothing by it (DNS
// rebinding).
func TestNameThatChanges(t *testing.T) {
	t.Parallel()
	p := setup(t)
	outside, inside := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	p.Allow = []netip.Prefix{netip.PrefixFrom(outside, 32)}
	p.resolver = (&names{addrs: []netip.Addr{outside, inside}}).resolver()
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.Header().Set("Connection", "close") }) // each message is dialled for
	hidden := &site{}
	hidden.Server = httptest.NewUnstartedServer(http.HandlerFunc(hidden.serve))
	_ = hidden.Listener.Close()
	var err error
	if hidden.Listener, err = net.Listen("tcp4", net.JoinHostPort(inside.String(), portOf(t, s))); err != nil {
		t.Fatal(err)
	}
	hidden.StartTLS()
	defer hidden.Close()
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: "https://hook.example.com:" + portOf(t, s)})
	for i, want := range []struct{ delivered, refused int }{{1, 0}, {1, 1}, {2, 0}} {
		if i < 2 {
			p.tell(alert.TypeFiring, p.alert(time.Duration(i).String()))
		}
		p.run()
		p.advance(time.Minute)
		if n, m := len(p.deliveries(r, Delivered)), p.refused(r, inside.String()); n != want.delivered || m != want.refused {
			t.Errorf("lookup %d: %d are delivered, %d refused", i+1, n, m)
		}
	}
	if n, m := len(s.all()), len(hidden.all()); n != 2 || m != 0 {
		t.Errorf("%d came outside, %d inside", n, m)
	}
}
