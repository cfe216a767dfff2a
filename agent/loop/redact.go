package loop

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/protocol"
)

// hidden stands where a secret was.
const hidden = "[redacted]"

// redactWindow bounds what is searched; it is far more than any limit, so that
// no secret cut by it can reach the part that is kept.
const redactWindow = 64 << 10

// secrets are the shapes that never leave the cluster. Where an expression has
// a group, what the group matched stays.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*(?:KEY|CERTIFICATE)(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*-----|\z)`),
	regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`\bopt_[A-Za-z0-9_-]{4,}`),
	regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{12,}`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*`),
	regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|nvapi-)[A-Za-z0-9_-]{10,}`),
	regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"']+:[^\s/@"']*@`),
	regexp.MustCompile(`(?i)((?:password|passwd|secret|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|client[_-]?secret|credential)s?["']?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^\s,;&"']+)`),
}

// redact removes what looks like a secret and what is no text, and cuts at
// limit bytes on a rune boundary.
func redact(s string, limit int) string {
	s = clean(cut(s, redactWindow))
	if !suspect(s) {
		return cut(s, limit)
	}
	for _, re := range secrets {
		if re.NumSubexp() > 0 {
			s = re.ReplaceAllString(s, "${1}"+hidden)
		} else {
			s = re.ReplaceAllString(s, hidden)
		}
	}
	return cut(s, limit)
}

// marks are what any match of secrets holds, in lower case.
var marks = []string{"-----begin", "bearer", "basic", "opt_", "akia", "asia", "eyj", "gh", "glpat-", "xox", "hf_", "nvapi-", "://",
	"passw", "secret", "token", "key", "credential"}

// suspect tells cheaply whether one of the expressions could match.
func suspect(s string) bool {
	low := strings.ToLower(s)
	for _, m := range marks {
		if strings.Contains(low, m) {
			return true
		}
	}
	return false
}

// clean makes s valid UTF-8 without control characters other than newline and tab.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r == 0x7f || r == utf8.RuneError:
			return ' '
		}
		return r
	}, s)
}

// cut returns the longest prefix of at most limit bytes that ends on a rune
// boundary.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// detail is the bounded form of any short text.
func detail(s string) string { return redact(s, protocol.MaxDetailBytes) }

// redactJSON redacts the strings of a JSON document. A document that is no JSON
// or larger than limit is replaced by one that says so.
func redactJSON(raw json.RawMessage, limit int) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > limit {
		return json.RawMessage(`{"omitted":"too large"}`)
	}
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return json.RawMessage(`{"omitted":"not JSON"}`)
	}
	out, err := encode(redactValue(v))
	if err != nil || len(out) > limit {
		return json.RawMessage(`{"omitted":"too large"}`)
	}
	return out
}

func redactValue(v any) any {
	switch x := v.(type) {
	case string:
		return redact(x, redactWindow)
	case []any:
		for i := range x {
			x[i] = redactValue(x[i])
		}
	case map[string]any:
		for k := range x {
			if s, ok := x[k].(string); ok && secretKey.MatchString(k) && s != "" {
				x[k] = hidden
				continue
			}
			x[k] = redactValue(x[k])
		}
	}
	return v
}

var secretKey = regexp.MustCompile(`(?i)(?:password|passwd|secret|token|api[_-]?key|credential)s?$`)

// Redact is what the agent's other ways out (health, errors on exit) do with
// text too: secrets, control characters and what is past limit bytes are taken
// out.
func Redact(s string, limit int) string { return redact(s, limit) }
