package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/problem"
)

// event is a request as the gateway tells of it.
func event(method, path string) events.APIGatewayV2HTTPRequest {
	return events.APIGatewayV2HTTPRequest{Version: "2.0", RouteKey: "$default", RawPath: path, Headers: map[string]string{"host": "api.example"},
		RequestContext: events.APIGatewayV2HTTPRequestContext{Stage: "$default", RequestID: "gw-1", DomainName: "api.example",
			HTTP: events.APIGatewayV2HTTPRequestContextHTTPDescription{Method: method, Path: path, Protocol: "HTTP/1.1", SourceIP: "192.0.2.7"}}}
}

// serve answers one event by the handler; the log is returned too.
func serve(t *testing.T, h http.HandlerFunc, e events.APIGatewayV2HTTPRequest) (events.APIGatewayV2HTTPResponse, string) {
	t.Helper()
	var log bytes.Buffer
	a, err := (&Server{Handler: h, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Serve(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > MaxAnswerBytes {
		t.Errorf("the answer has %d bytes", len(raw))
	}
	return a, log.String()
}

// isProblem fails the test unless the answer is the problem.
func isProblem(t *testing.T, a events.APIGatewayV2HTTPResponse, status int, code problem.Code) problem.Problem {
	t.Helper()
	var p problem.Problem
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil {
		t.Fatalf("%q is no problem: %v", a.Body, err)
	}
	if a.StatusCode != status || p.Status != status || p.ErrorCode != code || a.Headers["Content-Type"] != problem.ContentType || p.CorrelationID == "" || p.Instance == "" {
		t.Errorf("answer %d %v %s, want %d %s", a.StatusCode, a.Headers, a.Body, status, code)
	}
	return p
}

func TestRequest(t *testing.T) {
	t.Parallel()
	e := event("POST", "/v1/operations")
	e.Headers = map[string]string{"Authorization": "Bearer x", "transfer-encoding": "chunked", "content-length": "99", "x-forwarded-for": "10.0.0.1, 192.0.2.7"}
	e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString([]byte{0xff, 0x00}), true
	r, err := NewRequest(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if r.Host != "api.example" || r.RemoteAddr != "192.0.2.7:0" || r.ContentLength != 2 || r.Header.Get("Content-Length") != "2" || r.Header.Get("Transfer-Encoding") != "" ||
		r.Header.Get("authorization") != "Bearer x" || r.Header.Get("X-Forwarded-For") != "10.0.0.1, 192.0.2.7" || RequestID(r.Context()) != "gw-1" {
		t.Errorf("%+v", r)
	}
	for path, stages := range map[string]map[string]string{
		"":               {"$default": "/", "prod": "/"},
		"/":              {"$default": "/", "prod": "/"},
		"/prod":          {"$default": "/prod", "prod": "/"},
		"/prod/v1/nodes": {"$default": "/prod/v1/nodes", "prod": "/v1/nodes"},
		"/prod/prod/x":   {"prod": "/prod/x"},
		"/production/x":  {"prod": "/production/x"},
		"/a%25b%2541":    {"$default": "/a%b%41"}, // %41 alone is text here: the gateway has decoded escapes
		"/a b/\u00e9?x":  {"$default": "/a b/\u00e9?x"},
	} {
		for stage, want := range stages {
			e := event("GET", path)
			e.RequestContext.Stage = stage
			r, err := NewRequest(t.Context(), e)
			if err != nil || r.URL.Path != want || r.URL.RawQuery != "" {
				t.Errorf("path %q of stage %s: %q?%q, %v", path, stage, r.URL.Path, r.URL.RawQuery, err)
			}
		}
	}
	for ip, want := range map[string]string{"2001:db8::1": "[2001:db8::1]:0", "": ""} {
		e := event("GET", "/")
		e.RequestContext.HTTP.SourceIP = ip
		if r, err := NewRequest(t.Context(), e); err != nil || r.RemoteAddr != want {
			t.Errorf("source %q: %q, %v", ip, r.RemoteAddr, err)
		}
	}
	e = event("GET", "/")
	e.RequestContext.HTTP.Protocol = "odd"
	if r, err := NewRequest(t.Context(), e); err != nil || r.ProtoMajor != 1 || r.ProtoMinor != 1 {
		t.Errorf("protocol: %+v, %v", r, err)
	}
}

func TestBodyThatIsNotBase64(t *testing.T) {
	t.Parallel()
	e := event("POST", "/v1/operations")
	e.Body, e.IsBase64Encoded = "@@", true
	a, log := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") }, e)
	isProblem(t, a, 400, problem.Malformed)
	if !strings.Contains(log, "gw-1") {
		t.Errorf("log %q", log)
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	a, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Connection", "close")
		_, _ = w.Write([]byte("hello"))
	}, event("HEAD", "/v1/nodes"))
	if a.StatusCode != 200 || a.Body != "" || a.IsBase64Encoded || a.Headers["Content-Type"] != "text/plain; charset=utf-8" || len(a.Headers) != 1 {
		t.Errorf("%+v", a)
	}
}

// TestPreflight: a browser's question is answered without a handler, OPTIONS by
// any other route is the handler's matter.
func TestPreflight(t *testing.T) {
	t.Parallel()
	asked := 0
	s := &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusMethodNotAllowed)
	}), Logger: slog.New(slog.DiscardHandler)}
	e := events.APIGatewayV2HTTPRequest{RouteKey: PreflightRoute, RawPath: "/v1/operations"}
	e.RequestContext.HTTP.Method = http.MethodOptions
	if a, err := s.Serve(t.Context(), e); err != nil || a.StatusCode != http.StatusNoContent || a.Body != "" || asked != 0 {
		t.Errorf("a preflight: %+v, %v, the handler was asked %d times", a, err, asked)
	}
	e.RouteKey = "$default"
	if a, err := s.Serve(t.Context(), e); err != nil || a.StatusCode != http.StatusMethodNotAllowed || asked != 1 {
		t.Errorf("OPTIONS by the other route: %+v, %v, the handler was asked %d times", a, err, asked)
	}
}

