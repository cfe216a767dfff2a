package record

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Command is one side effect that an agent issued within a step's attempt.
type Command struct {
	ID         string `json:"id"`
	StepID     string `json:"step_id"`
	Attempt    int    `json:"attempt"`
	Generation int64  `json:"generation"`
	Name       string `json:"name"`
	Resource   string `json:"resource"`
	// Category of the answer: ok, already, refused, conflict, throttled,
	// timeout, error; empty while in flight.
	Category  string     `json:"category"`
	Output    string     `json:"output"` // bounded and redacted by the agent
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
}

// commandRun is the data of an item of commands.
type commandRun struct {
	Commands []Command `json:"commands"`
}

// CommandWrite is the write that keeps one part of the commands of report n
// under a generation. Writing the same report again changes nothing.
func CommandWrite(op string, gen, n int64, part int, cmds []Command) ledger.Write {
	sk := fmt.Sprintf("%s%012d#%012d#%04d", skCommand, gen, n, part)
	return ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: OperationPK(op), SK: sk}, Data: Encode(commandRun{cmds})}, Expect: ledger.AnyVersion}
}

// FoundCommand is a command with its place: the sort key of its item and its
// index there.
type FoundCommand struct {
	Command
	Sort  string
	Index int
}

// Commands reads an operation's commands behind the place, in the order of
// their reports, at most limit. A command that was told while in flight and
// again when it was answered is one, at its first place.
func (st *Store) Commands(ctx context.Context, op, sort string, index, limit int) ([]FoundCommand, error) {
	q := ledger.Query{PK: OperationPK(op), From: skCommand, To: skCommand + "~", Limit: 100}
	var all []FoundCommand
	at := map[string]int{}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read commands of %s: %w", op, err)
		}
		for _, it := range p.Items {
			run, err := Decode[commandRun](it)
			if err != nil {
				return nil, err
			}
			for i, c := range run.Commands {
				if k, ok := at[c.ID]; ok {
					if all[k].EndedAt == nil {
						all[k].Command = c
					}
					continue
				}
				at[c.ID] = len(all)
				all = append(all, FoundCommand{Command: c, Sort: it.SK, Index: i})
			}
		}
		if p.Next == "" {
			break
		}
		q.After = p.Next
	}
	from := 0
	for sort != "" && from < len(all) && (all[from].Sort < sort || (all[from].Sort == sort && all[from].Index <= index)) {
		from++
	}
	return all[from:min(from+limit, len(all))], nil
}
