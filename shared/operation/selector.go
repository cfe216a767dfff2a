package operation

import (
	"fmt"
	"regexp"
	"strings"
)

// The shapes of label keys and values (Kubernetes, "Labels and Selectors,
// Syntax and character set").
var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	setTerm     = regexp.MustCompile(`^(\S+)\s+(in|notin)\s*\(([^()]*)\)$`)
)

// CheckSelector tells what is wrong with a label selector, by the grammar of
// Kubernetes: terms k, !k, k=v, k==v, k!=v, k in (a,b) and k notin (a,b),
// separated by commas.
func CheckSelector(s string) error {
	for _, term := range selectorTerms(s) {
		if err := checkTerm(strings.TrimSpace(term)); err != nil {
			return err
		}
	}
	return nil
}

// selectorTerms splits at the commas that are not within parentheses.
func selectorTerms(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, r := range s {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, s[from:i])
				from = i + 1
			}
		}
	}
	return append(out, s[from:])
}

func checkTerm(term string) error {
	if m := setTerm.FindStringSubmatch(term); m != nil {
		for _, v := range strings.Split(m[3], ",") {
			if err := checkLabelValue(strings.TrimSpace(v)); err != nil {
				return err
			}
		}
		return checkLabelKey(m[1])
	}
	for _, op := range []string{"!=", "==", "="} {
		if k, v, ok := strings.Cut(term, op); ok {
			if err := checkLabelValue(strings.TrimSpace(v)); err != nil {
				return err
			}
			return checkLabelKey(strings.TrimSpace(k))
		}
	}
	return checkLabelKey(strings.TrimPrefix(term, "!"))
}

func checkLabelKey(k string) error {
	prefix, name, ok := strings.Cut(k, "/")
	if !ok {
		prefix, name = "", k
	}
	if !labelName.MatchString(name) || (ok && (len(prefix) > 253 || !labelPrefix.MatchString(prefix))) {
		return fmt.Errorf("%q is not a label key", k)
	}
	return nil
}

func checkLabelValue(v string) error {
	if v != "" && !labelName.MatchString(v) {
		return fmt.Errorf("%q is not a label value", v)
	}
	return nil
}
