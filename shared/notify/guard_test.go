package notify

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestAddresses: what may be dialled, by the address that a name has at the dial.
func TestAddresses(t *testing.T) {
	t.Parallel()
	g := guard{allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("127.0.0.0/8")}}
	for _, c := range []struct {
		address, kind string
		plain, ok     bool
	}{
		{"93.184.216.34:443", KindWebhook, false, true},
		{"93.184.216.34:80", KindWebhook, true, false},
		{"93.184.216.34:22", KindWebhook, false, false},
		{"[2606:2800:220:1::1]:443", KindWebhook, false, true},
		{"10.1.2.3:443", KindWebhook, false, true},
		{"10.1.2.3:9093", KindWebhook, true, false},
		{"10.1.2.3:9093", KindAlertmanager, true, true},
		{"10.2.2.3:443", KindWebhook, false, false},
		{"[::ffff:10.2.2.3]:443", KindWebhook, false, false},
		{"127.0.0.1:8080", KindWebhook, true, true},
		{"[::1]:443", KindWebhook, false, false},
		{"169.254.169.254:80", KindWebhook, false, false},
		{"[fd00:ec2::254]:443", KindWebhook, false, false},
		{"[fe80::1%25eth0]:443", KindWebhook, false, false},
		{"[64:ff9b::a9fe:a9fe]:443", KindWebhook, false, false},
		{"[2002:a9fe:a9fe::1]:443", KindWebhook, false, false},
		{"[::a9fe:a9fe]:443", KindWebhook, false, false},
		{"0.0.0.0:443", KindWebhook, false, false},
		{"100.100.100.200:443", KindWebhook, false, false},
		{"168.63.129.16:443", KindWebhook, false, false},
		{"224.0.0.1:443", KindWebhook, false, false},
		{"255.255.255.255:443", KindWebhook, false, false},
		{"no address", KindWebhook, false, false},
	} {
		err := g.control(c.kind, c.plain)(t.Context(), "tcp4", strings.Replace(c.address, "%25", "%", 1), nil)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errAddress) {
			t.Errorf("%s %s plain %v: %v", c.kind, c.address, c.plain, err)
		}
	}
}

// TestBadInput: each fault names its field.
func TestBadInput(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.Allow = nil
	good := Spec{Name: "r", Kind: KindWebhook, URL: "https://hook.example/x"}
	with := func(f func(*Spec)) Spec { s := good; f(&s); return s }
	off := false
	for name, c := range map[string]struct {
		sp Spec
		at string
	}{
		"name":           {with(func(s *Spec) { s.Name = "A b" }), "/name"},
		"kind":           {with(func(s *Spec) { s.Kind = "email" }), "/kind"},
		"no url":         {with(func(s *Spec) { s.URL = "" }), "/url"},
		"long url":       {with(func(s *Spec) { s.URL += strings.Repeat("x", MaxURLBytes) }), "/url"},
		"relative":       {with(func(s *Spec) { s.URL = "/x" }), "/url"},
		"no scheme":      {with(func(s *Spec) { s.URL = "hook.example/x" }), "/url"},
		"other scheme":   {with(func(s *Spec) { s.URL = "gopher://hook.example" }), "/url"},
		"plain":          {with(func(s *Spec) { s.URL = "http://hook.example" }), "/url"},
		"user":           {with(func(s *Spec) { s.URL = "https://u:p@hook.example" }), "/url"},
		"fragment":       {with(func(s *Spec) { s.URL = "https://hook.example/#x" }), "/url"},
		"port":           {with(func(s *Spec) { s.URL = "https://hook.example:25" }), "/url"},
		"port 0":         {with(func(s *Spec) { s.URL = "https://hook.example:0" }), "/url"},
		"loopback":       {with(func(s *Spec) { s.URL = "https://127.0.0.1" }), "/url"},
		"localhost":      {with(func(s *Spec) { s.URL = "https://localhost:8443" }), "/url"},
		"mapped":         {with(func(s *Spec) { s.URL = "https://[::ffff:127.0.0.1]" }), "/url"},
		"metadata":       {with(func(s *Spec) { s.URL = "https://169.254.169.254/latest" }), "/url"},
		"urls":           {with(func(s *Spec) { s.URLs = []string{"https://x.example"} }), "/urls"},
		"labels":         {with(func(s *Spec) { s.Labels = map[string]string{"a": "b"} }), "/labels"},
		"short timeout":  {with(func(s *Spec) { s.Timeout = 1 }), "/timeout"},
		"long timeout":   {with(func(s *Spec) { s.Timeout = alert.Duration(31 * time.Second) }), "/timeout"},
		"matcher":        {with(func(s *Spec) { s.Matchers = []alert.Match{{Field: "nothing", Op: "="}} }), "/matchers/0/field"},
		"pattern":        {with(func(s *Spec) { s.Matchers = []alert.Match{{Field: "rule", Op: "=~", Value: "("}} }), "/matchers/0/value"},
		"secret":         {with(func(s *Spec) { s.Secret = "hunter2" }), "/secret"},
		"short secret":   {with(func(s *Spec) { s.Secret = secretText(make([]byte, minSecretBytes-1)) }), "/secret"},
		"long secret":    {with(func(s *Spec) { s.Secret = secretText(make([]byte, maxSecretBytes+1)) }), "/secret"},
		"no urls":        {Spec{Name: "r", Kind: KindAlertmanager}, "/urls"},
		"a query":        {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example?a=b"}}, "/urls/0"},
		"label name":     {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"a-b": "c"}}, "/labels/a-b"},
		"label, no name": {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"": "c"}}, "/labels/"},
		"label, a path":  {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"a/b~": "c"}}, "/labels/a~1b~0"},
		"label, inner":   {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"__a": "c"}}, "/labels/__a"},
		"label value":    {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"a": ""}}, "/labels/a"},
		"alertname":      {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"alertname": "c"}}, "/labels/alertname"},
		"severity":       {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"severity": "c"}}, "/labels/severity"},
		"cluster":        {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"cluster": "c"}}, "/labels/cluster"},
		"folded":         {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"folded": "c"}}, "/labels/folded"},
		"not resolved":   {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, SendResolved: &off}, "/send_resolved"},
		"secret, pushes": {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Secret: secretText(make([]byte, 32))}, "/secret"},
	} {
		_, _, err := p.Create(t.Context(), call, c.sp)
		faults, ok := errors.AsType[alert.Faults](err)
		if !ok || faults[0].Pointer != c.at {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := p.Create(t.Context(), call, good); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Create(t.Context(), call, good); err == nil || !strings.Contains(err.Error(), "name_taken") {
		t.Errorf("a second of the name: %v", err)
	}
}
