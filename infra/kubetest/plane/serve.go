package plane

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Command is what another process asks of a plane, a line of JSON.
type Command struct {
	Do        string `json:"do"` // kill, stop, cont or restart
	Component string `json:"component"`
}

// Answer is what it gets, a line of JSON for each command, and one before the
// first when the plane takes work.
type Answer struct {
	Err string `json:"err,omitempty"` // empty: done
}

// Serve runs a control plane for the process at the other end of in, and takes it
// down when in ends: also when that process was killed.
func Serve(ctx context.Context, o Options, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan []byte)
	go func() {
		defer cancel()
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- []byte(s.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	answers := json.NewEncoder(out)
	p, err := Start(ctx, o)
	if err != nil {
		_ = answers.Encode(Answer{Err: err.Error()}) // it is returned too
		return err
	}
	defer func() {
		if cerr := p.Close(); err == nil {
			err = cerr
		}
	}()
	if err := answers.Encode(Answer{}); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, ok := <-lines:
			if !ok {
				return nil
			}
			var a Answer
			if err := p.obey(ctx, line); err != nil {
				a.Err = err.Error()
			}
			if err := answers.Encode(a); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
		}
	}
}

func (p *Plane) obey(ctx context.Context, line []byte) error {
	var c Command
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("read command: %w", err)
	}
	switch c.Do {
	case "kill":
		return p.Kill(c.Component)
	case "stop":
		return p.Stop(c.Component)
	case "cont":
		return p.Cont(c.Component)
	case "restart":
		return p.Restart(ctx, c.Component)
	}
	return fmt.Errorf("no command %q: it is kill, stop, cont or restart", c.Do)
}
