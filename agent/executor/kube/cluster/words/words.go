// Package words reads what nothing but the text of an API server's answer says: which
// webhook it could not call. Whoever gets the answer uses it, the agent and the programs
// of its Jobs, so that it depends on nothing.
package words

import "regexp"

// uncalled matches the API server's words on a webhook that it has to ask
// (failurePolicy: Fail) and cannot reach, or that does not answer within its own timeout.
// It says so before it stores anything.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#failure-policy
var uncalled = regexp.MustCompile(`failed calling webhook "([^"]+)"`)

// unconverted matches its words on objects that it stores in another version than is asked
// for, and cannot have converted. It reads none of their kind then in that version.
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-conversion
var unconverted = regexp.MustCompile(`conversion webhook for ([^ ,]+, Kind=\w+) failed`)

// Uncalled is the name of the webhook of admission that it cannot call; "": it says
// nothing of one.
func Uncalled(text string) (webhook string) { return first(uncalled, text) }

// Unconverted is the version and kind that it cannot have converted; "": it says nothing
// of one.
func Unconverted(text string) (kind string) { return first(unconverted, text) }

func first(words *regexp.Regexp, text string) string {
	if m := words.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}
