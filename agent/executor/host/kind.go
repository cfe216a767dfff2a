package host

import (
	"errors"
	"flag"
	"strings"

	"github.com/opsplane/opsplane/agent/agentcmd"
)

// Kind is the executor as the agent's command offers it: --executor host.
func Kind() agentcmd.Kind {
	return agentcmd.Kind{Name: "host", Flags: func(fs *flag.FlagSet) (func() error, func(agentcmd.Env) (*agentcmd.Opened, error)) {
		var o Options
		var args string
		fs.StringVar(&o.Helper, "host-helper", DefaultHelper, "`program` that asks the driver")
		fs.StringVar(&args, "host-helper-flags", "", "more `flags` for it, between spaces, such as --release-persistence")
		fs.StringVar(&o.State, "host-state", DefaultState, "`folder` of the host's marks and cordon; it has to outlive reboots")
		fs.StringVar(&o.Name, "host-name", "", "the host's `name` (default: its host name)")
		check := func() error {
			if o.State == "" {
				return errors.New("--host-state is empty")
			}
			return nil
		}
		return check, func(env agentcmd.Env) (*agentcmd.Opened, error) {
			o.Args, o.Log = strings.Fields(args), env.Log
			e, err := Open(o)
			if err != nil {
				return nil, err
			}
			return &agentcmd.Opened{Executor: e}, nil
		}
	}}
}
