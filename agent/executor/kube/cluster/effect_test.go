package cluster

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// server answers as an API server would, by a script.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	agents []string // user agents of what was asked
	asked  []string
	answer func(w http.ResponseWriter, r *http.Request)
	review bool // what an access review says
	away   bool // access reviews are not answered
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.agents = append(s.agents, r.UserAgent())
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
		if s.away {
			status(w, 503, metav1.StatusReasonServiceUnavailable, "not now")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
			"status": map[string]any{"allowed": s.review}})
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // or the client's end would not be noticed
	s.answer(w, r)
}

func status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Code: int32(code), Reason: reason, Message: message})
}

func connect(t *testing.T, url string) *Cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + url + `"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(Options{Kubeconfig: file, Version: "1.2", CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setup(t *testing.T) (*server, *Cluster) {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s, connect(t, s.URL)
}

// record is what a task was told of its commands.
type record struct{ categories []string }

func task(r *record) *executor.Task {
	return &executor.Task{
		Assignment: &protocol.Assignment{Operation: "op_1", Run: 1, Generation: 3, CorrelationID: "corr-1"},
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			return ctx, cancel, nil
		},
		Begin: func(string, string) (string, func(string, string)) {
			return "cmd_1", func(category, _ string) { r.categories = append(r.categories, category) }
		},
	}
}

func evict(c *Cluster) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		return c.Client.PolicyV1().Evictions("web").Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "web"}})
	}
}

func TestAnswersOfAnEffect(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer   func(w http.ResponseWriter, r *http.Request)
		review   bool
		away     bool
		category string
		class    string // of the outcome; empty: the caller's to judge
		code     string
		detail   string
		after    time.Duration
	}{
		"done": {answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, category: OK},
		"conflict": {answer: func(w http.ResponseWriter, _ *http.Request) {
			status(w, 409, metav1.StatusReasonConflict, "the UID differs")
		}, category: Conflict},
		"exists": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 409, metav1.StatusReasonAlreadyExists, "") }, category: Already},
		"gone":   {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 404, metav1.StatusReasonNotFound, "") }, category: Refused},
		"throttled": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			status(w, 429, metav1.StatusReasonTooManyRequests, "its budget allows none")
		}, category: Throttled, after: 7 * time.Second},
		"two budgets": {answer: func(w http.ResponseWriter, _ *http.Request) {
			status(w, 500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
		}, category: Failed},
		"a webhook that cannot be called": {answer: func(w http.ResponseWriter, _ *http.Request) {
			status(w, 500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "no.example.com": failed to call webhook: EOF`)
		}, category: Failed},
		"an error of etcd": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 500, "", "etcdserver: request timed out") },
			category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost", detail: "etcdserver: request timed out"},
		"an error without a known cause": {answer: func(w http.ResponseWriter, _ *http.Request) {
			status(w, 500, metav1.StatusReasonInternalError, "Internal error occurred: unexpected EOF")
		}, category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"a balancer lost the server": {answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
			category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"a balancer is tired": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "upstream connect error or disconnect/reset before headers", http.StatusServiceUnavailable)
		}, category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"a balancer quotes a known error": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `failed calling webhook "no.example.com"`, http.StatusInternalServerError)
		}, category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"the answer breaks off": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusCreated)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"unavailable": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			status(w, 503, metav1.StatusReasonServiceUnavailable, "")
		}, category: Failed, class: operation.OutcomeTransient, code: "api_unavailable", after: 7 * time.Second},
		"denied by admission": {answer: func(w http.ResponseWriter, _ *http.Request) {
			status(w, 403, metav1.StatusReasonForbidden, `admission webhook "no.example.com" denied the request`)
		}, review: true, category: Refused},
		"lacks the right": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 403, metav1.StatusReasonForbidden, "no") },
			category: Refused, class: operation.OutcomePermanent, code: "forbidden", detail: "create pods/eviction in namespace web"},
		"nobody says whose refusal it was": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 403, metav1.StatusReasonForbidden, "no") },
			away: true, category: Refused, class: operation.OutcomeTransient, code: "api_unavailable"},
		"unknown credentials": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 401, metav1.StatusReasonUnauthorized, "") },
			category: Refused, class: operation.OutcomeTransient, code: "api_unavailable"},
		"the answer is lost": {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"no answer in time": {answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
		"the server gave up": {answer: func(w http.ResponseWriter, _ *http.Request) { status(w, 504, metav1.StatusReasonTimeout, "") },
			category: Timeout, class: operation.OutcomeAmbiguous, code: "answer_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			s.answer, s.review, s.away = tt.answer, tt.review, tt.away
			var told record
			r, o := c.Effect(t.Context(), task(&told), "evict", "pod/uid", "web/web-0", evict(c))
			if r.Category != tt.category || r.RetryAfter != tt.after || r.Command != "cmd_1" || (r.Err == nil) != (tt.category == OK) {
				t.Errorf("reply %+v", r)
			}
			switch {
			case o == nil:
				if tt.class != "" {
					t.Errorf("no outcome, want %s", tt.class)
				}
			case o.Class != tt.class || o.ErrorCode != tt.code || !strings.Contains(o.Detail, tt.detail) || o.CommandID != "cmd_1":
				t.Errorf("outcome %+v", o)
			}
			if len(told.categories) != 1 || told.categories[0] != tt.category {
				t.Errorf("the command is recorded as %v", told.categories)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			asked := 0
			for i, a := range s.asked {
				if strings.HasSuffix(a, "/eviction") {
					asked++
				}
				if want := "opsplane-agent/1.2 operation/op_1 correlation/corr-1"; s.agents[i] != want {
					t.Errorf("%s came from %q", a, s.agents[i])
				}
			}
			if asked != 1 {
				t.Errorf("asked %d times: %v", asked, s.asked)
			}
		})
	}
}

