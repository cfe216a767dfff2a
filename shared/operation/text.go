package operation

import (
	"regexp"
	"slices"
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

// keyShapes match keys and tokens in the forms in which they are given out.
var keyShapes = []*regexp.Regexp{
	regexp.MustCompile(`opt_[0-9a-z]{26}_[A-Za-z0-9_-]{20,}`),
	regexp.MustCompile(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`),
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`),
	regexp.MustCompile(`\b(ghp|gho|ghs|ghu)_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{22,}`),
	regexp.MustCompile(`\bxox[abposr]-[A-Za-z0-9-]{10,}`),
	regexp.MustCompile(`\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bnvapi-[A-Za-z0-9_-]{20,}`),
	regexp.MustCompile(`\bAIza[0-9A-Za-z_-]{35}`),
}

// saidShapes match what is called a credential by the words before it, or by its
// place in a URL.
var saidShapes = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(?:\b|_)(password|passwd|secret|(secret[_-]?)?(access|api)[_-]?key|token|authorization)["']?\s*[:=]\s*` +
		`("[^"]{8,}"|'[^']{8,}'|["']?(bearer\s+)?[^\s"']{8,})`),
	regexp.MustCompile(`(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}`),
	regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]+:[^/\s@]+@`),
}

// SecretShaped tells whether s holds something that looks like a credential.
// Requests take references to secrets, never secrets.
func SecretShaped(s string) bool { return KeyShaped(s) || holds(saidShapes, s) }

// KeyShaped tells whether s holds a key or a token in a form in which such are given
// out. It is for code, where a comparison with a password looks like one.
func KeyShaped(s string) bool { return holds(keyShapes, s) }

func holds(shapes []*regexp.Regexp, s string) bool {
	return slices.ContainsFunc(shapes, func(re *regexp.Regexp) bool { return re.MatchString(s) })
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
