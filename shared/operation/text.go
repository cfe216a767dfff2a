package operation

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CleanText tells whether s is valid UTF-8 without control characters, line and
// paragraph separators, overrides of the direction of text and replacement characters (which is what a lone
// surrogate in JSON decodes to). Tabs and line feeds are allowed.
func CleanText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r == '\t' || r == '\n' {
			continue
		}
		if unicode.IsControl(r) || r == utf8.RuneError || r == '\u2028' || r == '\u2029' || bidirectional(r) {
			return false
		}
	}
	return true
}

// bidirectional tells the characters that make text read otherwise than it is
// stored (Unicode Standard Annex 9: embeddings, overrides and isolates).
func bidirectional(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }

// EscapePointer escapes a name for a JSON pointer (RFC 6901, section 3).
func EscapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

// secretShapes match values that look like credentials. Requests take
// references to secrets, never secrets.
var secretShapes = []*regexp.Regexp{
	regexp.MustCompile(`opt_[0-9a-z]{26}_[A-Za-z0-9_-]{20,}`),
	regexp.MustCompile(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`),
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`),
	regexp.MustCompile(`\b(ghp|gho|ghs|ghu)_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{22,}`),
	regexp.MustCompile(`\bxox[abposr]-[A-Za-z0-9-]{10,}`),
	regexp.MustCompile(`\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bnvapi-[A-Za-z0-9_-]{20,}`),
	regexp.MustCompile(`\bAIza[0-9A-Za-z_-]{35}`),
	regexp.MustCompile(`(?i)(?:\b|_)(password|passwd|secret|(secret[_-]?)?(access|api)[_-]?key|token|authorization)["']?\s*[:=]\s*` +
		`("[^"]{8,}"|'[^']{8,}'|["']?(bearer\s+)?[^\s"']{8,})`),
	regexp.MustCompile(`(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}`),
	regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]+:[^/\s@]+@`),
}

// SecretShaped tells whether s holds something that looks like a credential.
func SecretShaped(s string) bool {
	for _, re := range secretShapes {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}

// cut returns at most n bytes of s, and no part of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
