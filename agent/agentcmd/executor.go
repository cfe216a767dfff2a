package agentcmd

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/sim"
)

// kinds are the executors built into this program: each opens its executor and
// returns what closes it.
var kinds = map[string]func(options, *slog.Logger) (executor.Executor, func(), error){
	"sim": openSim,
}

func builtIn() []string {
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func openExecutor(o options, log *slog.Logger) (executor.Executor, func(), error) {
	open := kinds[o.executor]
	if open == nil {
		return nil, nil, fmt.Errorf("executor %q is not built into this agent; it has: %s", o.executor, strings.Join(builtIn(), ", "))
	}
	return open(o, log)
}

func openSim(o options, log *slog.Logger) (executor.Executor, func(), error) {
	if o.simState == "" {
		return nil, nil, errors.New("--sim-state is needed by the simulated executor")
	}
	e, err := sim.Open(sim.Options{Scenario: o.simScenario, StateDir: o.simState, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	return e, func() {
		if err := e.Close(); err != nil {
			log.Error("the simulated cluster did not close", slog.Any("err", err))
		}
	}, nil
}
