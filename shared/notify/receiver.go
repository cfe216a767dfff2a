package notify

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Kinds of receivers.
const (
	KindWebhook      = "webhook"      // Standard Webhooks 1.0.0
	KindAlertmanager = "alertmanager" // Alertmanager's API v2
)

// Limits of receivers.
const (
	MaxReceivers   = 50
	MaxNameBytes   = 63
	MaxURLBytes    = 2048
	MaxURLs        = 8
	MaxLabels      = 16
	MinTimeout     = time.Second
	MaxTimeout     = 30 * time.Second
	DefaultTimeout = 15 * time.Second // Standard Webhooks: 15 to 30 s
)

// Spec is what is said of a receiver.
type Spec struct {
	Name string `json:"name" doc:"Unique; lower case, digits and dashes, up to 63 bytes"`
	Kind string `json:"kind" enum:"webhook,alertmanager"`
	// URL is where webhooks go, URLs are the Alertmanagers (of one cluster), with
	// the path before /api/v2.
	URL  string   `json:"url,omitempty" doc:"Of a webhook: https, up to 2,048 bytes, no user, not to addresses inside unless they are allowed"`
	URLs []string `json:"urls,omitempty" doc:"Of Alertmanagers of one cluster, 1 to 8, with the path before /api/v2"`
	// Matchers choose the alerts; with none it is all of them.
	Matchers []alert.Match `json:"matchers,omitempty" doc:"All must hold; as those of silences. None: all alerts"`
	// SendResolved: tell, too, that alerts are over; nil is true.
	SendResolved *bool          `json:"send_resolved,omitempty" doc:"Of a webhook: tell that alerts resolved, too. True when absent"`
	Timeout      alert.Duration `json:"timeout,omitempty" doc:"Of one try: 1s to 30s; 15s when absent, or 0s"`
	// Labels are added to each alert that an Alertmanager gets.
	Labels  map[string]string `json:"labels,omitempty" doc:"Added to each alert for an Alertmanager: up to 16, none named alertname, severity, cluster or folded"`
	Enabled *bool             `json:"enabled,omitempty" doc:"True when absent, which also ends that the plane disabled it; what happens while it is false no webhook is told later"`
	// Secret is given with a new webhook; it is not kept here.
	Secret string `json:"secret,omitempty" doc:"Of a new webhook: whsec_ and base64 of 24 to 64 bytes; one is made when absent. Rotate changes it"`
}

