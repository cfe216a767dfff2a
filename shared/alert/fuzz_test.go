package alert

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseRule: whatever people send, it is a rule, or Faults, and a rule that
// was taken is read back as it was.
func FuzzParseRule(f *testing.F) {
	files, err := filepath.Glob("shipped/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(goodRule))
	f.Add([]byte(`{"name":"x","on":["node.left"],"flap":{"changes":4,"window":"7d"}}`))
	f.Add([]byte("? [a]\n: b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRule(data)
		if err != nil {
			var faults Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("%v is no Faults", err)
			}
			return
		}
		if _, err := Compile(*r, "rul_x", 1); err != nil {
			return
		}
		again, err := ParseRule(encode(t, r))
		if err != nil || Digest(again) != Digest(r) {
			t.Fatalf("read back: %v %s", err, cmp.Diff(r, again))
		}
	})
}
