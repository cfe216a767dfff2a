package operation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// nested is so many lists, one in the other, in an object.
func nested(levels int) string {
	return `{"a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`
}

func TestCheckJSON(t *testing.T) {
	t.Parallel()
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":{"a":1}`, i)
	}
	for _, good := range []string{
		`{}`, ` { "a" : [ 1 , -2.5e3 , true , null , "x" ] } `, `{"a":{"a":{"a":1}},"b":{"a":1}}`, `{"pair":"\ud83d\ude00\uFFFD\u0000","text":"a\\ud800 \"b\" \u00e9"}`,
		`{"n":1.7e308,"m":9007199254740993,"tiny":1e-999,"digits":` + strings.Repeat("9", 308) + `}`, nested(MaxJSONDepth), `{` + strings.Join(many, ",") + `}`, `7`, `"x"`,
	} {
		if err := CheckJSON("", []byte(good)); err != nil {
			t.Errorf("%.60s: %v", good, err)
		}
		if got := MendJSON([]byte(good)); string(got) != good {
			t.Errorf("%.60s is mended: %s", good, got)
		}
	}
	for _, tt := range []struct{ bad, pointer, says string }{
		{`{"message":"\ud800"}`, "/message", `surrogate pair (\ud800)`},
		{`{"a":[0,{"b/c":"x\uDFFFy"}]}`, "/a/1/b~1c", "surrogate"},
		{`{"a":"\ud800\ud800\udc00"}`, "/a", "surrogate"},
		{`{"a":"\udc00\ud800"}`, "/a", "surrogate"},
		{`{"a":"\ud800\n"}`, "/a", "surrogate"},
		{`{"\ud800":1}`, "/�", "surrogate"},
		{nested(MaxJSONDepth + 1), "/a" + strings.Repeat("/0", MaxJSONDepth-1), "32 levels"},
		{nested(5000), "/a" + strings.Repeat("/0", MaxJSONDepth-1), "32 levels"},
		{strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), strings.Repeat("/a", MaxJSONDepth), "32 levels"},
		{`{"a":1e999}`, "/a", "no double can hold (1e999)"},
		{`{"a":[1,-1E+400]}`, "/a/1", "no double"},
		{`{"a":` + strings.Repeat("9", 400) + `}`, "/a", "no double"},
		{`{"a":1,"b":{"a":2},"a":3}`, "/a", "twice"},
		{`{"b":[{"a":1,"\u0061":3}]}`, "/b/0/a", "twice"},
		{`{` + strings.Join(many, ",") + `,"k3":1}`, "/k3", "twice"},
		{"{\"a\":\"\xff\"}", "", "UTF-8"},
		{`{"a":`, "", "not JSON"},
		{`{} {}`, "", "not JSON"},
		{``, "", "not JSON"},
	} {
		err := CheckJSON("/root", []byte(tt.bad))
		var wrong *JSONError
		if !errors.As(err, &wrong) || wrong.Pointer != "/root"+tt.pointer || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%.60s: %v", tt.bad, err)
		}
	}
}

func TestMendJSON(t *testing.T) {
	t.Parallel()
	for bad, want := range map[string]string{
		`{"a":"x\ud800y","b":[1e999,1e5]}`: `{"a":"x` + "�" + `y","b":["1e999",1e5]}`,
		nested(MaxJSONDepth + 1):           strings.Replace(nested(MaxJSONDepth), "[]", "[null]", 1),
		`{"a":`:                            `{"a":`,
		``:                                 ``,
	} {
		if diff := cmp.Diff(want, string(MendJSON([]byte(bad)))); diff != "" {
			t.Errorf("%s: %s", bad, diff)
		}
	}
	if err := CheckJSON("", MendJSON([]byte(nested(9000)))); err != nil {
		t.Error(err)
	}
}

// TestReadableJSON: whatever comes, what is taken and what is mended can be read,
// and what is mended is taken.
func TestReadableJSON(t *testing.T) {
	t.Parallel()
	parts := []string{`{`, `}`, `[`, `]`, `"a"`, `"b"`, `"\ud800"`, `"\udc00\ud800\udc00"`, `:`, `,`, `1`, `-0.5`, `1e999`, `null`, ` `, "\"\xff\"", `"\\"`, `"\"`}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(parts)-1), 0, 40).Draw(t, "parts") {
			b.WriteString(parts[i])
		}
		raw := []byte(b.String())
		err := CheckJSON("", raw)
		if err == nil && !json.Valid(raw) {
			t.Fatalf("%s is taken", raw)
		}
		if got := MendJSON(raw); json.Valid(raw) && len(raw) > 0 {
			if err := CheckJSON("", got); err != nil && !strings.Contains(err.Error(), "twice") {
				t.Fatalf("%s is mended to %s: %v", raw, got, err)
			}
		}
	})
}

func BenchmarkCheckJSON(b *testing.B) {
	raw := []byte(`{"node":"gpu-node-04","node_uid":"0f9c8b1e-3c5d-4e0e-9b1f-3f5a7a3e1c11","xid":79,"class":"fatal","text":"GPU has fallen off the bus","count":3,"first":"2026-07-01T12:00:00Z"}`)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := CheckJSON("", raw); err != nil {
			b.Fatal(err)
		}
	}
}
