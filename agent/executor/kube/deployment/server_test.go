package deployment

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// apiServer answers for one workload web/web and its pods.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	object map[string]any
	pods   []any
	gets   int // of the object
	// Set by a test; nil: nothing special.
	onGet  func(n int) // before the nth is answered
	events func(w http.ResponseWriter, watch bool) (answered bool)
	admit  func(object map[string]any) // a webhook that changes what is patched
	lacks  []string                    // the rights that the agent's role lacks: "list replicasets"
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path, watch := r.URL.Path, r.URL.Query().Get("watch") != ""
	if strings.HasSuffix(path, "/events") && r.Method == http.MethodGet && s.events != nil && s.events(w, watch) {
		return
	}
	if watch {
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := s.object["kind"].(string)
	list := func(kind string, items ...any) any {
		return map[string]any{"kind": kind, "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "10"}, "items": append([]any{}, items...)}
	}
	resource := "/apis/apps/v1/namespaces/web/" + strings.ToLower(kind) + "s"
	switch {
	case path == resource+"/web" && r.Method == http.MethodGet:
		s.gets++
		if s.onGet != nil {
			s.onGet(s.gets)
		}
		write(w, 200, s.object)
	case path == resource+"/web" && r.Method == http.MethodPatch:
		next := (&unstructured.Unstructured{Object: s.object}).DeepCopy().Object
		var patch map[string]any
		_ = json.Unmarshal(body, &patch)
		merge(next, patch)
		if s.admit != nil {
			s.admit(next)
		}
		if r.URL.Query().Get("dryRun") == "" {
			s.object = next
		}
		write(w, 200, next)
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		asked := &authorizationv1.SelfSubjectAccessReview{}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, asked); err != nil || asked.Spec.ResourceAttributes == nil {
			refuse(w, 400, metav1.StatusReasonBadRequest)
			return
		}
		what := asked.Spec.ResourceAttributes
		allowed := what.Namespace == "web" && !slices.Contains(s.lacks, what.Verb+" "+what.Resource)
		write(w, 201, map[string]any{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": allowed}})
	case path == resource:
		l := list(kind+"List", s.object).(map[string]any)
		l["apiVersion"] = "apps/v1"
		write(w, 200, l)
	case strings.HasSuffix(path, "/replicasets"):
		l := list("ReplicaSetList").(map[string]any)
		l["apiVersion"] = "apps/v1"
		write(w, 200, l)
	case strings.HasSuffix(path, "/pods"):
		write(w, 200, list("PodList", s.pods...))
	case strings.HasSuffix(path, "/events") && r.Method == http.MethodGet:
		write(w, 200, list("EventList"))
	default:
		refuse(w, 404, metav1.StatusReasonNotFound)
	}
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	write(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: string(reason)})
}

// parse reads an object as a test words it.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func serve(t *testing.T, kind string, handler func(*apiServer) http.Handler) (*apiServer, *cluster.Cluster) {
	t.Helper()
	s := &apiServer{object: parse(t, `{"apiVersion":"apps/v1","kind":"`+kind+`","metadata":{"name":"web","namespace":"web","uid":"u1","resourceVersion":"5","generation":2},
		"spec":{"replicas":1,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}}},
		"status":{"observedGeneration":2,"replicas":1,"updatedReplicas":0,"readyReplicas":0}}`)}
	var h http.Handler = s
	if handler != nil {
		h = handler(s)
	}
	s.Server = httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + s.URL + `"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func rollTask() *executor.Task {
	return &executor.Task{
		Assignment: &protocol.Assignment{Operation: "op_1", Run: 1, Generation: 1, TargetName: "deployment:web/web", TargetUID: "u1"}, Attempt: 1,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			return ctx, cancel, nil
		},
		Progress: func(int, int, string, string) {}, Note: func(string, string) {}, Remaining: func() time.Duration { return time.Hour },
		Begin: func(string, string) (string, func(string, string)) { return "cmd_1", func(string, string) {} },
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestWebhookThatAddsToTheTemplate: what admission makes of the restart is no change
// by somebody else.
func TestWebhookThatAddsToTheTemplate(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "Deployment", nil)
	s.admit = func(o map[string]any) {
		_ = unstructured.SetNestedField(o, "v2", "spec", "template", "metadata", "annotations", "sidecar.example.com/injected")
	}
	typ, tk := Roll(c), rollTask()
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	if f := typ.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.Phase != operation.StepPending {
		t.Errorf("the probe finds %+v", f)
	}
	s.mu.Lock()
	_ = unstructured.SetNestedField(s.object, "another", "spec", "template", "metadata", "labels", "team")
	s.mu.Unlock()
	if f := typ.Steps["wait"].Probe(within(t, 10*time.Second), tk); f.ErrorCode != "superseded" {
		t.Errorf("after somebody's change the probe finds %+v", f)
	}
}

// TestOutageWithoutAnEvent: after it nothing has changed, which is what a stall is
// about.
func TestOutageWithoutAnEvent(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "StatefulSet", nil)
	var listed atomic.Int32
	begun := make(chan struct{})
	s.events = func(w http.ResponseWriter, watch bool) bool {
		if watch || listed.Add(1) > 1 {
			return false
		}
		<-begun // what the others had to tell is told by now
		refuse(w, 503, metav1.StatusReasonServiceUnavailable)
		return true
	}
	typ, tk := RollWithin(c, Bounds{Stall: 4 * time.Second}), rollTask()
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	time.AfterFunc(time.Second, func() { close(begun) })
	if o := typ.Steps["wait"].Execute(within(t, 15*time.Second), tk); o.ErrorCode != codeDeadline {
		t.Errorf("wait: %+v", o)
	}
}

// TestFailureIsReadAnew: a watch that lags behind fails nothing.
func TestFailureIsReadAnew(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "StatefulSet", nil)
	typ, tk := RollWithin(c, Bounds{Stall: 2 * time.Second}), rollTask()
	if o := typ.Steps["restart"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Fatalf("restart: %+v", o)
	}
	s.mu.Lock()
	s.gets = 0
	s.onGet = func(n int) {
		if n != 2 { // the one after the watches began
			return
		}
		merge(s.object, map[string]any{"status": map[string]any{"updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1)}})
		s.pods = []any{map[string]any{
			"metadata": map[string]any{"name": "web-0", "namespace": "web", "annotations": map[string]any{cluster.AnnotationMark: "op_1/1/1"},
				"ownerReferences": []any{map[string]any{"kind": "StatefulSet", "name": "web", "uid": "u1", "controller": true}}},
			"status": map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
		}}
	}
	s.mu.Unlock()
	if o := typ.Steps["wait"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone {
		t.Errorf("wait: %+v", o)
	}
}

// TestFirstDenialIsNotBelieved: an API server that has just started denies every
// right.
func TestFirstDenialIsNotBelieved(t *testing.T) {
	t.Parallel()
	_, c := serve(t, "Deployment", func(*apiServer) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 403, metav1.StatusReasonForbidden) })
	})
	now := time.Now()
	c.Now = func() time.Time { return now }
	typ := Roll(c)
	for _, step := range []string{"preflight", "restart", "wait", "confirm", "undo"} {
		tk := rollTask()
		tk.Assignment.Operation = "op_" + step
		if o := typ.Steps[step].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeWaiting || o.ErrorCode != "forbidden" {
			t.Errorf("%s at first: %+v", step, o)
		}
		now = now.Add(executor.DeniedFor)
		if o := typ.Steps[step].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" {
			t.Errorf("%s when it lasts: %+v", step, o)
		}
	}
}
