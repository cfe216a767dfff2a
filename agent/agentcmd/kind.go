package agentcmd

import (
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/agent/executor"
)

// Kind is an executor that a program has built in. A program names those that it
// wants to be linked with, so that none carries what it never uses.
type Kind struct {
	// Name selects it: --executor NAME.
	Name string
	// Flags adds the kind's own flags, which no other kind may have, and returns
	// what looks at their values (nil: nothing to look at) and what opens the
	// executor with them.
	Flags func(fs *flag.FlagSet) (check func() error, open func(Env) (*Opened, error))
}

// Env is what an executor is opened with besides its flags.
type Env struct {
	Version string // of the agent
	Log     *slog.Logger
}

// Opened is an executor that works.
type Opened struct {
	Executor executor.Executor
	Close    func() // nil: nothing to close
	// Collectors are the executor's own metrics.
	Collectors []prometheus.Collector
}

// Healthy is what an executor offers that can lose what it acts on: an error says
// why nothing can be carried out now, in words for a person. The readiness probe
// asks it, and takes no answer within seconds for a bad one.
type Healthy interface {
	Healthy() error
}

// Lacking is an Executor that goes on without something and can name it; "": it lacks
// nothing.
type Lacking interface {
	Lacks() string
}

// chosen is a kind with its flags parsed.
type chosen struct {
	name  string
	flags map[string]bool
	check func() error
	open  func(Env) (*Opened, error)
}

// offer adds the flags of all kinds and returns them by name.
func offer(fs *flag.FlagSet, kinds []Kind) map[string]*chosen {
	out := map[string]*chosen{}
	for _, k := range kinds {
		before := map[string]bool{}
		fs.VisitAll(func(f *flag.Flag) { before[f.Name] = true })
		c := &chosen{name: k.Name, flags: map[string]bool{}}
		c.check, c.open = k.Flags(fs)
		fs.VisitAll(func(f *flag.Flag) {
			if !before[f.Name] {
				c.flags[f.Name] = true
			}
		})
		out[k.Name] = c
	}
	return out
}

func names(kinds []Kind) []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	slices.Sort(out)
	return out
}

// choose finds the kind that was asked for and refuses flags of the others: what
// somebody set and nobody reads is a mistake.
func choose(fs *flag.FlagSet, name string, kinds []Kind, offered map[string]*chosen) (*chosen, error) {
	c := offered[name]
	switch {
	case c == nil && name == "":
		return nil, fmt.Errorf("--executor is needed: one of %s", strings.Join(names(kinds), ", "))
	case c == nil:
		return nil, fmt.Errorf("--executor %q is not built into this agent; it has: %s", name, strings.Join(names(kinds), ", "))
	}
	var err error
	fs.Visit(func(f *flag.Flag) {
		for _, other := range offered {
			if other != c && other.flags[f.Name] && err == nil {
				err = fmt.Errorf("--%s is a flag of --executor %s, and this is %s", f.Name, other.name, name)
			}
		}
	})
	if err == nil && c.check != nil {
		err = c.check()
	}
	return c, err
}
