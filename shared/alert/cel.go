package alert

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Limits of expressions.
const (
	// RunCost bounds what one evaluation of an expression may cost, in CEL's units,
	// and MaxCost what it may be estimated to cost at save: what is saved also runs
	// to its end, unless events are larger than the estimate takes them to be.
	RunCost = 50_000
	MaxCost = RunCost
	// keptCost is MaxCost as it was in earlier versions: rules that were saved then
	// go on.
	keptCost = 200_000
	// freeCost: what is estimated below it is metered when it runs at each
	// sampleEvery-th time alone, and counts as that until the next.
	freeCost    = 200
	sampleEvery = 256
	maxDepthCEL = 50
	// maxFound is how many faults of an expression are told: enough to begin with.
	maxFound = 5
)

// The sizes that the estimate takes for what is only known when it runs.
const (
	assumedString = 256
	assumedList   = 64
)

var environment = sync.OnceValues(func() (*cel.Env, error) {
	reg, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("make type registry: %w", err)
	}
	p := provider{reg}
	return cel.NewEnv(
		cel.CustomTypeAdapter(p), cel.CustomTypeProvider(p),
		cel.Variable("event", cel.ObjectType(eventType)),
		cel.Variable("operation", cel.ObjectType(operationType)),
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(MaxExprBytes),
		cel.ParserRecursionLimit(maxDepthCEL),
		// Not cel-go's of regular expressions: see programSize; they also take the text
		// of the form matches(text, pattern) for the pattern. walk checks them.
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
})

// program is a compiled expression.
type program struct {
	run       cel.Program
	metered   bool
	estimate  uint64 // its most, by assumed sizes
	dearest   place  // of a part that makes it too much to be saved
	needsSpec bool
	// ofOperation: it asks for more of the operation than its id.
	ofOperation bool
	// ofDetail: it reads the event's detail; ofTransition: what the detail of an
	// operation's own events tells of it.
	ofDetail, ofTransition bool
	pointer                string // its field in the rule

	// Of one that is not metered: it again, metered, how often it ran, and what it
	// cost when that was measured last.
	sample func() (cel.Program, error)
	ran    atomic.Uint64
	cost   atomic.Int64
}

// compile checks an expression and compiles it; what is wrong is added to f. An
// empty expression is nil.
func compile(f *Faults, pointer, expr string, want *cel.Type, metered bool) *program {
	defer f.caught(pointer)
	if expr == "" {
		return nil
	}
	if len(expr) > MaxExprBytes {
		f.add(pointer, CodeRange, "has %d bytes, the limit is %d", len(expr), MaxExprBytes)
		return nil
	}
	env, err := environment()
	if err != nil {
		f.add(pointer, CodeSyntax, "%v", err)
		return nil
	}
	ast, issues := env.Compile(expr)
	if issues != nil && issues.Err() != nil {
		for i, e := range issues.Errors() {
			if i == maxFound {
				break
			}
			code := CodeType
			if _, bad := env.Parse(expr); bad != nil && bad.Err() != nil {
				code = CodeSyntax
			}
			*f = append(*f, Fault{pointer, e.Location.Line(), e.Location.Column() + 1, code, e.Message})
		}
		return nil
	}
	if t := ast.OutputType(); !t.IsExactType(want) && !t.IsExactType(cel.DynType) {
		*f = append(*f, Fault{pointer, 1, 1, CodeType, fmt.Sprintf("must give a %s, gives a %s", want, t)})
		return nil
	}
	p := &program{pointer: pointer}
	if !walk(f, ast, p) {
		return nil
	}
	cost, err := env.EstimateCost(ast, sizes{})
	if err != nil {
		f.at(pointer, ast, ast.NativeRep().Expr().ID(), CodeCost, "its cost cannot be estimated: %v", err)
		return nil
	}
	if cost.Max > MaxCost {
		p.dearest = dearest(ast)
	}
	if cost.Max > keptCost {
		f.tooCostly(pointer, p.dearest, cost.Max)
		return nil
	}
	p.estimate, p.metered = cost.Max, metered || cost.Max > freeCost
	opts := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if p.metered {
		opts = append(opts, cel.CostLimit(RunCost), cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost))
	}
	if p.run, err = env.Program(ast, opts...); err != nil {
		var id int64 // of the part that cannot be, as a conversion of "x" to a number
		if e, ok := errors.AsType[*types.Err](err); ok {
			id = e.NodeID()
		}
		f.at(pointer, ast, id, CodeType, "%v", err)
		return nil
	}
	if !p.metered {
		p.sample = sync.OnceValues(func() (cel.Program, error) {
			return env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost))
		})
	}
	return p
}

