package sim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// selector is a label selector: every requirement must hold.
type selector []requirement

// requirement is one term of a selector. Without values it asks for the key, or
// for its absence.
type requirement struct {
	key    string
	values []string // nil: none are named
	not    bool
}

// What a key's name and a value may be, and a key's prefix.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

const maxLabelName, maxLabelPrefix = 63, 253

// parseSelector reads a label selector strictly: k, !k, k=v, k==v, k!=v,
// k in (a,b) and k notin (a,b), separated by commas. An empty one selects all.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
func parseSelector(text string) (selector, error) {
	s, err := (&selectorReader{rest: text}).selector()
	if err != nil {
		return nil, fmt.Errorf("pod_selector %q: %w", text, err)
	}
	return s, nil
}

// selectorReader reads a selector token by token.
type selectorReader struct{ rest string }

// peek returns the next token: an operator, a word, or "" at the end.
func (r *selectorReader) peek() string {
	r.rest = strings.TrimLeft(r.rest, " \t\r\n")
	for _, op := range []string{"!=", "==", "=", "!", ",", "(", ")"} {
		if strings.HasPrefix(r.rest, op) {
			return op
		}
	}
	if i := strings.IndexAny(r.rest, "!=,() \t\r\n"); i >= 0 {
		return r.rest[:i]
	}
	return r.rest
}

func (r *selectorReader) next() string {
	tok := r.peek()
	r.rest = r.rest[len(tok):]
	return tok
}

func (r *selectorReader) selector() (s selector, err error) {
	if r.peek() == "" {
		return nil, nil
	}
	for {
		q, err := r.requirement()
		if err != nil {
			return nil, err
		}
		s = append(s, q)
		switch tok := r.next(); tok {
		case "":
			return s, nil
		case ",":
		default:
			return nil, fmt.Errorf("found %q where a comma or the end is due", tok)
		}
	}
}

func (r *selectorReader) requirement() (q requirement, err error) {
	absent := r.peek() == "!"
	if absent {
		r.next()
	}
	q.key = r.next()
	if err := checkLabelKey(q.key); err != nil {
		return q, err
	}
	if q.not = absent; absent {
		return q, nil
	}
	switch tok := r.peek(); tok {
	case "", ",":
		return q, nil
	case "=", "==", "!=":
		r.next()
		q.not = tok == "!="
		v, err := r.value()
		q.values = []string{v}
		return q, err
	case "in", "notin":
		r.next()
		q.not = tok == "notin"
		q.values, err = r.values()
		return q, err
	default:
		return q, fmt.Errorf("found %q where =, ==, !=, in, notin, a comma or the end is due", tok)
	}
}

// value reads one value, which may be empty.
func (r *selectorReader) value() (string, error) {
	if tok := r.peek(); tok == "" || tok == "," || tok == ")" {
		return "", nil
	}
	v := r.next()
	if len(v) > maxLabelName || !labelName.MatchString(v) {
		return "", fmt.Errorf("%q is no label value", v)
	}
	return v, nil
}

func (r *selectorReader) values() (list []string, err error) {
	if tok := r.next(); tok != "(" {
		return nil, fmt.Errorf("found %q where ( is due", tok)
	}
	if r.peek() == ")" {
		return nil, errors.New("a list of values is empty")
	}
	for {
		v, err := r.value()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		switch tok := r.next(); tok {
		case ")":
			return list, nil
		case ",":
		default:
			return nil, fmt.Errorf("found %q where a comma or ) is due", tok)
		}
	}
}

func checkLabelKey(key string) error {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	switch {
	case found && (len(prefix) > maxLabelPrefix || !labelPrefix.MatchString(prefix)),
		len(name) > maxLabelName, !labelName.MatchString(name):
		return fmt.Errorf("%q is no label key", key)
	}
	return nil
}

// match tells whether labels have what the selector asks for. A label that is
// missing has none of the values: k!=v and k notin (v) hold without k.
func (s selector) match(labels map[string]string) bool {
	for _, q := range s {
		v, has := labels[q.key]
		holds := has && (q.values == nil || slices.Contains(q.values, v))
		if holds == q.not {
			return false
		}
	}
	return true
}
