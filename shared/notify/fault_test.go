package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// errCrash is that the process ended.
var errCrash = errors.New("crashed")

// crashing is a ledger whose process ends at its at'th commit: before it, or after.
type crashing struct {
	ledger.Ledger
	mu      sync.Mutex
	n, at   int
	applied bool
}

func (l *crashing) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	l.n++
	dead, now := l.n > l.at, l.n == l.at
	l.mu.Unlock()
	if dead || now && !l.applied {
		return errCrash
	}
	if err := l.Ledger.Commit(ctx, ws...); err != nil {
		return err
	}
	if now {
		return errCrash
	}
	return nil
}

// TestCrashes: a process that ends at any of its commits, before or after it, and
// another that goes on: each transition is made one message, and none is lost; what
// is sent twice has the same id.
func TestCrashes(t *testing.T) {
	t.Parallel()
	night := func(at int, applied bool) (commits int) {
		p := setup(t)
		s := newSite(t, p, nil)
		r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
		am := newFake(t, p)
		rm, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
		var alerts []*alert.Alert
		for i := range 15 {
			alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
		}
		p.tell(alert.TypeFiring, alerts...)
		p.tell(alert.TypeResolved, alerts[:5]...)
		c := &crashing{Ledger: p.db, at: at, applied: applied}
		one := p.another(c)
		one.roots = p.roots
		_ = one.Follow(t.Context(), stream)
		for _, x := range []Receiver{r, rm} {
			_ = one.Deliver(t.Context(), record.LaneKey(x.ID))
		}
		p.advance(2 * time.Minute) // the dead one's leases end
		p.run()
		if ids := s.ids(); len(ids) != 20 {
			t.Errorf("crash at %d (applied %v): %d messages came", at, applied, len(ids))
		}
		if d := p.deliveries(r, ""); len(d) != 20 || len(p.deliveries(r, Delivered)) != 20 {
			t.Errorf("crash at %d (applied %v): %d messages were made", at, applied, len(d))
		}
		if firing := am.firing(p.clock()); len(firing) != 10 {
			t.Errorf("crash at %d (applied %v): the Alertmanager has %d", at, applied, len(firing))
		}
		return c.n
	}
	commits := night(1<<30, false)
	if commits < 30 {
		t.Fatalf("the night is too quiet: %d commits", commits)
	}
	for at := 1; at <= commits; at += 1 + at/8 {
		night(at, false)
		night(at, true)
	}
}

// TestTwoNotifiers: two at once make each message once, and send it once.
func TestTwoNotifiers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	var wg sync.WaitGroup
	other := p.another(p.db)
	other.roots = p.roots
	for i := range 100 {
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("rule%d", i)))
		for _, x := range []*Service{p.Service, other} {
			wg.Go(func() {
				if err := x.Follow(t.Context(), stream); err != nil {
					t.Error(err)
				}
				if err := x.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
					t.Error(err)
				}
			})
		}
		if i%10 == 9 {
			wg.Wait()
		}
	}
	wg.Wait()
	p.run()
	ids := s.ids()
	if len(ids) != 100 || len(p.deliveries(r, Delivered)) != 100 {
		t.Errorf("%d messages came, %d are delivered", len(ids), len(p.deliveries(r, Delivered)))
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// TestFlood: a thousand alerts at once reach a receiver that works while one that
// never answers and one that fails keep only their own waiting.
func TestFlood(t *testing.T) {
	t.Parallel()
	p := setup(t)
	stuck := make(chan struct{})
	slow := newSite(t, p, func(_ http.ResponseWriter, rq *http.Request, _ int) {
		select {
		case <-stuck:
		case <-rq.Context().Done():
		}
	})
	failing := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusBadGateway) })
	good := newSite(t, p, nil)
	defer close(stuck)
	var rs []Receiver
	for name, s := range map[string]*site{"slow": slow, "failing": failing, "good": good} {
		r, _ := p.receiver(Spec{Name: name, Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(time.Second)})
		rs = append(rs, r)
	}
	var alerts []*alert.Alert
	for i := range 1000 {
		alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	began := time.Now()
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	t.Logf("1,000 alerts for 3 receivers: made in %s", time.Since(began))
	began = time.Now()
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			if err := p.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
				t.Error(err)
			}
			if r.Name == "good" {
				t.Logf("and sent to one in %s", time.Since(began))
			}
		})
	}
	wg.Wait()
	if n := len(good.ids()); n != 1000 || len(good.all()) != 1000 {
		t.Errorf("%d of 1,000 came, in %d requests", n, len(good.all()))
	}
	// One round, and then a pause: neither is hammered.
	if n, m := len(slow.all()), len(failing.all()); n > webhookRound || m > webhookRound {
		t.Errorf("the slow one got %d requests, the failing one %d", n, m)
	}
	for _, r := range rs {
		if r.Name == "slow" {
			d := p.deliveries(r, Pending)
			if len(d) != 1000 {
				t.Errorf("%d wait for the slow one", len(d))
			}
			tried := 0
			for _, x := range d {
				if x.LastError == "no answer in time" {
					tried++
				}
			}
			if tried == 0 {
				t.Error("none says that there was no answer in time")
			}
		}
	}
}

