//go:build awstest

package template

import (
	"go/types"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/callgraph"
	"golang.org/x/tools/go/callgraph/cha"
	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

const module = "github.com/opsplane/opsplane/"

// program is every function's code with its dependencies, in SSA form.
type program struct {
	mains  map[string]*ssa.Package // by folder
	all    map[*ssa.Function]bool
	shapes *callgraph.Graph
}

func load(t *testing.T) program {
	t.Helper()
	cfg := &packages.Config{Mode: packages.LoadAllSyntax, Dir: root, BuildFlags: []string{"-tags=lambda.norpc,nethttpomithttp2"}, Env: append(os.Environ(), "CGO_ENABLED=0")}
	pkgs, err := packages.Load(cfg, "./functions/...")
	if err != nil {
		t.Fatal(err)
	}
	if packages.PrintErrors(pkgs) > 0 {
		t.Fatal("the functions do not compile")
	}
	prog, mains := ssautil.AllPackages(pkgs, ssa.InstantiateGenerics)
	prog.Build()
	p := program{mains: map[string]*ssa.Package{}, all: ssautil.AllFunctions(prog), shapes: cha.CallGraph(prog)}
	for i, m := range mains {
		p.mains[strings.TrimPrefix(pkgs[i].PkgPath, module+"functions/")] = m
	}
	return p
}

// reached are the functions that a main can get to. Its handler is called by
// reflection, which no graph shows: so every function that the main package names
// is a beginning.
func (p program) reached(main *ssa.Package) map[*ssa.Function]bool {
	var begin []*ssa.Function
	for fn := range p.all {
		if fn.Pkg != main {
			continue
		}
		begin = append(begin, fn)
		instructions(fn, func(in ssa.Instruction) {
			for _, op := range in.Operands(nil) {
				if named, ok := (*op).(*ssa.Function); ok {
					begin = append(begin, named)
				}
			}
		})
	}
	// By the shapes of calls alone first, then twice by which values can flow
	// there.
	graph := p.shapes
	at := from(graph, begin)
	for range 2 {
		graph = vta.CallGraph(at, graph)
		at = from(graph, begin)
	}
	return at
}

// from walks a graph. A method of a service of ours is passed over as long as no
// function on the way makes such a service: it would be called on nil. The API of
// agents, which shares its package with the users', shows why. Likewise a function
// within another, which only that one can hand out.
func from(g *callgraph.Graph, begin []*ssa.Function) map[*ssa.Function]bool {
	seen := map[*ssa.Function]bool{}
	made := map[*types.TypeName]bool{}
	waiting := map[any][]*ssa.Function{} // by service, or by the function around
	todo := begin
	for len(todo) > 0 {
		fn := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[fn] {
			continue
		}
		if s := service(fn); s != nil && !made[s] {
			waiting[s] = append(waiting[s], fn)
			continue
		}
		if around := fn.Parent(); around != nil && !seen[around] {
			waiting[around] = append(waiting[around], fn)
			continue
		}
		seen[fn] = true
		todo = append(todo, waiting[fn]...)
		instructions(fn, func(in ssa.Instruction) {
			if a, ok := in.(*ssa.Alloc); ok {
				if s := named(a.Type()); s != nil && !made[s] {
					made[s] = true
					todo = append(todo, waiting[s]...)
				}
			}
		})
		if n := g.Nodes[fn]; n != nil {
			for _, e := range n.Out {
				todo = append(todo, e.Callee.Func)
			}
		}
	}
	return seen
}

// service is the service type whose method the function is, or nil. Services are
// made by composite literals alone.
func service(fn *ssa.Function) *types.TypeName {
	recv := fn.Signature.Recv()
	if recv == nil {
		return nil
	}
	if s := named(recv.Type()); s != nil && s.Name() == "Service" && s.Pkg() != nil && strings.HasPrefix(s.Pkg().Path(), module) {
		return s
	}
	return nil
}

// named is the type that a pointer points to.
func named(t types.Type) *types.TypeName {
	if p, ok := t.(*types.Pointer); ok {
		if n, ok := p.Elem().(*types.Named); ok {
			return n.Obj()
		}
	}
	return nil
}

func instructions(fn *ssa.Function, each func(ssa.Instruction)) {
	for _, b := range fn.Blocks {
		for _, in := range b.Instrs {
			each(in)
		}
	}
}

const sdk = "github.com/aws/aws-sdk-go-v2/service/"

// operation is the AWS operation that a function is, such as sqs and SendMessage.
func operation(fn *ssa.Function) (svc, name string, ok bool) {
	recv := fn.Signature.Recv()
	if recv == nil || fn.Pkg == nil || !strings.HasPrefix(fn.Pkg.Pkg.Path(), sdk) || fn.Signature.Params().Len() != 3 {
		return "", "", false
	}
	client, in := named(recv.Type()), named(fn.Signature.Params().At(1).Type())
	if client == nil || client.Name() != "Client" || in == nil || in.Name() != fn.Name()+"Input" {
		return "", "", false
	}
	return strings.TrimPrefix(fn.Pkg.Pkg.Path(), sdk), fn.Name(), true
}
