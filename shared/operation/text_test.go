package operation

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{ // "" : refused
		"2026-11-29T12:00:00Z":               "2026-11-29T12:00:00Z",
		"2026-11-29t12:00:00z":               "2026-11-29T12:00:00Z",
		"2026-11-29T12:00:00.5Z":             "2026-11-29T12:00:00.5Z",
		"2026-11-29T12:00:00.123456789Z":     "2026-11-29T12:00:00.123456789Z",
		"2026-11-29T12:00:00.1234567891234Z": "2026-11-29T12:00:00.123456789Z",
		"2026-11-29T12:00:00+00:00":          "2026-11-29T12:00:00Z",
		"2026-11-29T12:00:00-00:00":          "2026-11-29T12:00:00Z", // RFC 3339, section 4.3: offset unknown
		"2026-11-29T12:00:00+05:30":          "2026-11-29T06:30:00Z",
		"2026-11-29T12:00:00-23:59":          "2026-11-30T11:59:00Z",
		"2024-02-29T00:00:00Z":               "2024-02-29T00:00:00Z",
		"2016-12-31T23:59:60Z":               "2017-01-01T00:00:00Z",
		"2016-12-31T23:59:60.9Z":             "2017-01-01T00:00:00Z",
		"2017-01-01T05:29:60+05:30":          "2017-01-01T00:00:00Z",
		"0001-01-01T00:00:00Z":               "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59Z":               "9999-12-31T23:59:59Z",

		"": "", "now": "", "2026-11-29": "", "12:00:00Z": "", "1764417600": "",
		"2026-11-29 12:00:00Z": "", "2026-11-29T12:00:00": "", "2026-11-29T12:00Z": "", "2026-11-29T12Z": "",
		"2026-11-29T12:00:00 Z": "", " 2026-11-29T12:00:00Z": "", "2026-11-29T12:00:00Z ": "", "2026-11-29T12:00:00Z\n": "",
		"20261129T120000Z": "", "2026-W48-7T12:00:00Z": "", "2026-333T12:00:00Z": "", "26-11-29T12:00:00Z": "",
		"2026-1-29T12:00:00Z": "", "2026-11-9T12:00:00Z": "", "2026-11-29T1:00:00Z": "", "+2026-11-29T12:00:00Z": "",
		"2026-11-29T12:00:00.Z": "", "2026-11-29T12:00:00,5Z": "", "2026-11-29T12:00:001Z": "", "2026-11-29T12:00:00123Z": "",
		"2026-11-29T12:00:00+0530": "", "2026-11-29T12:00:00+05": "", "2026-11-29T12:00:00+5:30": "", "2026-11-29T12:00:00GMT": "",
		"2026-11-29T12:00:00+24:00": "", "2026-11-29T12:00:00+05:60": "", "2026-11-29T12:00:00Z+05:30": "",
		"2026-13-01T12:00:00Z": "", "2026-00-01T12:00:00Z": "", "2026-11-31T12:00:00Z": "", "2026-11-00T12:00:00Z": "", "2025-02-29T00:00:00Z": "",
		"2026-11-29T24:00:00Z": "", "2026-11-29T12:60:00Z": "", "2026-11-29T12:00:61Z": "", "2026-11-29T12:00:60Z": "", "2016-12-31T22:59:60Z": "",
		"9999-12-31T23:59:59-23:59": "", "0000-01-01T00:00:00+23:59": "", "9999-12-31T23:59:60Z": "",
		"２０２６-11-29T12:00:00Z": "", "2026−11−29T12:00:00Z": "",
		"2026-11-29T12:00:00." + strings.Repeat("1", 100) + "Z": "",
	} {
		got, err := ParseTime(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q: taken as %v", in, got)
		case want != "" && err != nil:
			t.Errorf("%q: %v", in, err)
		case want != "" && got.Format(time.RFC3339Nano) != want:
			t.Errorf("%q: got %s, want %s", in, got.Format(time.RFC3339Nano), want)
		}
	}
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"2026-11-29T12:00:00Z", "2016-12-31T23:59:60+00:00", "2026-11-29t12:00:00.5-05:30", "9999-12-31T23:59:59-23:59", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, err := ParseTime(s)
		if err != nil {
			if !at.IsZero() {
				t.Errorf("%q: a time beside the error", s)
			}
			return
		}
		if _, err := at.MarshalJSON(); err != nil || at.Location() != time.UTC {
			t.Errorf("%q: %v, %v", s, at, err)
		}
		// What the standard library reads strictly is the same instant.
		if want, err := time.Parse(time.RFC3339Nano, strings.ToUpper(s)); err == nil && !want.Equal(at) {
			t.Errorf("%q: %v, the library says %v", s, at, want)
		}
		again, err := ParseTime(at.Format(time.RFC3339Nano))
		if err != nil || !again.Equal(at) {
			t.Errorf("%q: %v is read again as %v, %v", s, at, again, err)
		}
	})
}