// TestAnswers: what a receiver answers, and what becomes of the message.
func TestAnswers(t *testing.T) {
	t.Parallel()
	target := newSite(t, nil, nil)
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter)
		state  State
		err    string
		pause  time.Duration // at least
		events []string
	}{
		{"204", func(w http.ResponseWriter) { w.WriteHeader(204) }, Delivered, "", 0, nil},
		{"redirect", func(w http.ResponseWriter) { w.Header().Set("Location", target.URL); w.WriteHeader(307) }, Pending, "answered 307: redirects are not followed", 0, nil},
		{"404", func(w http.ResponseWriter) { w.WriteHeader(404) }, Pending, "answered 404", 0, nil},
		{"gone", func(w http.ResponseWriter) { w.WriteHeader(410) }, Failed, "answered 410", 0, []string{event.TypeNotifyFailed, event.TypeNotifyDisabled}},
		{"429", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "600"); w.WriteHeader(429) }, Pending, "answered 429", 10 * time.Minute, nil},
		{"503, date", func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", t0.Add(20*time.Minute).Format(http.TimeFormat))
			w.WriteHeader(503)
		}, Pending, "answered 503", 20 * time.Minute, nil},
		{"503, for a year", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "31536000"); w.WriteHeader(503) }, Pending, "answered 503", time.Hour, nil},
		{"500, long", func(w http.ResponseWriter) { w.WriteHeader(500); _, _ = w.Write(make([]byte, 1<<20)) }, Pending, "answered 500", 0, nil},
		{"200, endless", func(w http.ResponseWriter) {
			for range 100 {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, Delivered, "", 0, nil},
		{"headers, long", func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 64<<10)) }, Pending, "net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 16384 bytes; aborted", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { c.answer(w) })
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.alert("a"))
			p.run()
			d := p.deliveries(r, "")
			if len(d) != 1 || d[0].State != c.state || d[0].LastError != c.err {
				t.Fatalf("%d are made, it is %s, %s", len(d), d[0].State, d[0].LastError)
			}
			if c.pause > 0 {
				if next := d[0].Next.Sub(t0); next < c.pause || next > c.pause+time.Hour {
					t.Errorf("next after %s", next)
				}
				p.tell(alert.TypeFiring, p.alert("b"))
				p.advance(c.pause - 2*time.Second)
				if p.run(); len(s.all()) != 1 {
					t.Error("the receiver was not left alone")
				}
			}
			if diff := cmp.Diff(c.events, p.told()); diff != "" {
				t.Error(diff)
			}
			got, err := p.Receiver(t.Context(), r.ID)
			if err != nil || (got.Disabled != nil) != (c.name == "gone") {
				t.Errorf("disabled %+v, %v", got.Disabled, err)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(target.all()); n != 0 {
			t.Errorf("a redirect was followed %d times", n)
		}
	})
}

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

// TestInsideIsRefused: a name of an address inside is refused when it is dialled,
// whatever it was before; the receiver's server gets nothing.
func TestInsideIsRefused(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.Allow = nil
	s := newSite(t, p, nil)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// localhost itself is refused at once; a name that leads there, at the dial.
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: "https://hook.example:" + port})
	c := p.client(KindWebhook, "https")
	rq, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://localhost:"+port, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if rs, err := c.Do(rq); err == nil || !strings.Contains(err.Error(), "the address is refused") {
		if rs != nil {
			_ = rs.Body.Close()
		}
		t.Errorf("a dial to loopback: %v", err)
	}
	if len(s.all()) != 0 || r.ID == "" {
		t.Error("it was told")
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
		"label name":     {Spec{Name: "r", Kind: KindAlertmanager, URLs: []string{"https://x.example"}, Labels: map[string]string{"a-b": "c"}}, "/labels"},
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