func TestWriterByTheRulesOfNetHTTP(t *testing.T) {
	t.Parallel()
	a, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints) // cannot be sent
		w.Header().Set("X-Bad", "a\r\nInjected: b")
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(http.StatusOK)       // too late
		w.Header().Set("X-Late", "unseen") // too late
	}, event("GET", "/"))
	if a.StatusCode != http.StatusTeapot || a.Headers["X-Bad"] != "a  Injected: b" || a.Headers["X-Late"] != "" {
		t.Errorf("%+v", a)
	}
	a, _ = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body with 204: %v", err)
		}
	}, event("DELETE", "/"))
	if a.StatusCode != 204 || a.Body != "" || len(a.Headers) != 0 {
		t.Errorf("%+v", a)
	}
	a, _ = serve(t, func(http.ResponseWriter, *http.Request) {}, event("GET", "/"))
	if a.StatusCode != 200 || a.Body != "" {
		t.Errorf("an empty answer: %+v", a)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	a, log := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Correlation-ID", "corr-1")
		w.Header().Set("Set-Cookie", "half=done")
		_, _ = w.Write([]byte("half an answer"))
		panic("secret of the inside")
	}, event("GET", "/v1/nodes"))
	p := isProblem(t, a, 500, problem.Internal)
	if strings.Contains(a.Body, "secret") || len(a.Cookies) > 0 || p.CorrelationID != "corr-1" {
		t.Errorf("%+v", a)
	}
	if !strings.Contains(log, "secret of the inside") || !strings.Contains(log, "serve_test.go") {
		t.Errorf("the log lacks what panicked, or where: %q", log)
	}
	a, log = serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, event("GET", "/v1/nodes"))
	if p := isProblem(t, a, 500, problem.Internal); p.CorrelationID != "gw-1" || log != "" {
		t.Errorf("%+v, log %q", p, log)
	}
	a, _ = serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(42) }, event("GET", "/v1/nodes"))
	isProblem(t, a, 500, problem.Internal)
}