// caught, deferred, makes a panic a fault. cel-go recovers from panics when it
// evaluates, but not when it checks and plans: one there comes of what somebody wrote,
// and must hold up nothing else, be it a request or the other rules of a plane.
func (f *Faults) caught(pointer string) {
	if r := recover(); r != nil {
		f.add(pointer, CodeType, "cannot be compiled: %v", r)
	}
}

// at adds a fault of a part of an expression, with its place where that is known.
func (f *Faults) at(pointer string, ast *cel.Ast, id int64, code, format string, args ...any) {
	p := partAt(ast, id)
	*f = append(*f, Fault{Pointer: pointer, Line: p.line, Column: p.column, Code: code, Detail: fmt.Sprintf(format, args...)})
}

// walk looks through the expression: every regular expression must be written out
// and small, which is checked here and never when it runs, and it notes what is
// needed of the operation, and of the detail.
func walk(f *Faults, ast *cel.Ast, p *program) bool {
	found := 0
	celast.PostOrderVisit(ast.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.CallKind:
			call := e.AsCall()
			if call.FunctionName() == overloads.Matches && found < maxFound && !checkMatches(f, ast, e, p.pointer) {
				found++
			}
			if args := call.Args(); call.FunctionName() == operators.OptSelect && args[1].Kind() == celast.LiteralKind {
				if name, ok := args[1].AsLiteral().Value().(string); ok {
					p.selects(ast, args[0], name)
				}
			}
		case celast.SelectKind:
			p.selects(ast, e.AsSelect().Operand(), e.AsSelect().FieldName())
		}
	}))
	return found == 0
}

// selects notes that a field is read, of a variable by whatever name.
func (p *program) selects(ast *cel.Ast, operand celast.Expr, name string) {
	of := ast.NativeRep().GetType(operand.ID())
	if of.Kind() == types.OpaqueKind && len(of.Parameters()) == 1 { // event.?subject is optional, and so is what is read of it
		of = of.Parameters()[0]
	}
	switch of.TypeName() {
	case eventType:
		p.ofDetail = p.ofDetail || name == "detail"
	case operationType:
		spec := fields[operationType][name].spec
		p.needsSpec = p.needsSpec || spec
		p.ofOperation = p.ofOperation || name != "id"
		p.ofTransition = p.ofTransition || name != "id" && !spec
	}
}

// checkMatches checks the pattern of a call text.matches(pattern) or
// matches(text, pattern): it is the last argument of both.
func checkMatches(f *Faults, ast *cel.Ast, call celast.Expr, pointer string) bool {
	args := call.AsCall().Args()
	arg := args[len(args)-1]
	var pattern string
	written := arg.Kind() == celast.LiteralKind
	if written {
		pattern, written = arg.AsLiteral().Value().(string)
	}
	if !written {
		f.at(pointer, ast, call.ID(), CodeCost, "the pattern of matches must be written out")
		return false
	}
	n, err := programSize(pattern)
	switch {
	case err != nil:
		f.at(pointer, ast, arg.ID(), CodeType, "invalid matches argument: %v", err)
	case n > maxRegexProgram:
		f.at(pointer, ast, arg.ID(), CodeCost, "the pattern of matches has a program of about %d instructions, the limit is %d", n, maxRegexProgram)
	default:
		return true
	}
	return false
}

