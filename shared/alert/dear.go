package alert

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	celast "cel.dev/cel-go/common/ast"
)

// partAt is the place of a part of an expression, the zero one where it is not known.
func partAt(ast *cel.Ast, id int64) (p place) {
	if at := ast.NativeRep().SourceInfo().GetStartLocation(id); at.Line() > 0 {
		p = place{at.Line(), at.Column() + 1}
	}
	return p
}

// dearest is the place in an expression that costs too much: of its smallest part that
// alone may cost more than MaxCost, since the whole does as long as that is there. It is
// called of what is refused alone: cel-go has no costs by part, so each is estimated by
// itself.
func dearest(ast *cel.Ast) (at place) {
	for e := celast.NavigateAST(ast.NativeRep()); e != nil; {
		if p := partAt(ast, e.ID()); p != (place{}) {
			at = p
		}
		var part celast.NavigableExpr
		most := uint64(MaxCost)
		for _, c := range e.Children() {
			alone := celast.NewCheckedAST(celast.NewAST(c, ast.NativeRep().SourceInfo()), ast.NativeRep().TypeMap(), ast.NativeRep().ReferenceMap())
			if cost, err := checker.Cost(alone, sizes{}); err == nil && cost.Max > most {
				part, most = c, cost.Max
			}
		}
		e = part
	}
	return at
}
