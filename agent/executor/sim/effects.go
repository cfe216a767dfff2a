package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What an effect did.
const (
	DidCordon   = "cordon"
	DidUncordon = "uncordon"
	DidEvict    = "evict"
	DidDelete   = "delete" // without grace, past any disruption budget
	DidReset    = "reset"
	DidRestart  = "restart"
	DidUndo     = "undo" // of a restart
	DidUpgrade  = "upgrade"
)

// Effect is one side effect that an operation asked the world for.
type Effect struct {
	Seq        int64     `json:"seq"`
	Time       time.Time `json:"time"`
	Operation  string    `json:"operation"`
	Run        int       `json:"run"`
	Generation int64     `json:"generation"`
	StepID     string    `json:"step_id"`
	Step       string    `json:"step"`
	Command    string    `json:"command"`
	What       string    `json:"what"`     // Did*
	Resource   string    `json:"resource"` // kind/UID
	Name       string    `json:"name"`
	Accepted   bool      `json:"accepted"`
	// Category of the answer: ok, already, refused, conflict, throttled. An
	// answer that was lost is recorded as ok with Lost.
	Category string `json:"category"`
	Why      string `json:"why,omitempty"`
	Lost     bool   `json:"lost,omitempty"`
}

// entry is one line of the log: a change of the world, and the effect that
// asked for it if there was one. Objects are whole; applying it twice is
// prevented by Seq.
type entry struct {
	Seq         int64         `json:"seq"`
	Time        time.Time     `json:"time"`
	Effect      *Effect       `json:"effect,omitempty"`
	Nodes       []*Node       `json:"nodes,omitempty"`
	Pods        []*Pod        `json:"pods,omitempty"`
	PDBs        []*PDB        `json:"pdbs,omitempty"`
	Devices     []*Device     `json:"devices,omitempty"`
	Deployments []*Deployment `json:"deployments,omitempty"`
	Components  []*Component  `json:"components,omitempty"`
	Drains      []*Drain      `json:"drains,omitempty"`
	Gone        []string      `json:"gone,omitempty"` // kind/UID
	ScriptDone  int           `json:"script_done,omitempty"`
}

func (e *entry) empty() bool {
	return e.Effect == nil && len(e.Nodes) == 0 && len(e.Pods) == 0 && len(e.PDBs) == 0 && len(e.Devices) == 0 &&
		len(e.Deployments) == 0 && len(e.Components) == 0 && len(e.Drains) == 0 && len(e.Gone) == 0 && e.ScriptDone == 0
}

// ReadEffects returns every side effect that a state folder ever recorded, in
// order. It may be called while executors are open.
func ReadEffects(dir string) ([]Effect, error) {
	for {
		names, err := logNames(dir)
		if err != nil {
			return nil, err
		}
		var effects []Effect
		for _, name := range append(slices.Clone(names), logName) {
			err := readLog(filepath.Join(dir, name), func(e *entry) {
				if e.Effect != nil {
					effects = append(effects, *e.Effect)
				}
			})
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		// A log that was rotated meanwhile would be missing: read again.
		after, err := logNames(dir)
		if err != nil {
			return nil, err
		}
		if len(after) == len(names) {
			return effects, nil
		}
	}
}

// CheckOnce reports every side effect that was accepted more than once for the
// same run of an operation, step and resource, and every change number that two
// effects share.
func CheckOnce(effects []Effect) error {
	type key struct {
		operation, step, what, resource string
		run                             int
	}
	var errs []error
	first, seqs := map[key]Effect{}, map[int64]bool{}
	for _, e := range effects {
		if seqs[e.Seq] {
			errs = append(errs, fmt.Errorf("change %d was written twice", e.Seq))
		}
		seqs[e.Seq] = true
		if !e.Accepted {
			continue
		}
		k := key{e.Operation, e.Step, e.What, e.Resource, e.Run}
		if f, ok := first[k]; ok {
			errs = append(errs, fmt.Errorf("%s of %s by %s run %d step %s was accepted twice: change %d (generation %d) and %d (generation %d)",
				e.What, e.Resource, e.Operation, e.Run, e.Step, f.Seq, f.Generation, e.Seq, e.Generation))
			continue
		}
		first[k] = e
	}
	return errors.Join(errs...)
}

const logName = "effects.jsonl"

// logNames lists the rotated logs, oldest first.
func logNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read state folder: %w", err)
	}
	var names []string
	for _, e := range entries {
		if _, ok := logNumber(e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		x, _ := logNumber(a)
		y, _ := logNumber(b)
		return x - y
	})
	return names, nil
}

func logNumber(name string) (int, bool) {
	s, ok := strings.CutPrefix(name, "effects-")
	if !ok {
		return 0, false
	}
	s, ok = strings.CutSuffix(s, ".jsonl")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// readLog calls f with each whole line. A torn last line was never answered and
// is left out.
func readLog(path string, f func(*entry)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r := bufio.NewReaderSize(file, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Base(path), err)
		}
		var e entry
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return fmt.Errorf("read %s: %w", filepath.Base(path), err)
		}
		f(&e)
	}
}
