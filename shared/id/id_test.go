package id

import (
	"strings"
	"testing"
	"time"
)

var at = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func TestNew(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, when := range []time.Time{at, {}, time.Unix(-1, 0), time.Unix(1<<40, 0)} {
		for range 1000 {
			s := New(Node, when)
			if !Valid(Node, s) || Prefix(s) != Node || s != strings.ToLower(s) || seen[s] {
				t.Fatalf("%v: %q", when, s)
			}
			seen[s] = true
		}
	}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	first := Derive(Node, "a", "b")
	if again := Derive(Node, "a", "b"); first != again {
		t.Errorf("the same parts give %s and %s", first, again)
	}
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"b", "a"}, {"a", "b", ""}} {
		s := Derive(Node, parts...)
		if !Valid(Node, s) {
			t.Errorf("%q: %q", parts, s)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%q and %q have one id", parts, other)
		}
		seen[s] = parts
	}
	// An id is kept for years: this value must not change.
	if got := Derive(Node, "clu", "node", "uid"); got != golden {
		t.Errorf("derived ids have changed: %s", got)
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	good := New(Node, at)
	for s, want := range map[string]bool{
		good: true, "nod_00000000000000000000000000": true, "nod_7zzzzzzzzzzzzzzzzzzzzzzzzz": true,
		"nod_8zzzzzzzzzzzzzzzzzzzzzzzzz": false, // more than 128 bits
		"":                               false, "nod": false, "nod_": false, "_" + good[4:]: false, strings.ToUpper(good): false, "nod_" + strings.ToUpper(good[4:]): false,
		good + "0": false, good[:29]: false, " " + good: false, good + "\n": false, "op_" + good[4:]: false, "nod-" + good[4:]: false,
		"nod_0000000000000000000000000i": false, "nod_0000000000000000000000000l": false, "nod_0000000000000000000000000o": false, "nod_0000000000000000000000000u": false,
		"nod_000000000000000000000000ı": false, "nod_00000000000000000000000K": false, "nod_0000000000000000000000000\x00": false, "nod_nod_0000000000000000000000": false,
	} {
		if Valid(Node, s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func FuzzValid(f *testing.F) {
	f.Add(New(Node, at))
	f.Add("nod_7zzzzzzzzzzzzzzzzzzzzzzzzz")
	f.Add("nod_")
	f.Fuzz(func(t *testing.T, s string) {
		if !Valid(Node, s) {
			return
		}
		if len(s) != 30 || Prefix(s) != Node || s != strings.ToLower(s) || strings.Trim(s[4:], "0123456789abcdefghjkmnpqrstvwxyz") != "" {
			t.Errorf("%q is taken", s)
		}
	})
}

// golden is the id that the parts clu, node, uid give.
const golden = "nod_186edqrd5q8ydsbh8rf7apn3hc"