// TestAnswersAtTheLimit: what fits is sent whole, what does not is a problem.
func TestAnswersAtTheLimit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body   string
		binary bool
		fits   bool
	}{
		"letters":     {strings.Repeat("x", 6_000_000), false, true},
		"over":        {strings.Repeat("x", MaxAnswerBytes), false, false},
		"quotes":      {strings.Repeat(`"`, 1_500_000), false, true},
		"many quotes": {strings.Repeat(`"`, 4_000_000), true, true}, // escaped it would be 8 MB
		"binary":      {strings.Repeat("\xff", 4_500_000), true, true},
		"too binary":  {strings.Repeat("\xff", 4_800_000), true, false},
		"way over":    {strings.Repeat("x", 3*MaxAnswerBytes), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				for b := []byte(tt.body); len(b) > 0; b = b[min(len(b), 1<<20):] {
					if _, err := w.Write(b[:min(len(b), 1<<20)]); err != nil {
						return
					}
				}
			}
			a, _ := serve(t, h, event("GET", "/v1/events"))
			if !tt.fits {
				p := isProblem(t, a, 422, problem.Invalid)
				if len(p.Errors) != 1 || p.Errors[0].Pointer != "/query/limit" {
					t.Errorf("%+v", p)
				}
				a, _ = serve(t, h, event("POST", "/v1/operations"))
				isProblem(t, a, 500, problem.Internal)
				return
			}
			body := []byte(a.Body)
			if a.IsBase64Encoded {
				body, _ = base64.StdEncoding.DecodeString(a.Body)
			}
			if a.StatusCode != 200 || a.IsBase64Encoded != tt.binary || string(body) != tt.body {
				t.Errorf("status %d, base64 %v, %d bytes", a.StatusCode, a.IsBase64Encoded, len(body))
			}
		})
	}
}

// TestContextEndsInTime: before the gateway gives up, and before the function's
// own time is over.
func TestContextEndsInTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ function, budget, want time.Duration }{
		"the gateway's":    {time.Minute, 0, Budget},
		"the function's":   {10 * time.Second, 0, 10*time.Second - endMargin},
		"no limit of time": {0, 0, Budget},
		"given":            {time.Minute, 3 * time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				if tt.function > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.function)
					defer cancel()
				}
				began := time.Now()
				s := &Server{Logger: slog.New(slog.DiscardHandler), Budget: tt.budget, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					w.WriteHeader(http.StatusGatewayTimeout)
				})}
				a, err := s.Serve(ctx, event("GET", "/"))
				if took := time.Since(began); err != nil || a.StatusCode != 504 || took != tt.want {
					t.Errorf("status %d after %s, want %s; %v", a.StatusCode, took, tt.want, err)
				}
			})
		})
	}
	if MaxWait >= Budget || Budget >= 30*time.Second {
		t.Errorf("a wait of %s, a budget of %s: both end before the gateway's 30 s", MaxWait, Budget)
	}
}

func TestLogAttr(t *testing.T) {
	t.Parallel()
	r, err := NewRequest(t.Context(), event("GET", "/"))
	if err != nil {
		t.Fatal(err)
	}
	if a := LogAttr(r.Context()); a.String() != "gateway_request_id=gw-1" {
		t.Error(a)
	}
	if a := LogAttr(t.Context()); !a.Equal(slog.Attr{}) {
		t.Error(a)
	}
}

// FuzzServe: whatever the event says, the handler sees a request and the gateway
// gets an answer that it can read.
func FuzzServe(f *testing.F) {
	for _, path := range []string{"/", "", "/v1/nodes/a%25b", "//", "/%zz", "*", "/\x00", "http://x/y"} {
		f.Add("GET", path, "a=1&a=2", "accept", "text/html", "", false, "prod", []byte("{}"), 200)
	}
	f.Add("HEAD", "/prod", "%zz", "Cookie", "a=1", "@@", true, "prod", []byte{0xff}, 304)
	f.Add("", "/", "\n", "", "\r\n", "e30=", true, "", []byte("<>&\"\\\u2028\x01"), 99)
	f.Fuzz(func(t *testing.T, method, path, query, name, value, body string, binary bool, stage string, answer []byte, status int) {
		e := event(method, path)
		e.RawQueryString, e.Body, e.IsBase64Encoded, e.RequestContext.Stage = query, body, binary, stage
		e.Headers[name] = value
		a, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/") || r.Method != method || r.URL.RawQuery != query {
				t.Errorf("%q %q %q", r.Method, r.URL.Path, r.URL.RawQuery)
			}
			w.Header().Set("X-A", value)
			w.WriteHeader(status)
			_, _ = w.Write(answer)
		}, e)
		raw, err := json.Marshal(a)
		if err != nil || len(raw) > size(a) {
			t.Errorf("%d bytes, bounded by %d: %v", len(raw), size(a), err)
		}
		if a.StatusCode < 200 || a.StatusCode > 999 {
			t.Errorf("status %d", a.StatusCode)
		}
	})
}
