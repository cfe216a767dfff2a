package answer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnswerFitsATerminationMessage(t *testing.T) {
	t.Parallel()
	many := make([]Warning, 300)
	for i := range many {
		many[i] = Warning{Code: WarningCRDs, Detail: strings.Repeat("x", 40)}
	}
	tests := map[string]Answer{
		"short":          {Verb: Upgrade, Detail: "ok", From: "1.0.0", To: "1.1.0", Release: &Release{Revision: 4, Status: "deployed", Chart: "1.1.0"}},
		"long detail":    {Verb: Upgrade, Code: UpgradeFailed, Detail: strings.Repeat("é", 9000)},
		"escaped detail": {Verb: Upgrade, Code: UpgradeFailed, Detail: strings.Repeat("\x01\"", 9000)},
		"many warnings":  {Verb: Preflight, Detail: strings.Repeat("a", 3000), Warnings: many},
	}
	for name, a := range tests {
		b := a.Encode()
		if len(b) > MaxBytes {
			t.Errorf("%s: %d bytes", name, len(b))
		}
		got, err := Decode(string(b))
		if err != nil || got.Code != a.Code || got.Verb != a.Verb || got.Detail == "" && a.Detail != "" {
			t.Errorf("%s: %v, read back %+v", name, err, got)
		}
	}
	a := tests["short"]
	a.Version = Version
	got, err := Decode(string(tests["short"].Encode()))
	if diff := cmp.Diff(a, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if len(tests["many warnings"].Warnings[0].Detail) != 40 {
		t.Error("encoding changed the answer")
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "panic: nil", `{"version":2}`, `{}`, `[]`} {
		if _, err := Decode(text); !errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
