package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"pgregory.net/rapid"
)

// TestSizeBoundsTheAnswer: an answer that is counted as small enough is.
func TestSizeBoundsTheAnswer(t *testing.T) {
	t.Parallel()
	text := rapid.Custom(func(t *rapid.T) string {
		s := rapid.SampledFrom([]string{"x", "\x00", "\x1f", "\x7f", "\n", `"`, `\`, "<", ">", "&", "\u2028", "\u00e9", "\U0001F600", "\xff"}).Draw(t, "piece")
		return strings.Repeat(s, rapid.IntRange(0, 2000).Draw(t, "times"))
	})
	rapid.Check(t, func(t *rapid.T) {
		w := newRecorder(http.MethodGet)
		w.header["X-A"] = rapid.SliceOfN(text, 0, 3).Draw(t, "field")
		w.header["Set-Cookie"] = rapid.SliceOfN(text, 0, 3).Draw(t, "cookies")
		if _, err := w.Write([]byte(text.Draw(t, "body") + text.Draw(t, "more"))); err != nil {
			t.Fatal(err)
		}
		a := w.answer()
		for name, encode := range map[string]func(events.APIGatewayV2HTTPResponse) (int, error){
			"escaping for HTML": func(a events.APIGatewayV2HTTPResponse) (int, error) { b, err := json.Marshal(a); return len(b), err },
			"not escaping": func(a events.APIGatewayV2HTTPResponse) (int, error) {
				var b strings.Builder
				e := json.NewEncoder(&b)
				e.SetEscapeHTML(false) // as the Lambda runtime does
				err := e.Encode(a)
				return b.Len(), err
			},
		} {
			if n, err := encode(a); err != nil || n > size(a) {
				t.Fatalf("%s: %d bytes, counted as %d: %v", name, n, size(a), err)
			}
		}
	})
}
