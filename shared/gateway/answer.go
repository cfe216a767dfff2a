package gateway

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
)

// recorder collects a handler's answer, by net/http's rules for a server.
type recorder struct {
	method string
	header http.Header
	sent   http.Header // what header was when the status was written
	status int         // 0: not written yet
	body   bytes.Buffer
	over   bool // more was written than fits an answer
}

func newRecorder(method string) *recorder { return &recorder{method: method, header: http.Header{}} }

// errTooLong ends a handler that writes more than any answer can hold.
var errTooLong = errors.New("the answer is longer than a function may return")

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic("invalid status of an answer") // as net/http does
	case status < 200 || w.status != 0: // an informational one cannot be sent
		return
	}
	w.status, w.sent = status, w.header.Clone()
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if bodyless(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.body.Len()+len(b) > MaxAnswerBytes {
		w.over = true
		return 0, errTooLong
	}
	return w.body.Write(b)
}

func bodyless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}

// hop are header fields of one connection (RFC 9110, section 7.6.1) or of how a
// body is framed on it: both are the gateway's.
var hop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length"}

// oneLine is what net/http makes of a value that would break out of its field.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// answer gives what was written in the gateway's form. In payload format 2.0 a
// field has one value; cookies have a list of their own.
func (w *recorder) answer() events.APIGatewayV2HTTPResponse {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	out := events.APIGatewayV2HTTPResponse{StatusCode: w.status, Headers: map[string]string{}}
	for name, values := range w.sent {
		clean := make([]string, len(values))
		for i, v := range values {
			clean[i] = strings.ToValidUTF8(oneLine.Replace(v), "?") // JSON carries nothing else
		}
		switch {
		case len(values) == 0 || slices.Contains(hop, name):
		case name == "Set-Cookie":
			out.Cookies = clean
		default:
			out.Headers[name] = strings.Join(clean, ", ")
		}
	}
	body := w.body.Bytes()
	if _, given := w.sent["Content-Type"]; !given && len(body) > 0 && w.sent.Get("Content-Encoding") == "" {
		// Without one the gateway would say application/json.
		out.Headers["Content-Type"] = http.DetectContentType(body)
	}
	if w.method == http.MethodHead {
		return out // its body is not sent, whatever the handler wrote
	}
	// Text is kept readable unless it is smaller the other way.
	if n := jsonLen(body); utf8.Valid(body) && n <= max(MaxAnswerBytes/2, base64.StdEncoding.EncodedLen(len(body))) {
		out.Body = string(body)
	} else {
		out.Body, out.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return out
}

// size bounds the answer's length as JSON from above.
func size(a events.APIGatewayV2HTTPResponse) int {
	n := 256 + jsonLen(a.Body) // names of fields, status, brackets
	for name, value := range a.Headers {
		n += jsonLen(name) + jsonLen(value) + len(`"":"",`)
	}
	for _, c := range a.Cookies {
		n += jsonLen(c) + len(`"",`)
	}
	return n
}

// jsonLen bounds the length of valid UTF-8 in JSON from above, without its
// quotes, whether or not the encoder escapes what HTML minds.
func jsonLen[T string | []byte](s T) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			n++
		case c < 0x20 || c == '<' || c == '>' || c == '&':
			n += 5
		case c == 0xe2: // may begin U+2028 or U+2029
			n += 3
		}
	}
	return n
}
