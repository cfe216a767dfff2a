// Package admission decides whether a requested operation is accepted, and
// makes it: authorization, validation, target, plan, locks and idempotency, all
// in one commit. After it come relay (to the cluster's queue) and the agent.
package admission

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// Limits of a request, in bytes.
const (
	MaxBodyBytes   = 1 << 20
	MaxReasonBytes = 1024
	MaxTargetBytes = 600
)

// Caller is who asks, and what they may do.
type Caller struct {
	Actor operation.Actor
	// Clusters that the caller is scoped to; nil means all.
	Clusters []string
	// Force is the right to override disruption budgets.
	Force bool
	// Rule names what gave the caller the right, for the record.
	Rule string
}

// May tells whether the caller may act on the cluster.
func (c Caller) May(cluster string) bool {
	if c.Clusters == nil {
		return true
	}
	for _, x := range c.Clusters {
		if x == cluster {
			return true
		}
	}
	return false
}

// Call is one call: who, under which key, and the ids that it is known by.
type Call struct {
	Caller         Caller
	Method, Path   string
	IdempotencyKey string
	RequestID      string
	CorrelationID  string
	RemoteAddr     string
}

// parsed is a request whose fields were read and checked, each by itself.
type parsed struct {
	request  operation.Request
	def      operation.Definition
	dryRun   bool
	children []json.RawMessage // of a plan
}

// fingerprint is the same for requests that say the same: key order and white
// space do not count.
func fingerprint(body []byte) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", operation.Refuse("malformed", "the body is not JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return "", operation.Refuse("malformed", "the body holds more than one JSON value")
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("fingerprint request: %w", err)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:]), nil
}

// parse reads one operation request that sits at the pointer, and collects
// every error of its fields.
func parse(at string, body json.RawMessage, now time.Time, child bool) (parsed, []operation.FieldError) {
	var p parsed
	f := operation.NewFields(at, body)
	p.request.Type = f.String("type", true, 64)
	p.request.Target = f.String("target", true, MaxTargetBytes)
	p.request.Cluster = f.String("cluster", false, MaxTargetBytes)
	p.request.Reason = f.String("reason", !child, MaxReasonBytes)
	deadline := f.String("deadline", false, 64)
	if raw := f.Raw("requested_revision"); len(raw) > 0 && string(raw) != "null" {
		var n int64
		if err := json.Unmarshal(raw, &n); err != nil || n < 0 {
			f.Fail("requested_revision", "type", "must be a whole number from 0")
		} else {
			p.request.RequestedRevision = &n
		}
	}
	if child {
		if raw := f.Raw("dry_run"); len(raw) > 0 {
			f.Fail("dry_run", "unknown_field", "goes on the plan, not on a child")
		}
	} else {
		p.dryRun = f.Bool("dry_run", false)
	}
	payload := f.Raw("payload")

	def, ok := operation.Lookup(p.request.Type)
	switch {
	case ok && child && def.PlaneLocal:
		f.Fail("type", "enum", "a plan's children reach a cluster: "+p.request.Type+" does not")
	case !ok && p.request.Type != "" && child:
		f.Fail("type", "enum", "is not a supported type; supported are "+strings.Join(operation.Types(), ", "))
	}
	p.def = def
	if deadline != "" && len(deadline) <= 64 {
		limits := operation.DeadlinesOf(p.request.Type)
		t, err := operation.ParseTime(deadline)
		switch {
		case err != nil:
			f.Fail("deadline", "format", err.Error())
		case !t.After(now):
			f.Fail("deadline", "past", "is in the past; it is "+now.UTC().Format(time.RFC3339)+" now")
		case ok && t.Sub(now) > limits.Max:
			f.Fail("deadline", "range", fmt.Sprintf("is more than %s away, the limit for %s", limits.Max, p.request.Type))
		default:
			t = t.Truncate(time.Millisecond)
			p.request.Deadline = &t
		}
	}
	for name, v := range map[string]string{"reason": p.request.Reason} {
		if operation.SecretShaped(v) {
			f.Fail(name, "secret_in_request", "looks like a credential; name a secret, never its value")
		}
	}
	if ok {
		pf := operation.NewFields(at+"/payload", payload)
		def.Payload(pf)
		p.request.Payload = pf.Done()
		f.Errs = append(f.Errs, pf.Errs...)
		if p.request.Type == "plan" {
			var c struct {
				Children []json.RawMessage `json:"children"`
			}
			_ = json.Unmarshal(payload, &c) // judged by the definition
			p.children = c.Children
		} else if path := secretIn(payload); path != "" {
			f.Errs = append(f.Errs, operation.FieldError{Pointer: at + "/payload" + path, Code: "secret_in_request",
				Detail: "looks like a credential; name a secret, never its value"})
		}
	}
	f.Done()
	return p, f.Errs
}

// secretIn returns the pointer of the first value that looks like a credential.
func secretIn(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return ""
	}
	var walk func(at string, v any) string
	walk = func(at string, v any) string {
		switch v := v.(type) {
		case string:
			if operation.SecretShaped(v) {
				return at
			}
		case []any:
			for i, x := range v {
				if p := walk(fmt.Sprintf("%s/%d", at, i), x); p != "" {
					return p
				}
			}
		case map[string]any:
			for k, x := range v {
				if p := walk(at+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(k), x); p != "" {
					return p
				}
			}
		}
		return ""
	}
	return walk("", v)
}

// invalid turns field errors into the refusal that names them all.
func invalid(errs []operation.FieldError) error {
	r := operation.Invalid(errs...)
	for _, e := range errs {
		if e.Code == "secret_in_request" {
			r.ErrorCode = "secret_in_request"
		}
	}
	return r
}
