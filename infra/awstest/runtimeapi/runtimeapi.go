// Package runtimeapi plays Lambda to one function: it starts the function's
// bootstrap as a process and hands it events by the Lambda Runtime API, outside
// of any container (AWS Lambda Developer Guide, "Using the Lambda runtime API
// for custom runtimes").
package runtimeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// maxPayload is how much an invocation may bring or answer (AWS Lambda Developer
// Guide, "Lambda quotas": 6 MB each).
const maxPayload = 6 << 20

// FunctionError is a function's answer that it failed, by the runtime's words.
type FunctionError struct {
	Type    string `json:"errorType"`
	Message string `json:"errorMessage"`
}

func (e *FunctionError) Error() string {
	return "function failed: " + e.Type + ": " + e.Message
}

// ErrEnded: the function's process ended before it answered.
var ErrEnded = errors.New("function's process ended")

// Function is a function's process. Close ends it.
type Function struct {
	// Timeout is the function's own, which each invocation is told; it may be set
	// before the first.
	Timeout time.Duration

	name   string
	server *http.Server
	cmd    *exec.Cmd
	ended  chan struct{}
	output *os.File // a file without a name: what was written before an answer is there with it
	events chan *invocation

	mu      sync.Mutex
	open    map[string]*invocation
	serial  int
	initErr error
	closed  bool
	kept    string // the output, once closed
}

type invocation struct {
	id      string
	payload []byte
	done    chan outcome
}

type outcome struct {
	body []byte
	err  error
}

// Start starts a bootstrap under a function's name with the environment given
// and nothing else of this process's.
func Start(bootstrap, name string, env []string) (*Function, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the function: %w", err)
	}
	f := &Function{name: name, Timeout: 30 * time.Second, ended: make(chan struct{}), events: make(chan *invocation), open: map[string]*invocation{}}
	if f.output, err = os.CreateTemp("", "function"); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the function's output: %w", err), l.Close())
	}
	if err := os.Remove(f.output.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the function's output: %w", err), f.output.Close(), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", f.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", f.answered)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", f.failed)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", f.failed)
	f.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = f.server.Serve(l) }() // until Close
	f.cmd = exec.Command(bootstrap)
	f.cmd.Env = append([]string{"AWS_LAMBDA_RUNTIME_API=" + l.Addr().String(), "AWS_LAMBDA_FUNCTION_NAME=" + name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512", "_HANDLER=bootstrap"}, env...)
	f.cmd.Stdout, f.cmd.Stderr = f.output, f.output
	if err := f.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), f.output.Close(), f.server.Close())
	}
	go func() {
		_ = f.cmd.Wait() // killed by Close, or it says why in its output
		close(f.ended)
	}()
	return f, nil
}

// Output is what the process wrote, its log; also after Close.
func (f *Function) Output() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return f.kept
	}
	return f.read()
}

func (f *Function) read() string {
	b, err := io.ReadAll(io.NewSectionReader(f.output, 0, 1<<30))
	if err != nil {
		return "cannot read the function's output: " + err.Error()
	}
	return string(b)
}

// CPU is the time that the process had of the processors; known after Close.
func (f *Function) CPU() time.Duration {
	select {
	case <-f.ended:
		return f.cmd.ProcessState.UserTime() + f.cmd.ProcessState.SystemTime()
	default:
		return 0
	}
}

// Close kills the process, as Lambda does at the end of an environment. A second
// one does nothing.
func (f *Function) Close() error {
	_ = f.cmd.Process.Kill() // it may have ended by itself
	<-f.ended
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.kept, f.closed = f.read(), true
	return errors.Join(f.output.Close(), f.server.Close())
}

// Invoke hands the function an event and returns its answer, as JSON both. The
// error is a *FunctionError when the function answered with one, ErrEnded when
// its process ended instead.
func (f *Function) Invoke(ctx context.Context, event, answer any) error {
	payload, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	if len(payload) > maxPayload {
		return fmt.Errorf("event of %d bytes: Lambda takes %d", len(payload), maxPayload)
	}
	f.mu.Lock()
	f.serial++
	in := &invocation{id: "inv-" + strconv.Itoa(f.serial), payload: payload, done: make(chan outcome, 1)}
	f.open[in.id] = in
	f.mu.Unlock()
	select {
	case f.events <- in:
	case <-f.ended:
		return f.gone()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case out := <-in.done:
		if out.err != nil {
			return out.err
		}
		if err := json.Unmarshal(out.body, answer); err != nil {
			return fmt.Errorf("decode answer: %w", err)
		}
		return nil
	case <-f.ended:
		return f.gone()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Function) gone() error {
	output := f.Output()
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(ErrEnded, f.initErr, errors.New(output))
}

// next holds the function until there is an event.
func (f *Function) next(w http.ResponseWriter, r *http.Request) {
	select {
	case in := <-f.events:
		h := w.Header()
		h.Set("Lambda-Runtime-Aws-Request-Id", in.id)
		h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(f.Timeout).UnixMilli(), 10))
		h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:"+f.name)
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(in.payload) // a process that is gone is told by ended
	case <-r.Context().Done():
	}
}

func (f *Function) answered(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPayload+1))
	if err == nil && len(body) > maxPayload {
		err = &FunctionError{Type: "Function.ResponseSizeTooLarge", Message: "Response payload size exceeded maximum allowed payload size"}
	}
	f.settle(w, r.PathValue("id"), outcome{body: body, err: err})
}

func (f *Function) failed(w http.ResponseWriter, r *http.Request) {
	var e FunctionError
	if err := json.NewDecoder(io.LimitReader(r.Body, maxPayload)).Decode(&e); err != nil {
		e = FunctionError{Type: "Runtime.Unknown", Message: err.Error()}
	}
	if id := r.PathValue("id"); id != "" {
		f.settle(w, id, outcome{err: &e})
		return
	}
	f.mu.Lock()
	f.initErr = &e
	f.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
}

func (f *Function) settle(w http.ResponseWriter, id string, out outcome) {
	f.mu.Lock()
	in := f.open[id]
	delete(f.open, id)
	f.mu.Unlock()
	if in == nil {
		http.Error(w, `{"errorType":"InvalidRequestID"}`, http.StatusBadRequest)
		return
	}
	in.done <- out
	w.WriteHeader(http.StatusAccepted)
}
