// Package admission decides whether a requested operation is accepted, and
// makes it: authorization, validation, target, plan, locks and idempotency, all
// in one commit. After it come relay (to the cluster's queue) and the agent.
package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
	// Fingerprint is that of the request under the key (Fingerprint), of calls
	// whose use case makes none itself: Once.
	Fingerprint   string
	RequestID     string
	CorrelationID string
	RemoteAddr    string
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
	if at, twice := RepeatedKey(body); twice {
		r := operation.Refuse("malformed", "%s is in the body twice", at)
		r.Errors = []operation.FieldError{{Pointer: at, Code: "repeated", Detail: "is there twice"}}
		return "", r
	}
	return Fingerprint(v)
}

// RepeatedKey returns the pointer of the first key that an object of the body
// holds twice: readers differ about which of the two counts (RFC 8259, section
// 4). A body that is not JSON has none.
func RepeatedKey(body []byte) (pointer string, found bool) {
	type level struct {
		keys  map[string]bool // of an object
		key   string          // whose value comes next
		index int             // of an array's next element
	}
	var levels []level
	valued := func() { // a value ended
		if n := len(levels); n > 0 {
			levels[n-1].key = ""
			levels[n-1].index++
		}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	wantKey := func() bool {
		n := len(levels)
		return n > 0 && levels[n-1].keys != nil && levels[n-1].index%2 == 0
	}
	for {
		t, err := dec.Token()
		if err != nil {
			return "", false
		}
		name, text := t.(string)
		switch d, _ := t.(json.Delim); {
		case d == '{':
			levels = append(levels, level{keys: map[string]bool{}})
		case d == '[':
			levels = append(levels, level{})
		case d == '}' || d == ']':
			levels = levels[:len(levels)-1]
			valued()
		case text && wantKey():
			top := &levels[len(levels)-1]
			if top.keys[name] {
				for _, l := range levels[:len(levels)-1] {
					if l.keys == nil {
						l.key = strconv.Itoa(l.index)
					}
					pointer += "/" + operation.EscapePointer(l.key)
				}
				return pointer + "/" + operation.EscapePointer(strings.ToValidUTF8(name[:min(len(name), 128)], "")), true
			}
			top.keys[name] = true
			top.key = name
			top.index++
		default:
			valued()
		}
	}
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
	for _, name := range []string{"cluster", "deadline"} {
		if string(f.Raw(name)) == `""` {
			f.Fail(name, "required", "must not be empty; leave it out")
		}
	}
	if operation.CleanText(p.request.Reason) && p.request.Reason != "" && strings.TrimSpace(p.request.Reason) == "" {
		f.Fail("reason", "required", "must say why")
	}
	for i, e := range f.Errs {
		if e.Code == "characters" && e.Pointer == at+"/reason" && strings.ContainsRune(p.request.Reason, utf8.RuneError) {
			f.Errs[i].Detail = "must not hold replacement characters (U+FFFD, also what half a surrogate pair becomes)"
		}
	}
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
		if p.dryRun = f.Bool("dry_run", false); string(f.Raw("dry_run")) == "null" {
			f.Fail("dry_run", "type", "must be true or false")
		}
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
	if operation.SecretShaped(p.request.Reason) {
		f.Fail("reason", "secret_in_request", "looks like a credential; name a secret, never its value")
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
				if p := walk(at+"/"+operation.EscapePointer(k), x); p != "" {
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
