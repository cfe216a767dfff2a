//go:build kubetest

package kuberig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// AuditEvent is a request as the API server logged it (audit.k8s.io/v1 Event).
type AuditEvent struct {
	User      string
	UserAgent string
	Verb      string // get, list, watch, create, update, patch, delete, ...
	URI       string

	Group, Resource, Subresource string
	Namespace, Name              string // Name is empty in a create but for a subresource

	// Request is the body: of evictions and Jobs made, and of changes to nodes,
	// pods, deployments and Jobs. None of a request that was forbidden: the body of
	// such is not read.
	Request json.RawMessage

	Code           int       // of the answer; 0 as long as there is none
	Received, Done time.Time // Done is zero as long as the answer is not written, as with a running watch
}

// PreconditionUID is the UID that an eviction or a deletion was confined to, empty
// without one.
func (e AuditEvent) PreconditionUID() types.UID {
	type options struct {
		Preconditions struct{ UID types.UID }
	}
	var body struct {
		options               // a deletion's body is the options
		DeleteOptions options // an eviction's has them within
	}
	if len(e.Request) == 0 || json.Unmarshal(e.Request, &body) != nil {
		return ""
	}
	return types.UID(cmp.Or(string(body.DeleteOptions.Preconditions.UID), string(body.Preconditions.UID)))
}

// Audit is every request since the rig was given out, of the users if any are
// named, in the order in which they came to their latest stage. A request is
// there once its answer has been read to the end.
func (r *Rig) Audit(users ...string) []AuditEvent {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.dir, "audit.log"))
	if err != nil {
		r.t.Fatalf("read the audit log (was the control plane started with Audit?): %v", err)
	}
	defer func() { _ = f.Close() }()
	b, err := readSince(f, r.audit)
	if err != nil {
		r.t.Fatalf("read the audit log: %v", err)
	}
	return parseAudit(r.t.Fatalf, b, users)
}

// readSince reads the lines that begin at a place in the log or after it: a line may
// have been written in part when the place was taken. A log that ends before it is
// another one, an error.
func readSince(f io.ReadSeeker, at int64) ([]byte, error) {
	if at == 0 {
		return io.ReadAll(f)
	}
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end < at {
		return nil, cmp.Or(err, fmt.Errorf("it has %d bytes, and had %d", end, at))
	}
	if _, err := f.Seek(at-1, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	_, b, _ = bytes.Cut(b, []byte("\n"))
	return b, err
}

// MarkAudit forgets what Audit told so far.
func (r *Rig) MarkAudit() {
	r.t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, "audit.log"))
	if err != nil {
		r.t.Fatalf("read the audit log: %v", err)
	}
	r.audit = info.Size()
}

// parseAudit reads the log's lines, of which the last may not be whole yet.
func parseAudit(fatal func(string, ...any), log []byte, users []string) []AuditEvent {
	var out []AuditEvent
	at := map[string]int{} // where an id's event is in out
	for {
		line, rest, ok := bytes.Cut(log, []byte("\n"))
		if !ok {
			return out
		}
		log = rest
		var e struct {
			AuditID                  string
			Stage, RequestURI, Verb  string
			UserAgent                string
			User                     struct{ Username string }
			ObjectRef                struct{ Resource, Namespace, Name, APIGroup, Subresource string }
			ResponseStatus           struct{ Code int }
			RequestObject            json.RawMessage
			RequestReceivedTimestamp time.Time
			StageTimestamp           time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			fatal("read the audit log: %v: %s", err, line)
			return nil
		}
		if len(users) > 0 && !slices.Contains(users, e.User.Username) {
			continue
		}
		a := AuditEvent{
			User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb, URI: e.RequestURI,
			Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, Request: e.RequestObject,
			Code: e.ResponseStatus.Code, Received: e.RequestReceivedTimestamp,
		}
		if e.Stage == "ResponseComplete" || e.Stage == "Panic" {
			a.Done = e.StageTimestamp
		}
		if i, ok := at[e.AuditID]; ok {
			out[i] = a
			continue
		}
		at[e.AuditID] = len(out)
		out = append(out, a)
	}
}
