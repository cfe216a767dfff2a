package notify

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

// TestSignature is the test vector of the Standard Webhooks libraries
// (standard-webhooks/libraries/go/webhook_test.go).
func TestSignature(t *testing.T) {
	t.Parallel()
	key, err := parseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	s := secrets{Keys: []signing{{Key: key}}}
	got := s.sign(t0, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

// verify checks a request as a receiver does, by one secret.
func verify(t *testing.T, g got, secret string) bool {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", g.id, g.at, g.body)
	want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	for s := range strings.SplitSeq(g.signature, " ") {
		if s == want {
			return true
		}
	}
	return false
}

// TestWebhook: an alert that fires and resolves is told twice, signed, each once;
// what is muted, pending, withdrawn or of another rule is not.
func TestWebhook(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	before := p.alert("before")
	p.tell(alert.TypeFiring, before)
	p.advance(time.Second)
	r, secret := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL + "/hook", Matchers: []alert.Match{{Field: "rule", Op: alert.OpNotEqual, Value: "other"}}})
	a, other, muted, withdrawn := p.alert("hot"), p.alert("other"), p.alert("muted"), p.alert("withdrawn")
	muted.SilencedBy = "sil_1"
	withdrawn.FiredAt = nil
	p.tell(alert.TypePending, withdrawn)
	p.tell(alert.TypeFiring, a, other, muted)
	p.run()
	p.advance(time.Minute)
	a.SilencedBy = "sil_2" // who was told that it fires is told that it is over
	p.tell(alert.TypeResolved, a, other, muted, withdrawn, before)
	p.run()
	p.run()
	all := s.all()
	if len(all) != 2 {
		t.Fatalf("%d messages: %v", len(all), s.ids())
	}
	for i, typ := range []string{alert.TypeFiring, alert.TypeResolved} {
		g := all[i]
		if g.message.Type != typ || g.message.Data.ID != a.ID || g.path != "POST /hook" || !strings.HasPrefix(g.id, "evt_") || strings.Contains(g.id, ".") {
			t.Errorf("message %d: %s %s", i, g.path, g.body)
		}
		if !verify(t, g, secret) {
			t.Errorf("message %d: signature %s does not hold", i, g.signature)
		}
		if len(g.body) > 20<<10 || bytes.Contains(g.body, []byte("history")) || bytes.Contains(g.body, []byte("group_key")) {
			t.Errorf("message %d: %s", i, g.body)
		}
	}
	if all[0].at != fmt.Sprint(t0.Add(time.Second).Unix()) || all[1].at != fmt.Sprint(t0.Add(61*time.Second).Unix()) {
		t.Errorf("timestamps %s, %s", all[0].at, all[1].at)
	}
	if n := len(p.deliveries(r, Delivered)); n != 2 {
		t.Errorf("%d are delivered", n)
	}
	st := p.Metrics.Read()
	if st.Sent != 2 || st.Failed != 0 || st.Latency[0] != 2 {
		t.Errorf("counted %+v", st)
	}
}

// TestRetries: a webhook that fails is tried ten times in a day under one id, then
// it is a dead letter and told; redelivered, it is taken.
func TestRetries(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ok := false
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if !ok {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("hot"))
	p.run()
	var at []time.Duration
	for n := len(s.all()); p.clock().Sub(t0) < 48*time.Hour; p.advance(time.Second) {
		if n == 1 && len(at) == 0 {
			at = append(at, 0)
		}
		due, err := p.db.Due(t.Context(), p.clock(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(due) == 0 {
			left := p.deliveries(r, Pending)
			if len(left) == 0 {
				break
			}
			if next := left[0].Next.Sub(p.clock()); next > 5*time.Second {
				p.advance(next - time.Second)
			}
			continue
		}
		p.serve()
		if now := len(s.all()); now > n {
			n = now
			at = append(at, p.clock().Sub(t0).Truncate(time.Second))
		}
	}
	if len(at) != MaxTries || at[MaxTries-1] < 20*time.Hour || at[MaxTries-1] > 26*time.Hour || at[1] > 7*time.Second {
		t.Errorf("tried at %v", at)
	}
	if ids := s.ids(); len(ids) != 1 {
		t.Errorf("ids %v", ids)
	}
	dead := p.deliveries(r, Failed)
	if len(dead) != 1 || dead[0].LastStatus != 500 || dead[0].LastError != "answered 500" || dead[0].Tries != MaxTries {
		t.Fatalf("dead letters %+v", dead)
	}
	if diff := cmp.Diff([]string{event.TypeNotifyFailing, event.TypeNotifyFailed}, p.told()); diff != "" {
		t.Error(diff)
	}
	ok = true
	if _, err := p.Redeliver(t.Context(), call, "pager", dead[0].ID); err != nil {
		t.Fatal(err)
	}
	p.advance(2 * time.Minute) // behind the pause of a receiver that fails
	p.serve()
	if d := p.deliveries(r, Delivered); len(d) != 1 || d[0].Redeliver != 1 || len(s.ids()) != 1 {
		t.Errorf("redelivered %+v", d)
	}
}

// TestRotation: both secrets sign for the overlap, then the new one alone.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	given := secretText(bytes.Repeat([]byte{7}, minSecretBytes))
	r, first := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL, Secret: given})
	if first != given {
		t.Errorf("the secret is %s", first)
	}
	rotated, second, err := p.Rotate(t.Context(), call, r.Name, "", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if second == first || len(rotated.Secrets) != 2 || rotated.Secrets[0].SHA256 == rotated.Secrets[1].SHA256 {
		t.Errorf("rotated %+v", rotated.Secrets)
	}
	p.tell(alert.TypeFiring, p.alert("one"))
	p.run()
	p.advance(time.Hour)
	p.tell(alert.TypeFiring, p.alert("two"))
	p.run()
	all := s.all()
	if len(all) != 2 || !verify(t, all[0], first) || !verify(t, all[0], second) || verify(t, all[1], first) || !verify(t, all[1], second) {
		t.Errorf("signatures %+v", all)
	}
	list, err := p.Receivers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{first, second} {
		if bytes.Contains(text, []byte(strings.TrimPrefix(secret, "whsec_"))) {
			t.Errorf("the list shows a secret: %s", text)
		}
	}
}
