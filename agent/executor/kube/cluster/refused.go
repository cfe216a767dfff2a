package cluster

import (
	"cmp"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Codes of pods that their controller cannot make.
const (
	CodeQuota         = "quota_exceeded"
	CodeCreateRefused = "create_refused" // admission refuses the pods
)

// maxMessage bounds what the cluster said, in bytes.
const maxMessage = 300

// Bound is a message of the cluster in one line that is not too long to be told.
func Bound(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxMessage {
		return cmp.Or(s, "no message")
	}
	s = s[:maxMessage]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}

// violated matches what pod security says of a pod that it refuses: the level.
// https://kubernetes.io/docs/concepts/security/pod-security-admission/
var violated = regexp.MustCompile(`violates PodSecurity "([^"]+)"`)

// PodsRefused reads what a controller's event or condition FailedCreate says: why it
// could not make pods. detail is in words.
func PodsRefused(message string) (code, rule, detail string) {
	detail = "pods cannot be made: " + Bound(message)
	// The quota's refusal has no reason of its own: it is a 403 as any other.
	// https://kubernetes.io/docs/concepts/policy/resource-quotas/
	for _, says := range []string{"exceeded quota: ", "failed quota: "} {
		if _, quota, is := strings.Cut(message, says); is {
			name, _, _ := strings.Cut(quota, ",")
			name, _, _ = strings.Cut(name, ":") // "failed quota: NAME: must specify limits.cpu"
			return CodeQuota, "quota " + name, detail
		}
	}
	words := strings.TrimPrefix(message, "Error creating: ")
	switch m := deniedByAdmission.FindStringSubmatch(words); {
	case m != nil && m[1] != "":
		return CodeCreateRefused, "webhook/" + m[1], detail
	case m != nil:
		return CodeCreateRefused, "policy/" + m[2], detail
	}
	if m := violated.FindStringSubmatch(words); m != nil {
		return CodeCreateRefused, "PodSecurity " + m[1], detail
	}
	return CodeCreateRefused, "admission", detail
}
