package loop

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"log/slog"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"node drained", "node drained"},
		{"Authorization: Bearer abc.def-123456 sent", "Authorization: Bearer [redacted] sent"},
		{"basic dXNlcjpwYXNzd29yZA==", "basic [redacted]"},
		{"using opt_0123456789abcdef now", "using [redacted] now"},
		{"key AKIAIOSFODNN7EXAMPLE end", "key [redacted] end"},
		{"jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ_x end", "jwt [redacted] end"},
		{"pull https://user:s3cret@registry/x failed", "pull https://[redacted]registry/x failed"},
		{"PASSWORD=hunter2, user=x", "PASSWORD=[redacted], user=x"},
		{`{"password": "a b c", "n": 1}`, `{"password": [redacted], "n": 1}`},
		{"client_secret: 'x y'", "client_secret: [redacted]"},
		{"a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAAAA\n-----END RSA PRIVATE KEY-----\nb", "a\n[redacted]\nb"},
		{"-----BEGIN PRIVATE KEY-----\nMIIEcut", "[redacted]"},
		{"bell\x07 nul\x00 bad\xff", "bell  nul  bad "},
		{"tokens were counted", "tokens were counted"},
	} {
		if got := redact(tc.in, 1000); got != tc.want {
			t.Errorf("redact(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
	if got := redact(strings.Repeat("é", 100), 51); len(got) != 50 || !utf8.ValidString(got) {
		t.Errorf("cut to %d bytes", len(got))
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("Bearer abcdefgh", 10)
	f.Add("\xff\xfe-----BEGIN KEY-----", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 4096)
		got := redact(s, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("redact(%q, %d) = %q", s, limit, got)
		}
		if !strings.Contains(s, hidden) && strings.Contains(redact("x opt_"+strings.Repeat("a", 20)+" "+s, 4096), "opt_aaaa") {
			t.Error("a token left")
		}
	})
}

func FuzzDecodeDoorbell(f *testing.F) {
	cluster := id.Derive(id.Cluster, "c")
	f.Add(doorbell(protocol.KindOperation, id.Derive(id.Operation, "o"), cluster, 1))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := decodeDoorbell(body, cluster)
		if err != nil {
			return
		}
		if d.Version != protocol.Version || d.Cluster != cluster || d.Generation < 0 ||
			!id.Valid(id.Operation, d.Operation) && !id.Valid(id.Preview, d.Preview) {
			t.Errorf("took %+v", d)
		}
	})
}

func TestRedactJSON(t *testing.T) {
	t.Parallel()
	in := json.RawMessage(`{"a":[{"api_key":"xyz"},"Bearer abcdefgh"],"n":12345678901234567890}`)
	if got := string(redactJSON(in, 1000)); got != `{"a":[{"api_key":"[redacted]"},"Bearer [redacted]"],"n":12345678901234567890}` {
		t.Error(got)
	}
	if got := string(redactJSON(in, 10)); got != `{"omitted":"too large"}` {
		t.Error(got)
	}
	if redactJSON(nil, 10) != nil {
		t.Error("nothing became something")
	}
}

func TestKeepSurvivesARestart(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	log := slog.New(slog.DiscardHandler)
	k, err := openKeep(dir, clock, log)
	if err != nil {
		t.Fatal(err)
	}
	op := id.Derive(id.Operation, "o")
	r := protocol.Report{Operation: op, Generation: 3, N: 7, Final: &protocol.Final{Outcome: protocol.FinalSucceeded},
		Steps: []protocol.StepReport{{StepID: "s", AgoMS: 5}}}
	k.guard(r, "cor")
	k.guard(protocol.Report{Operation: op, Generation: 3, N: 8}, "cor") // guarded already
	for name, body := range map[string]string{"report-x-1.json": "{", "report-y-1.json": `{"report":{"operation":"../x","generation":1}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Second)
	k, err = openKeep(dir, clock, log)
	if err != nil {
		t.Fatal(err)
	}
	due := k.dueNow(0, 10)
	if len(due) != 1 {
		t.Fatalf("%d kept", len(due))
	}
	r.Steps[0].AgoMS = 1005
	if diff := cmp.Diff(r, due[0].aged(now)); diff != "" {
		t.Error(diff)
	}
	k.tell(due[0])
	if k, _ = openKeep(dir, clock, log); !k.dueNow(0, 10)[0].Told {
		t.Error("it forgot that it told")
	}
	k.drop(op, 3)
	if files, _ := filepath.Glob(filepath.Join(dir, "report-*.json")); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
	for g := range int64(keptMost + 5) {
		now = now.Add(time.Second)
		k.entries[keptKey{op, g + 1}] = &keptReport{Report: protocol.Report{Operation: op, Generation: g + 1}, SavedAt: now}
	}
	k.mu.Lock()
	k.bound()
	k.mu.Unlock()
	if len(k.entries) != keptMost || k.has(op, 5) || !k.has(op, 6) {
		t.Errorf("%d kept", len(k.entries))
	}
}

// A long draft goes in several reports, each within the plane's limits, and is
// acknowledged only when all of it has been.
func TestOutboxSplits(t *testing.T) {
	bubble(t, func(t *testing.T, _ *bench) {
		var pushed int
		o := newOutbox(&protocol.Assignment{Operation: "op", Generation: 2}, func() time.Duration { return time.Second }, func() pace { return paceOf(protocol.HeartbeatAnswer{}) }, func(*outbox) { pushed++ })
		open := o.begin(protocol.Command{ID: "open"})
		for range 2*reportCommands + 10 {
			o.end(o.begin(protocol.Command{ID: "c"}), "ok", "")
		}
		for range reportSteps + 1 {
			o.step(false, protocol.StepReport{StepID: "s"})
		}
		seq := o.add(true, func(d *draft) { d.final = &protocol.Final{Outcome: protocol.FinalFailed} })
		o.end(open, "timeout", "")
		commands, steps, done := 0, 0, false
		for n := int64(1); !done; n++ {
			r := o.freeze()
			if r == nil || r.N != n || len(r.Commands) > protocol.MaxCommands || len(r.Steps) > 100 {
				t.Fatalf("report %d: %+v", n, r)
			}
			commands, steps = commands+len(r.Commands), steps+len(r.Steps)
			if n == 1 && r.Commands[0].Category != "timeout" {
				t.Error("a command that ended before it was sent is in flight")
			}
			if again := o.freeze(); cmp.Diff(r, again) != "" {
				t.Error("a resend differs")
			}
			done = r.Final != nil
			o.answered()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := o.wait(ctx, seq); (err == nil) != done {
				t.Errorf("report %d: acknowledged: %v", n, err)
			}
			cancel()
		}
		if commands != 2*reportCommands+11 || steps != reportSteps+1 {
			t.Errorf("%d commands, %d steps", commands, steps)
		}
		o.close(errLeaseOver)
	})
}