// TestRepeatableLeavesALostAnswer to the caller, who reads the world.
func TestRepeatableLeavesALostAnswer(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	s.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	if r, o := c.Repeatable(t.Context(), task(&record{}), "evict", "pod/uid", "web/web-0", evict(c)); o != nil || r.Category != Timeout {
		t.Errorf("%+v, %+v", r, o)
	}
}

// TestRepeatableTellsWhatIsOpen: what may be repeated is told as it was answered, and
// whether it may have been done all the same.
func TestRepeatableTellsWhatIsOpen(t *testing.T) {
	t.Parallel()
	says := func(code int, reason metav1.StatusReason, message string) func(w http.ResponseWriter, _ *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { status(w, code, reason, message) }
	}
	for name, tt := range map[string]struct {
		answer   func(w http.ResponseWriter, r *http.Request)
		category string
		code     string // of the outcome; empty: none
		open     bool
	}{
		"done":            {answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, category: OK},
		"refused":         {answer: says(403, metav1.StatusReasonForbidden, "no"), category: Refused},
		"throttled":       {answer: says(429, metav1.StatusReasonTooManyRequests, "busy"), category: Throttled},
		"etcd":            {answer: says(500, "", "etcdserver: request timed out"), category: Failed, open: true},
		"two budgets":     {answer: says(500, "", "This pod has more than one PodDisruptionBudget"), category: Failed},
		"webhook":         {answer: says(500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "no.example.com": EOF`), category: Failed},
		"starting":        {answer: says(503, metav1.StatusReasonServiceUnavailable, "starting"), category: Failed, code: "api_unavailable"},
		"gave up":         {answer: says(504, metav1.StatusReasonTimeout, ""), category: Timeout, open: true},
		"a balancer, 502": {answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }, category: Failed, open: true},
		"a balancer, 503": {answer: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no upstream", http.StatusServiceUnavailable)
		}, category: Failed, code: "api_unavailable", open: true},
		"broken off": {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, category: Timeout, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			s.answer, s.review = tt.answer, true
			r, o := c.Repeatable(t.Context(), task(&record{}), "evict", "pod/uid", "web/web-0", evict(c))
			if r.Category != tt.category || r.MayHaveLanded != tt.open {
				t.Errorf("reply %+v", r)
			}
			if (o == nil) != (tt.code == "") || o != nil && o.ErrorCode != tt.code {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}

// TestErrorsOfWhatIsUntyped: custom resources are read and changed by a client that
// decodes the API server's words in its own way.
func TestErrorsOfWhatIsUntyped(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	patch := func(ctx context.Context) error {
		_, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("web").
			Patch(ctx, "web", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		return err
	}
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		status(w, 503, metav1.StatusReasonServiceUnavailable, "starting")
	}
	if _, o := c.Effect(t.Context(), task(&record{}), "restart", "deployment/uid", "web/web", patch); o == nil || o.ErrorCode != "api_unavailable" {
		t.Errorf("the API server's 503: %+v", o)
	}
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no upstream", http.StatusServiceUnavailable)
	}
	if _, o := c.Effect(t.Context(), task(&record{}), "restart", "deployment/uid", "web/web", patch); o == nil || o.Class != operation.OutcomeAmbiguous {
		t.Errorf("a balancer's 503: %+v", o)
	}
}

// TestNothingIsSentPastTheFence: not when it says no, nor when its time was up
// before the call, as for a process that was stopped in between.
func TestNothingIsSentPastTheFence(t *testing.T) {
	t.Parallel()
	for name, fence := range map[string]func(ctx context.Context) (context.Context, context.CancelFunc, error){
		"closed": func(context.Context) (context.Context, context.CancelFunc, error) {
			return nil, func() {}, executor.ErrFenced
		},
		"over": func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Millisecond))
			return ctx, cancel, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			tk := task(&record{})
			tk.Fence = fence
			_, o := c.Effect(t.Context(), tk, "evict", "pod/uid", "web/web-0", evict(c))
			if o == nil || o.Class != operation.OutcomeTransient || o.ErrorCode != "fenced" {
				t.Errorf("outcome %+v", o)
			}
			if len(s.asked) > 0 {
				t.Errorf("asked %v", s.asked)
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, "http://"+l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, o := c.Effect(t.Context(), task(&record{}), "evict", "pod/uid", "web/web-0", evict(c))
	if o == nil || o.Class != operation.OutcomeTransient || o.ErrorCode != "api_unavailable" {
		t.Errorf("nothing was sent, and it ended as %+v", o)
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	m := Mark{Operation: "op_1", Run: 2, Generation: 5}
	got, ok := ReadMark(map[string]string{AnnotationMark: m.String()})
	if !ok || got != m {
		t.Errorf("read %+v, %v", got, ok)
	}
	for _, bad := range []string{"", "op_1", "op_1/2", "op_1/x/5", "op_1/2/x", "/2/5", "op_1/2/5/6"} {
		if got, ok := ReadMark(map[string]string{AnnotationMark: bad}); ok {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
	for by, want := range map[Mark]bool{
		{"op_1", 2, 4}: true, {"op_1", 2, 5}: false, {"op_1", 2, 6}: false, {"op_2", 1, 1}: false,
	} {
		if m.Stale(by) != want {
			t.Errorf("%s makes %s stale: %v", m, by, !want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{Kubeconfig: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Open(Options{}); err == nil || !strings.Contains(err.Error(), "no pod of a cluster") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
