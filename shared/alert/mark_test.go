package alert

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestByteOrderMark: what an editor puts before a text changes nothing of it, not the
// places of faults either; other encodings are told.
func TestByteOrderMark(t *testing.T) {
	t.Parallel()
	const mark = "\ufeff"
	for _, text := range []string{"name: x\non: [node.left]\n", `{"name":"x","on":["node.left"]}`, "# a comment\n---\nname: x\non: [node.left]\n"} {
		want, err := ParseRule([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseRule([]byte(mark + text))
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%q: %v %s", text, err, cmp.Diff(want, got))
		}
	}
	for _, text := range []string{"nope: 1\n", `{"nope":1}`} {
		_, want := ParseRule([]byte(text))
		if _, got := ParseRule([]byte(mark + text)); want == nil || got == nil || got.Error() != want.Error() {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"\xff\xfen\x00a\x00", "name: \"\xe4\"\n", mark + mark + "name: x\non: [node.left]\n"} {
		var faults Faults
		if _, err := ParseRule([]byte(text)); !errors.As(err, &faults) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseRule([]byte("\xff\xfen\x00")); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Error(err)
	}
}

// TestDecodeTimes: by the strict grammar, and what is none is told without the words
// of a programming language.
func TestDecodeTimes(t *testing.T) {
	t.Parallel()
	var v struct {
		At   time.Time  `json:"at"`
		Then *time.Time `json:"then"`
	}
	if err := Decode([]byte("at: 2026-07-01T12:00:00+02:00\nthen: \"2026-07-01T12:00:00Z\"\n"), &v); err != nil || v.At.Hour() != 10 || v.Then == nil || v.Then.Hour() != 12 {
		t.Errorf("%+v %v", v, err)
	}
	for _, bad := range []string{`"yesterday"`, `7`, `"2026-07-01"`, `[]`} {
		err := Decode([]byte(`{"then":`+bad+`}`), &v)
		var faults Faults
		if !errors.As(err, &faults) || faults[0].Pointer != "/then" || !strings.Contains(faults[0].Detail, "must be an RFC 3339 timestamp") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