// sizes estimates what only the events tell.
type sizes struct{}

// EstimateSize implements checker.CostEstimator.
func (sizes) EstimateSize(n checker.AstNode) *checker.SizeEstimate {
	switch n.Type().Kind() {
	case types.StringKind, types.BytesKind:
		return &checker.SizeEstimate{Min: 0, Max: assumedString}
	case types.ListKind, types.MapKind:
		return &checker.SizeEstimate{Min: 0, Max: assumedList}
	}
	return &checker.SizeEstimate{Min: 0, Max: assumedString}
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// bool evaluates a condition; a nil program holds. What cannot be evaluated, as
// for a key that the detail does not have, does not hold, and is counted.
func (p *program) bool(v *Vars, m *Meter) bool {
	if p == nil {
		return true
	}
	out := p.eval(v, m)
	b, ok := out.(types.Bool)
	if out != nil && !ok {
		m.fail(p, v, fmt.Sprintf("gives a %s, not a bool", kindOf(out)))
	}
	return ok && bool(b)
}

// string evaluates to a text: a string, or what is written out as one. What cannot be
// evaluated, or gives neither, is counted and stands as "": an alert whose group nobody
// knows is better than none.
func (p *program) string(v *Vars, m *Meter) string {
	out := p.eval(v, m)
	s, ok := written(out)
	if out != nil && !ok {
		m.fail(p, v, fmt.Sprintf("gives a %s, not a string", kindOf(out)))
	}
	return s
}

// kindOf names the type of a value as CEL does.
func kindOf(v any) string {
	if x, ok := v.(ref.Val); ok {
		return x.Type().TypeName()
	}
	return fmt.Sprintf("%T", v)
}

func (p *program) eval(v *Vars, m *Meter) any {
	m.Evaluated++
	run, sampled := p.run, false
	if !p.metered && p.ran.Add(1)%sampleEvery == 1 {
		if again, err := p.sample(); err == nil {
			run, sampled = again, true
		}
	}
	out, detail, err := run.Eval(v)
	if (p.metered || sampled) && detail != nil {
		if c := detail.ActualCost(); c != nil {
			p.cost.Store(int64(*c))
		}
	}
	m.Cost += p.cost.Load()
	if err != nil {
		m.fail(p, v, err.Error())
		return nil
	}
	return out
}

// Meter counts what judging took.
type Meter struct {
	Judged    int64 // events
	Late      int64 // of them, those told more than Lateness after they happened
	Matched   int64 // matches of rules
	Evaluated int64 // expressions
	Errors    int64 // of them, those that could not be evaluated
	Cost      int64 // in CEL's units; of cheap expressions by samples
	Folded    int64 // groups that were folded into "(other)"
	Timers    int64 // timers that came
	// Expired counts events of which a rule reads the detail, which retention has taken.
	Expired int64
	// Failed are the Errors by the rule's name.
	Failed map[string]int64
	// Keep is how many of the Errors are kept in First, as they come.
	Keep  int
	First []Failure
	last  Failure
}

func (m *Meter) fail(p *program, v *Vars, why string) {
	m.Errors++
	if len(why) > maxFailure {
		why = cut(why, maxFailure)
	}
	m.last = Failure{v.e.ID, p.pointer, why}
	if len(m.First) < m.Keep {
		m.First = append(m.First, m.last)
	}
}

func (m *Meter) failed(rule string, n int64) {
	if n == 0 {
		return
	}
	if m.Failed == nil {
		m.Failed = map[string]int64{}
	}
	m.Failed[rule] += n
}

// Add adds the other's counts.
func (m *Meter) Add(o Meter) {
	m.Judged += o.Judged
	m.Late += o.Late
	m.Matched += o.Matched
	m.Evaluated += o.Evaluated
	m.Errors += o.Errors
	m.Cost += o.Cost
	m.Folded += o.Folded
	m.Timers += o.Timers
	m.Expired += o.Expired
	for rule, n := range o.Failed {
		m.failed(rule, n)
	}
}