func TestCleanText(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"": true, "firmware update": true, "two\nlines\tand a tab": true, "Grüße 👩‍🚀 漢字": true, "a\u00a0b": true, "e\u0301": true,
		"\x00": false, "a\x1bb": false, "\r": false, "\x7f": false, "\u0085": false, "\u009b31m": false,
		"\u2028": false, "\u2029": false, "\ufffd": false, "\xff": false, "\xed\xa0\x80": false, "\xc0\x80": false,
	} {
		if CleanText(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func TestSecretShaped(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"opt_01jqxz3k5m7n9p1r3t5v7w9y1z_" + strings.Repeat("aB3", 10), "key AKIAIOSFODNN7EXAMPLE leaked", "ASIAIOSFODNN7EXAMPLE",
		"-----BEGIN PRIVATE KEY-----", "-----BEGIN OPENSSH PRIVATE KEY-----\nxx", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
		"ghp_" + strings.Repeat("a", 36), "github_pat_" + strings.Repeat("a", 30), "xoxb-1234567890-abc", "hf_" + strings.Repeat("a", 34),
		"sk-" + strings.Repeat("a", 30), "nvapi-" + strings.Repeat("a", 30), "password=hunter2hunter2", `"api_key": "abcdefgh12"`,
		"PASSWD: correcthorse", "Authorization: Bearer abcdefgh", "bearer abcdefghijklmnop", "aws_secret_access_key=wJalrXUtnFEMIK7MDENG",
		`PASSWORD = "two words"`, "DB_PASSWORD='two words'", "AIza" + strings.Repeat("aB3-_", 7), "postgres://u:hunter2@db/x",
	} {
		if !SecretShaped(s) {
			t.Errorf("%q: not seen", s)
		}
	}
	for _, s := range []string{
		"", "firmware update", "rotate the password of the BMC", "the token was revoked", "https://runbooks.example/drain?x=1", "secret: see vault",
		"op_01jqxz3k5m7n9p1r3t5v7w9y1z", "GPU-8f3c0000-0000-0000-0000-000000000000", "sha256:" + strings.Repeat("a", 64), "mail ops@example.com", "eyJhbGciOiJ",
		"team: infra, host: node-1:8080",
	} {
		if SecretShaped(s) {
			t.Errorf("%q: taken for a secret", s)
		}
	}
}

// Code may compare passwords; keys stand in none.
func TestKeyShaped(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		`event.detail.key == "AKIAIOSFODNN7EXAMPLE"`: true, `x == "hf_` + strings.Repeat("a", 34) + `"`: true, "-----BEGIN RSA PRIVATE KEY-----": true,
		"event.detail.token==event.detail.password": false, `event.detail.message.contains("password=hunter2hunter2")`: false,
		`event.detail.message.matches("AKIA[0-9A-Z]{16}")`: false, "https://u:hunter2@host/x": false, "": false,
	} {
		if KeyShaped(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "abc", "äöü", "a👩b", strings.Repeat("漢", 5)} {
		for n := range len(s) + 2 {
			got := cut(s, n)
			if len(got) > n || !utf8.ValidString(got) || !strings.HasPrefix(s, got) || len(s) <= n && got != s || n-len(got) > 3 && got != s {
				t.Errorf("cut(%q, %d) = %q", s, n, got)
			}
		}
	}
}
