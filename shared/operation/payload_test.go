package operation

import (
	"os"
	"strings"
	"testing"
)

// TestPayloadsAreDocumented: each field of each type's payload says what it is for,
// and the page on operations tells the same. With OPSPLANE_WRITE=1 it writes it.
func TestPayloadsAreDocumented(t *testing.T) {
	t.Parallel()
	for _, typ := range Types() {
		told := map[string]bool{}
		for _, f := range PayloadOf(typ) {
			if told[f.Name] = true; f.About == "" || f.Values == "" {
				t.Errorf("%s: nothing is said of the field %s: %+v", typ, f.Name, f)
			}
		}
		for name := range about[typ] {
			if !told[name] {
				t.Errorf("%s has no field %s", typ, name)
			}
		}
	}
	const page, begin, end = "../../infra/docs/kubernetes.md", "<!-- payloads: generated, see shared/operation -->\n", "<!-- end of payloads -->"
	was, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(was), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the payloads", page)
	}
	switch is := head + begin + PayloadTable() + end + tail; {
	case is == string(was):
	case os.Getenv("OPSPLANE_WRITE") != "":
		if err := os.WriteFile(page, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s tells other payloads than the types take; OPSPLANE_WRITE=1 writes it", page)
	}
}
