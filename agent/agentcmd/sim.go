package agentcmd

import (
	"errors"
	"flag"
	"log/slog"

	"github.com/opsplane/opsplane/agent/executor/sim"
)

// Sim is the simulated executor.
func Sim() Kind {
	return Kind{Name: "sim", Flags: func(fs *flag.FlagSet) (func() error, func(Env) (*Opened, error)) {
		var scenario, state string
		fs.StringVar(&scenario, "sim-scenario", "demo/alpha", "builtin `name` or file of the simulated cluster")
		fs.StringVar(&state, "sim-state", "", "`folder` of the simulated cluster's state")
		check := func() error {
			if state == "" {
				return errors.New("--sim-state is needed by the simulated executor")
			}
			return nil
		}
		return check, func(env Env) (*Opened, error) {
			e, err := sim.Open(sim.Options{Scenario: scenario, StateDir: state, Logger: env.Log})
			if err != nil {
				return nil, err
			}
			return &Opened{Executor: e, Close: func() {
				if err := e.Close(); err != nil {
					env.Log.Error("the simulated cluster did not close", slog.Any("err", err))
				}
			}}, nil
		}
	}}
}
