package alert

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

func cutPrefix(s, prefix string) (string, bool) { return strings.CutPrefix(s, prefix) }

// compileRegexp compiles a pattern that must match the whole value. RE2 keeps
// its time linear in the text; its program is bounded here, before it is made.
func compileRegexp(pattern string) (*regexp.Regexp, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("parse pattern: %w", err)
	}
	if n := sizeOf(tree); n > maxRegexProgram {
		return nil, fmt.Errorf("pattern has a program of about %d instructions, the limit is %d", n, maxRegexProgram)
	}
	re, err := regexp.Compile(`^(?s:` + pattern + `)$`)
	if err != nil {
		return nil, fmt.Errorf("compile pattern: %w", err)
	}
	return re, nil
}

// sizeOf is about how many instructions a pattern's program has.
func sizeOf(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, s := range re.Sub {
		n += sizeOf(s)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, 1<<30)
}
