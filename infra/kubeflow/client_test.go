//go:build kubetest

package kubeflow

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// call asks the API as an administrator and returns status and body; status 0
// means that no answer came.
func (s *site) call(method, path string, body any) (int, []byte) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, rd)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, b
}

func (s *site) post(path string, body any, want int, into any) {
	s.t.Helper()
	status, b := s.call(http.MethodPost, path, body)
	if status != want {
		s.t.Fatalf("POST %s: %d %s", path, status, b)
	}
	if err := json.Unmarshal(b, into); err != nil {
		s.t.Fatalf("POST %s: %v in %s", path, err, b)
	}
}

// decode reads an answer that must be there.
func decode[T any](s *site, status int, b []byte) (v T) {
	s.t.Helper()
	if status != http.StatusOK {
		s.t.Fatalf("answered %d %.400s", status, b)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		s.t.Fatalf("%v in %.400s", err, b)
	}
	return v
}

// list reads a list of at most 200; none while the plane is away.
func list[T any](s *site, path string) (all []T) {
	s.t.Helper()
	for next := path; next != ""; {
		status, b := s.call(http.MethodGet, next, nil)
		var page struct {
			Items      []T
			NextCursor *string `json:"next_cursor"`
		}
		if status == http.StatusOK {
			if err := json.Unmarshal(b, &page); err != nil {
				s.t.Fatalf("GET %s: %v in %.400s", next, err, b)
			}
		}
		if all, next = append(all, page.Items...), ""; page.NextCursor != nil {
			next = path + "&cursor=" + *page.NextCursor
		}
	}
	return all
}

// op is an operation as the API shows it.
type op struct {
	ID          string
	Type        string
	Phase       operation.Phase
	CreatedAt   time.Time  `json:"created_at"`
	StartedAt   *time.Time `json:"started_at"`
	FinishedAt  *time.Time `json:"finished_at"`
	Generation  int64
	Progress    *operation.Progress
	Assignments []operation.Assignment
	Result      *operation.Result
	Plan        []struct {
		Name  string
		Phase operation.StepPhase
	}
}

// String is for failures: what a person would look at.
func (o op) String() string {
	b, _ := json.MarshalIndent(o, "", " ")
	return string(b)
}

// want asks for an operation that must be accepted.
func (s *site) want(typ, target string, payload map[string]any, within time.Duration) op {
	s.t.Helper()
	var o op
	s.post("/v1/operations", map[string]any{"type": typ, "target": target, "cluster": "rig", "reason": "test", "payload": payload,
		"deadline": time.Now().Add(within).UTC().Format(time.RFC3339)}, http.StatusAccepted, &o)
	return o
}

// look reads an operation; it is empty while the plane is away.
func (s *site) look(id string) (o op) {
	s.t.Helper()
	if status, b := s.call(http.MethodGet, "/v1/operations/"+id, nil); status == http.StatusOK {
		if err := json.Unmarshal(b, &o); err != nil {
			s.t.Fatalf("operation %s: %v in %.400s", id, err, b)
		}
	}
	return o
}

// until reads an operation until it is as wanted.
func (s *site) until(id, what string, within time.Duration, ok func(op) bool) (o op) {
	s.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if o = s.look(id); o.ID != "" && ok(o) {
			return o
		}
		if time.Now().After(end) {
			_, journal := s.call(http.MethodGet, "/v1/operations/"+id+"/journal?limit=200", nil)
			s.t.Fatalf("operation %s is not %s after %s: %s\n%s", id, what, within, o, journal)
		}
	}
}

// ended waits for an operation's end.
func (s *site) ended(id string, within time.Duration) op {
	s.t.Helper()
	return s.until(id, "at its end", within, func(o op) bool { return o.Phase.Terminal() })
}

// thing is a node, device, deployment or component.
type thing struct {
	ID, Name    string
	Schedulable bool
	NodeName    string `json:"node_name"`
}

// thing waits until one of a kind was reported, and returns it.
func (s *site) thing(kind, name string) (found thing) {
	s.t.Helper()
	s.await(kind+" "+name+" is reported", time.Minute, func() bool {
		for _, x := range list[thing](s, "/v1/"+kind+"?limit=200") {
			if x.Name == name {
				found = x
				return true
			}
		}
		return false
	})
	return found
}
