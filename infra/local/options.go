// Package local is the one-machine engine: API, relay, sweep, plan runner and a
// data folder in one process, with the same domain code as on AWS.
package local

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/version"
)

// Version is the product's version.
const Version = version.Version

// Options configure the engine.
type Options struct {
	Data string // the data folder
	Addr string // host:port to listen on
	// TLSCert and TLSKey are files; without them only a loopback address is
	// taken, unless Insecure.
	TLSCert, TLSKey string
	Insecure        bool
	OIDC            *auth.OIDCConfig // nil: tokens only
	Timing          operation.Timing
	Retention       retention.Policy
	// RequestsPerSecond and Waits bound one principal; 0 takes the defaults.
	RequestsPerSecond float64
	Waits             int
	// WebhookAllow are the addresses inside that receivers of alerts may have.
	WebhookAllow []netip.Prefix
	// PublicURL is where people reach the engine, for links in notifications.
	PublicURL string
	Logger    *slog.Logger
	Now       func() time.Time
}

// tls loads the pair of files, or returns nil when there is none.
func (o *Options) tls() (*tls.Config, error) {
	if o.TLSCert == "" && o.TLSKey == "" {
		return nil, nil
	}
	if o.TLSCert == "" || o.TLSKey == "" {
		return nil, errors.New("TLS takes both a certificate and a key file")
	}
	pair, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load TLS certificate and key: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

func (o *Options) defaults() {
	if o.Timing == (operation.Timing{}) {
		o.Timing = operation.OneMachine
	}
	if o.Retention.Zero() {
		o.Retention = retention.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}
