package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestTable(t *testing.T) {
	t.Parallel()
	if len(Codes()) != len(table) {
		t.Fatal("Codes misses some")
	}
	for code, e := range table {
		if e.status < 400 || e.status > 599 || http.StatusText(e.status) == "" {
			t.Errorf("%s: status %d", code, e.status)
		}
		if e.title == "" || strings.HasSuffix(e.title, ".") {
			t.Errorf("%s: title %q", code, e.title)
		}
		if actionText[e.action] == "" {
			t.Errorf("%s: action %q has no text", code, e.action)
		}
		p := New(code, "d")
		if p.Status != Status(code) || p.Title != Title(code) || p.Type != "https://opsplane.dev/problems/"+string(code) {
			t.Errorf("%s: %+v", code, p)
		}
	}
	if p := New("never_heard_of", "x"); p.ErrorCode != Internal || p.Status != 500 {
		t.Errorf("unknown code: %+v", p)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	p := New(OperationConflict, "node %s is held", "n1").
		WithRequest("/v1/operations", "cor_1").
		WithOperation("op_1").
		WithStep("stp_1", "cmd_1").
		WithField(Pointer("payload", "a/b~c", "0"), "required", "is required").
		WithExtra("holder", map[string]any{"id": "op_2"}).
		WithExtra("status", 200) // never replaces a member
	got, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"https://opsplane.dev/problems/operation_conflict","title":"Another operation holds a resource","status":409,` +
		`"detail":"node n1 is held","instance":"/v1/operations","error_code":"operation_conflict",` +
		`"next_action":{"code":"cancel","text":"Cancel the operation in the way, or wait for its end."},"retryable":true,` +
		`"operation_id":"op_1","step_id":"stp_1","command_id":"cmd_1","correlation_id":"cor_1",` +
		`"errors":[{"pointer":"/payload/a~1b~0c/0","detail":"is required","code":"required"}],"holder":{"id":"op_2"}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	var back Problem
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	delete(p.Extra, "status")
	if diff := cmp.Diff(p, &back, cmpopts.IgnoreUnexported(Problem{})); diff != "" {
		t.Error(diff)
	}
}

type domainError struct{ code string }

func (e *domainError) Error() string          { return e.code + ": said to all" }
func (e *domainError) Code() string           { return e.code }
func (e *domainError) Pointer() string        { return "/name" }
func (e *domainError) Fields() map[string]any { return map[string]any{"limit": 7} }

func TestFrom(t *testing.T) {
	t.Parallel()
	if From(nil) != nil {
		t.Error("From(nil) is a problem")
	}
	own := New(NotFound, "no such operation")
	if got := From(fmt.Errorf("get: %w", own)); got != own {
		t.Errorf("wrapped problem: %v", got)
	}
	got := From(fmt.Errorf("inner: %w", &domainError{"name_taken"}))
	if got.ErrorCode != NameTaken || got.Detail != "said to all" || got.Extra["limit"] != 7 ||
		!cmp.Equal(got.Errors, []FieldError{{Pointer: "/name", Code: "name_taken", Detail: "said to all"}}) {
		t.Errorf("coded error: %+v", got)
	}
	for _, err := range []error{errors.New("password=hunter2"), &domainError{"no_such_code"}, &domainError{"internal"}} {
		p := From(fmt.Errorf("password=hunter2: %w", err))
		b, _ := json.Marshal(p)
		if p.ErrorCode != Internal || p.Status != 500 || strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "said") {
			t.Errorf("%v became %s", err, b)
		}
		if !errors.Is(p, err) {
			t.Errorf("%v is lost to the log", err)
		}
	}
	if !errors.Is(fmt.Errorf("x: %w", own), New(NotFound, "")) || errors.Is(own, New(Gone, "")) {
		t.Error("Is does not go by code")
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	Write(rec, New(RateLimited, "slow down").WithRetryAfter(1200*time.Millisecond))
	h := rec.Result().Header
	if rec.Code != 429 || h.Get("Retry-After") != "2" || h.Get("Content-Type") != ContentType {
		t.Errorf("%d %v", rec.Code, h)
	}
	rec = httptest.NewRecorder()
	Write(rec, New(Unauthenticated, "").WithExtra("bad", func() {}))
	var p Problem
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.ErrorCode != Unauthenticated {
		t.Errorf("%v: %s", err, rec.Body)
	}
	if rec.Result().Header.Get("WWW-Authenticate") == "" {
		t.Error("401 without WWW-Authenticate")
	}
}

// Any text in a pointer part, and in an extra member's name, makes valid JSON.
func FuzzProblem(f *testing.F) {
	f.Add("a/b", "~", "\x00\"")
	f.Fuzz(func(t *testing.T, part, name, detail string) {
		b, err := json.Marshal(New(Invalid, "%s", detail).WithField(Pointer(part), "x", "y").WithExtra(name, detail))
		if err != nil || !json.Valid(b) {
			t.Errorf("%s: %v", b, err)
		}
	})
}
