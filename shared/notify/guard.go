package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// errAddress is that a receiver's address is refused.
var errAddress = errors.New("the address is refused")

// inside are the networks, beside those that netip knows for private, loopback,
// link-local and multicast, that are not of the public internet (IANA: IPv4 and
// IPv6 Special-Purpose Address Registries), or lead into ones that are not, or are
// a cloud's own services.
var inside = prefixes("0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10")

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

// guard tells which addresses may be dialled.
type guard struct{ allow []netip.Prefix }

func (s *Service) rules() guard { return guard{allow: s.Allow} }

func within(ip netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

func portAllowed(p uint16) bool { return p == 80 || p == 443 || p >= 1024 }

// check tells whether an address may be dialled for a receiver of the kind, over
// TLS or plain. Plain is for addresses that are allowed: of webhooks, which carry
// what they say in the clear, for loopback alone.
func (g guard) check(a netip.AddrPort, kind string, plain bool) error {
	ip := a.Addr().Unmap().WithZone("")
	allowed := within(ip, g.allow)
	switch {
	case !portAllowed(a.Port()):
		return fmt.Errorf("%w: port %d", errAddress, a.Port())
	case !allowed && (!ip.IsGlobalUnicast() || ip.IsPrivate() || within(ip, inside)):
		return fmt.Errorf("%w: %s is not on the public internet, and not allowed", errAddress, ip)
	case plain && (!allowed || kind == KindWebhook && !ip.IsLoopback()):
		return fmt.Errorf("%w: %s may not be told without TLS", errAddress, ip)
	}
	return nil
}

// control refuses a dial by the address that the host's name was looked up to, so
// that a name that changes between a check and the dial gains nothing.
func (g guard) control(kind string, plain bool) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, network, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return fmt.Errorf("%w: %s %s", errAddress, network, address)
		}
		return g.check(a, kind, plain)
	}
}

const (
	maxHeaderBytes = 16 << 10
	maxIdle        = 30 * time.Second
	perHost        = 8 // requests to one receiver at a time, but for those that take long; several may be on one host
)

// dialer dials for receivers of the kind.
func (s *Service) dialer(kind, scheme string) *net.Dialer {
	return &net.Dialer{Timeout: MaxTimeout, Resolver: s.resolver, ControlContext: s.rules().control(kind, scheme == "http")}
}

// client returns what sends to receivers of the kind; nil: there is no such kind, or scheme. A connection is used again
// by what may dial it only. A try has its receiver's timeout, for all of it (see post); a
// dial that outlasts it has no try to end it, so it ends by itself.
func (s *Service) client(kind, scheme string) *http.Client {
	s.once.Do(func() {
		s.clients = map[string]*http.Client{}
		for _, k := range []string{KindWebhook, KindAlertmanager} {
			for _, sch := range []string{"http", "https"} {
				s.clients[k+" "+sch] = &http.Client{
					// No proxy: it would dial in the guard's place.
					Transport: &http.Transport{DialContext: s.dialer(k, sch).DialContext, TLSHandshakeTimeout: MaxTimeout, MaxResponseHeaderBytes: maxHeaderBytes,
						IdleConnTimeout: maxIdle, MaxIdleConnsPerHost: perHost, DisableCompression: true,
						TLSClientConfig: s.tls()},
					CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				}
			}
		}
	})
	return s.clients[kind+" "+scheme]
}