// Fingerprint tells which secret signs, not what it is.
type Fingerprint struct {
	// SHA256 has the first 8 bytes of the key's hash, as hex.
	SHA256    string     `json:"sha256"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // of one that was replaced
}

// Disabled is that the plane disabled a receiver.
type Disabled struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// Receiver is who is told of alerts.
type Receiver struct {
	ID string `json:"id"`
	Spec
	Secrets []Fingerprint `json:"secrets,omitempty"`
	// Disabled: it answered that it is gone. A change that enables it takes this
	// back.
	Disabled *Disabled `json:"disabled,omitempty"`
	// EnabledAt is when it was enabled again; zero: never.
	EnabledAt time.Time       `json:"enabled_at,omitzero"`
	CreatedAt time.Time       `json:"created_at"`
	CreatedBy operation.Actor `json:"created_by"`
	UpdatedAt time.Time       `json:"updated_at"`
	UpdatedBy operation.Actor `json:"updated_by"`
	// Revision is that of the stored item, for conditional changes.
	Revision int64 `json:"-"`

	// broken: its item cannot be read, and Disabled says so. It is replaced whole, or
	// deleted.
	broken bool
}

// Active tells whether it is told of alerts: it is enabled, and the plane did not
// disable it.
func (r *Receiver) Active() bool {
	return r.Disabled == nil && (r.Enabled == nil || *r.Enabled)
}

func (r *Receiver) sendsResolved() bool { return r.SendResolved == nil || *r.SendResolved }

func (r *Receiver) timeout() time.Duration {
	if r.Timeout == 0 {
		return DefaultTimeout
	}
	return r.Timeout.D()
}

// said is what a spec says, in one form: what is absent is as if it were written out.
func (sp Spec) said() []byte {
	if sp.Enabled != nil && *sp.Enabled {
		sp.Enabled = nil
	}
	if sp.SendResolved != nil && *sp.SendResolved {
		sp.SendResolved = nil
	}
	if sp.Timeout.D() == DefaultTimeout {
		sp.Timeout = 0
	}
	return record.Encode(sp)
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// faults collects what is wrong.
type faults struct{ alert.Faults }

func (f *faults) add(pointer, code, format string, args ...any) {
	f.Faults = append(f.Faults, alert.Fault{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
}

func (f *faults) orNil() error {
	if len(f.Faults) == 0 {
		return nil
	}
	return f.Faults
}

// check holds a spec to the rules. The error is alert.Faults.
func (s *Service) check(sp *Spec) error {
	f := &faults{}
	if !nameForm.MatchString(sp.Name) {
		f.add("/name", alert.CodeFormat, "must be 1 to %d lower case letters, digits and dashes, and neither begin nor end with a dash", MaxNameBytes)
	}
	switch sp.Kind {
	case KindWebhook:
		s.checkURL(f, "/url", sp.Kind, sp.URL)
		if len(sp.URLs) > 0 {
			f.add("/urls", alert.CodeConflict, "is for kind %s", KindAlertmanager)
		}
		if len(sp.Labels) > 0 {
			f.add("/labels", alert.CodeConflict, "is for kind %s", KindAlertmanager)
		}
	case KindAlertmanager:
		if n := len(sp.URLs); n < 1 || n > MaxURLs {
			f.add("/urls", alert.CodeRange, "has %d, must have 1 to %d", n, MaxURLs)
		} else {
			for i, u := range sp.URLs {
				at := "/urls/" + strconv.Itoa(i)
				s.checkURL(f, at, sp.Kind, u)
				if first := slices.IndexFunc(sp.URLs, func(o string) bool { return samePlace(o) == samePlace(u) }); first < i {
					f.add(at, alert.CodeConflict, "is that of /urls/%d", first)
				}
				if strings.Contains(strings.ToLower(samePlace(u))+"/", apiPath+"/") {
					f.add(at, alert.CodeFormat, "must end before %s, which is put behind it", apiPath)
				}
			}
		}
		if sp.URL != "" {
			f.add("/url", alert.CodeConflict, "is for kind %s", KindWebhook)
		}
		if sp.SendResolved != nil && !*sp.SendResolved {
			f.add("/send_resolved", alert.CodeConflict, "an Alertmanager is always told that alerts resolved")
		}
	default:
		f.add("/kind", alert.CodeFormat, "must be %s or %s", KindWebhook, KindAlertmanager)
	}
	if t := sp.Timeout.D(); t != 0 && (t < MinTimeout || t > MaxTimeout) {
		f.add("/timeout", alert.CodeRange, "must be %s to %s", MinTimeout, MaxTimeout)
	}
	if n := len(sp.Labels); n > MaxLabels {
		f.add("/labels", alert.CodeRange, "has %d, the limit is %d", n, MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(sp.Labels)) {
		at, v := "/labels/"+operation.EscapePointer(k), sp.Labels[k]
		switch {
		case !labelForm.MatchString(k) || len(k) > MaxNameBytes || strings.HasPrefix(k, "__"):
			f.add(at, alert.CodeFormat, "must be named by letters, digits and _, at most %d bytes, and begin neither with a digit nor with __", MaxNameBytes)
		case slices.Contains(reserved, k):
			f.add(at, alert.CodeConflict, "each alert has a label of this name by itself; so have %s", strings.Join(reserved, ", "))
		}
		if v == "" || len(v) > alert.MaxShortBytes || !operation.CleanText(v) {
			f.add(at, alert.CodeFormat, "must have 1 to %d bytes without control characters", alert.MaxShortBytes)
		}
		if more, ok := errors.AsType[alert.Faults](alert.CheckSecret(at, v)); ok {
			f.Faults = append(f.Faults, more...)
		}
	}
	if _, err := compileMatchers(sp.Matchers); err != nil {
		if more, ok := err.(alert.Faults); ok { //nolint:errorlint // CompileSilence returns them as they are
			f.Faults = append(f.Faults, more...)
		} else {
			return err
		}
	}
	return f.orNil()
}

// Outdated tells what of a receiver that is kept is refused today: it was taken by an
// earlier plane, or with other addresses allowed. It is told all the same, where that
// can be.
func (s *Service) Outdated(r Receiver) alert.Faults {
	if r.broken {
		return nil // Disabled tells
	}
	out, _ := errors.AsType[alert.Faults](s.check(&r.Spec))
	return out
}

// checkURL holds a URL to what can be known without looking its host up; the rest
// is checked at each dial.
func (s *Service) checkURL(f *faults, at, kind, text string) {
	if text == "" {
		f.add(at, alert.CodeRequired, "must be given")
		return
	}
	if len(text) > MaxURLBytes {
		f.add(at, alert.CodeRange, "has %d bytes, the limit is %d", len(text), MaxURLBytes)
		return
	}
	u, err := url.Parse(text)
	if err != nil || !operation.CleanText(text) || u.Host == "" || u.Hostname() == "" || u.Opaque != "" {
		f.add(at, alert.CodeFormat, "must be an absolute URL")
		return
	}
	switch {
	case u.User != nil:
		f.add(at, alert.CodeFormat, "must not have a user or a password in it")
	case u.Fragment != "":
		f.add(at, alert.CodeFormat, "must not have a fragment")
	case kind == KindAlertmanager && u.RawQuery != "":
		f.add(at, alert.CodeFormat, "must not have a query")
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		f.add(at, alert.CodeFormat, "must be https")
		return
	}
	port := uint64(443)
	if u.Scheme == "http" {
		port = 80
	}
	if p := u.Port(); p != "" {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			f.add(at, alert.CodeRange, "port %.10q is none", p)
			return
		}
	}
	if !portAllowed(uint16(port)) {
		f.add(at, alert.CodeRange, "port %d is refused: 80, 443 and those from 1024 on will do", port)
	}
	host := u.Hostname()
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if err := s.rules().check(netip.AddrPortFrom(ip, uint16(port)), kind, u.Scheme == "http"); err != nil {
			f.add(at, alert.CodeRange, "%s", err)
		}
		return
	}
	if u.Scheme == "http" && (kind == KindWebhook || len(s.Allow) == 0) {
		f.add(at, alert.CodeFormat, "must be https")
	}
}
