package alert

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

func cutPrefix(s, prefix string) (string, bool) { return strings.CutPrefix(s, prefix) }

// maxRegexProgram bounds a regular expression, in instructions of its program;
// RE2 keeps its time linear in the text.
const maxRegexProgram = 500

// compileRegexp compiles a pattern that must match the whole value.
func compileRegexp(pattern string) (*regexp.Regexp, error) {
	n, err := programSize(pattern)
	if err != nil {
		return nil, err
	}
	if n > maxRegexProgram {
		return nil, fmt.Errorf("pattern has a program of about %d instructions, the limit is %d", n, maxRegexProgram)
	}
	re, err := regexp.Compile(`^(?s:` + pattern + `)$`)
	if err != nil {
		return nil, patternError(err)
	}
	return re, nil
}

// programSize counts the instructions of a pattern's program as package regexp
// makes it. One that is far too large is not made to be counted: of that it is a
// guess, far above maxRegexProgram. CEL's own limit is of no use: it counts without
// Simplify, and a counted repetition such as a{2} makes it panic (cel-go 0.32,
// types.RegexProgramSize).
func programSize(pattern string) (int, error) {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, patternError(err)
	}
	if n := sizeOf(tree); n > 20*maxRegexProgram {
		return n, nil
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0, patternError(err)
	}
	return len(prog.Inst), nil
}

// maxRepeat is how often a repetition may repeat, those within it counted, too
// (regexp/syntax, ErrInvalidRepeatSize).
const maxRepeat = 1000

// patternError says what is wrong with a pattern, and where, without all of it.
func patternError(err error) error {
	e, ok := errors.AsType[*syntax.Error](err)
	if !ok {
		return fmt.Errorf("pattern cannot be read: %w", err)
	}
	at := e.Expr
	if len(at) > maxPatternShown {
		at = cut(at, maxPatternShown) + "…"
	}
	if e.Code == syntax.ErrInvalidRepeatSize {
		return fmt.Errorf("pattern cannot be read: %s: %s: the limit is %d", e.Code, at, maxRepeat)
	}
	return fmt.Errorf("pattern cannot be read: %s: %s", e.Code, at)
}

// maxPatternShown is how many bytes of a pattern an error has.
const maxPatternShown = 64

// sizeOf is about how many instructions a pattern's program has: never less than
// half of them.
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
