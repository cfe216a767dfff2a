package gateway

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// seen is what a handler learns of a request.
type seen struct {
	Method, Path, Query, Host, URI, Remote string
	Proto                                  string
	Header                                 map[string]string
	Cookies                                []string
	Length                                 int64
	Body                                   []byte
}

// capture is a handler that notes the request and answers as told.
type capture struct {
	got    seen
	status int
	header http.Header
	body   []byte
}

func (c *capture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, _, _ := strings.Cut(r.RemoteAddr, ":")
	c.got = seen{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Host: r.Host, URI: r.RequestURI, Remote: host, Proto: r.Proto, Length: r.ContentLength, Header: map[string]string{}}
	var err error
	if c.got.Body, err = io.ReadAll(r.Body); err != nil {
		panic(err)
	}
	for name, values := range r.Header {
		if name != "Cookie" && !strings.HasPrefix(name, "X-Forwarded-") {
			c.got.Header[name] = strings.Join(values, ",")
		}
	}
	for _, k := range r.Cookies() {
		c.got.Cookies = append(c.got.Cookies, k.String())
	}
	maps.Copy(w.Header(), c.header)
	w.WriteHeader(c.status)
	_, _ = w.Write(c.body) // some statuses take none
}

// pair is one handler behind net/http's own server and behind the gateway.
type pair struct {
	direct, through *capture
	plain, gateway  *httptest.Server
	client          http.Transport // no client: it would read the answer, not only carry it
}

func newPair(t *testing.T, stage string) *pair {
	p := &pair{direct: &capture{}, through: &capture{}}
	p.plain = httptest.NewServer(p.direct)
	p.gateway = httptest.NewServer(&httpAPI{t: t, stage: stage, server: &Server{Handler: p.through, Logger: slog.New(slog.DiscardHandler)}})
	t.Cleanup(p.plain.Close)
	t.Cleanup(p.gateway.Close)
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

// got is what a client learns of an answer.
type got struct {
	Status  int
	Header  map[string]string
	Cookies []string
	Body    []byte
}

func (p *pair) send(t interface{ Fatal(...any) }, base, method, target string, header http.Header, body []byte) got {
	r, err := http.NewRequest(method, base+target, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header.Clone()
	r.Host = "api.example"
	resp, err := p.client.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	out := got{Status: resp.StatusCode, Header: map[string]string{}, Cookies: resp.Header.Values("Set-Cookie")}
	if out.Body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	for name, values := range resp.Header {
		if name != "Date" && name != "Set-Cookie" && name != "Content-Length" {
			out.Header[name] = strings.Join(values, ", ")
		}
	}
	return out
}

// TestRoundTrip: what net/http can send arrives as it would without the gateway,
// and so does the answer.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"", "prod"} {
		p := newPair(t, stage)
		rapid.Check(t, func(t *rapid.T) {
			method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"}).Draw(t, "method")
			target := "/" + url.PathEscape(rapid.StringN(0, 12, 40).Draw(t, "segment"))
			target += rapid.SampledFrom([]string{"", "/", "/a%20b", "/%25", "/%2525", "/%2541", "/100%25/x", "/+", "/%C3%A9", "/prod", "/a;b=c,d"}).Draw(t, "rest")
			target += rapid.SampledFrom([]string{"", "?", "?a=1&a=2&b=", "?type=a,b&type=c%2Cd", "?q=%20+%2B", "?%zz", "?a=b?c", "?\u00e9"}).Draw(t, "query")
			header := http.Header{"User-Agent": {"test"}}
			for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"X-A", "Accept", "If-None-Match", "Authorization", "Content-Type", "X-Correlation-Id"}), 0, 4).Draw(t, "names") {
				header[name] = rapid.SliceOfN(rapid.StringMatching(`[!-~]([ -~]{0,10}[!-~])?`), 1, 3).Draw(t, name)
			}
			if rapid.Bool().Draw(t, "json") {
				header["Content-Type"] = []string{"application/json"}
			}
			if n := rapid.IntRange(0, 3).Draw(t, "cookies"); n > 0 {
				header["Cookie"] = []string{strings.Join([]string{"a=1", "b=x y", "c="}[:n], "; ")}
			}
			var body []byte
			if method != "GET" && method != "HEAD" {
				if isText(strings.Join(header["Content-Type"], ",")) {
					body = []byte(rapid.String().Draw(t, "text"))
				} else {
					body = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
				}
			}
			answer := capture{status: rapid.SampledFrom([]int{200, 201, 202, 204, 302, 304, 404, 409, 500, 503}).Draw(t, "status"), header: http.Header{}}
			for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"Content-Type", "Etag", "Location", "Retry-After", "Set-Cookie", "Www-Authenticate", "Link"}), 0, 4).Draw(t, "answered") {
				answer.header[name] = rapid.SliceOfN(rapid.StringMatching(`[!-~]([ -~]{0,10}[!-~])?`), 1, 2).Draw(t, name)
			}
			if values := answer.header["Content-Type"]; len(values) > 1 {
				answer.header["Content-Type"] = values[:1]
			}
			answer.body = rapid.SampledFrom([][]byte{nil, []byte(`{"a":"<b>&\u2028"}`), []byte("text \u00e9\x00\x01"), {0xff, 0xfe, 0x00}, []byte("<html>")}).Draw(t, "body")
			for _, c := range []*capture{p.direct, p.through} {
				c.status, c.header, c.body = answer.status, answer.header, answer.body
			}
			want := p.send(t, p.plain.URL, method, target, header, body)
			have := p.send(t, p.gateway.URL, method, target, header, body)
			if diff := cmp.Diff(p.direct.got, p.through.got, cmpopts.EquateEmpty(), sameURI); diff != "" {
				t.Fatalf("the request differs (-direct +gateway):\n%s", diff)
			}
			if diff := cmp.Diff(want, have, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("the answer differs (-direct +gateway):\n%s", diff)
			}
		})
	}
}

// sameURI compares request targets by what they mean: which characters were
// escaped in the path is lost on the way.
var sameURI = cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "URI" }, cmp.Comparer(func(a, b string) bool {
	x, errX := url.ParseRequestURI(a)
	y, errY := url.ParseRequestURI(b)
	return errX == nil && errY == nil && x.Path == y.Path && x.RawQuery == y.RawQuery
}))

// TestWhatTheGatewayLoses is the documented rest: it cannot be told apart behind
// it.
func TestWhatTheGatewayLoses(t *testing.T) {
	t.Parallel()
	p := newPair(t, "")
	for _, c := range []*capture{p.direct, p.through} {
		c.status = 200
	}
	p.send(t, p.gateway.URL, "GET", "/v1/nodes/a%2Fb", http.Header{}, nil)
	if p.through.got.Path != "/v1/nodes/a/b" {
		t.Errorf("an escaped slash arrived as %q", p.through.got.Path)
	}
	var values []string
	p.gateway.Config.Handler.(*httpAPI).server.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { values = r.Header["X-A"] })
	p.send(t, p.gateway.URL, "GET", "/", http.Header{"X-A": {"1", "2"}}, nil)
	if !slices.Equal(values, []string{"1,2"}) {
		t.Errorf("two fields of one name arrived as %q", values)
	}
}
